// The messages of proto/weft.proto as frames, and what they mean here. Few sources include it: protobuf's headers are large.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <weft.pb.h>

#include "base/guard.h"
#include "model/fingerprint.h"
#include "model/sequence_state.h"
#include "pipeline/plan.h"
#include "pipeline/stage_runner.h"
#include "pipeline/wire/frame.h"

namespace weft {

[[nodiscard]] Frame message_frame(FrameType type, const google::protobuf::MessageLite& message);

// Throws bad_input naming the message when the frame's bytes are none.
void parse_message(const Frame& frame, google::protobuf::MessageLite& message);
template <class Message>
[[nodiscard]] Message message_of(const Frame& frame) {
  Message message;
  parse_message(frame, message);
  return message;
}

[[nodiscard]] wire::Failure to_wire(const Failure& failure, int64_t stage);
[[nodiscard]] Failure from_wire(const wire::Failure& failure);

[[nodiscard]] std::vector<ShardDigest> shards_of(const wire::SurveyReply& reply);
[[nodiscard]] wire::Plan to_wire(const Plan& plan, int64_t prefill_chunk);
[[nodiscard]] std::string plan_sha256(const wire::Plan& plan);

// `starts`: tokens consumed before each entry's rows. Sampling goes to the last stage only: it waits for masks that are still
// being computed.
[[nodiscard]] wire::Step to_wire(const StageStep& step, const std::vector<int64_t>& starts, bool sampling);
// Throws bad_input naming the field.
[[nodiscard]] StageStep from_wire(const wire::Step& step);

// Throws bad_input for a mask that is not one of `vocab` ids, and for ids outside of it.
void check_sample(const SampleRequest& request, int64_t vocab);

// The sequence table of a step's boundary.
[[nodiscard]] std::vector<SequenceRow> sequence_rows(const wire::Step& step);

// Results of the last stage: logits stand beside the message.
void add_results(Frame& frame, wire::Done& done, std::vector<RowsResult> results);
[[nodiscard]] std::vector<RowsResult> results_of(const Frame& frame, const wire::Done& done, const StageStep& step);

// A sequence's state in its saved form, or parts of it: names in the message, tensors beside it.
void add_state(Frame& frame, google::protobuf::RepeatedPtrField<std::string>& names,
               const std::map<std::string, TensorView>& tensors, const std::shared_ptr<const void>& owner);
[[nodiscard]] std::map<std::string, TensorView> state_of(const Frame& frame,
                                                         const google::protobuf::RepeatedPtrField<std::string>& names);

}  // namespace weft
