#include "pipeline/remote/messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include <openssl/evp.h>

#include "base/error.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "message";

wire::Sample to_wire(const SampleRequest& request) {
  wire::Sample made;
  const ops::SamplingParams& params = request.params;
  made.set_temperature(params.temperature);
  made.set_top_k(params.top_k);
  made.set_top_p(params.top_p);
  made.set_min_p(params.min_p);
  made.set_repetition_penalty(params.repetition_penalty);
  made.set_frequency_penalty(params.frequency_penalty);
  made.set_presence_penalty(params.presence_penalty);
  made.set_seed(params.seed);
  made.mutable_prompt()->Add(request.prompt.begin(), request.prompt.end());
  made.mutable_history()->Add(request.history.begin(), request.history.end());
  made.mutable_never_penalised()->Add(request.never_penalised.begin(), request.never_penalised.end());
  const std::vector<uint32_t>& allowed = request.mask.valid() ? request.mask.get() : request.allowed;
  for (const ops::LogitBias& bias : request.bias) {
    made.add_bias_ids(bias.id);
    made.add_biases(bias.bias);
  }
  made.set_top(request.top);
  made.set_allowed(allowed.data(), allowed.size() * sizeof(uint32_t));
  return made;
}

SampleRequest from_wire(const wire::Sample& sample) {
  SampleRequest made;
  ops::SamplingParams& params = made.params;
  params.temperature = sample.temperature();
  params.top_k = sample.top_k();
  params.top_p = sample.top_p();
  params.min_p = sample.min_p();
  params.repetition_penalty = sample.repetition_penalty();
  params.frequency_penalty = sample.frequency_penalty();
  params.presence_penalty = sample.presence_penalty();
  params.seed = sample.seed();
  params.validate();
  made.prompt.assign(sample.prompt().begin(), sample.prompt().end());
  made.history.assign(sample.history().begin(), sample.history().end());
  made.never_penalised.assign(sample.never_penalised().begin(), sample.never_penalised().end());
  if (sample.bias_ids_size() != sample.biases_size()) {
    fail(ErrorKind::bad_input, kPlace, "bias: wanted a number for each of {} ids, found {}", sample.bias_ids_size(),
         sample.biases_size());
  }
  for (int i = 0; i < sample.bias_ids_size(); ++i) made.bias.push_back({sample.bias_ids(i), sample.biases(i)});
  made.top = sample.top();
  if (sample.allowed().size() % sizeof(uint32_t) != 0) {
    fail(ErrorKind::bad_input, kPlace, "allowed: wanted whole words of 4 bytes, found {} bytes", sample.allowed().size());
  }
  made.allowed.resize(sample.allowed().size() / sizeof(uint32_t));
  if (!made.allowed.empty()) std::memcpy(made.allowed.data(), sample.allowed().data(), sample.allowed().size());
  return made;
}

}  // namespace

Frame message_frame(FrameType type, const google::protobuf::MessageLite& message) {
  auto bytes = std::make_shared<std::string>();
  if (!message.SerializeToString(bytes.get())) {
    fail(ErrorKind::bad_input, kPlace, "{}: wanted a message below 2 GiB, found one that cannot be encoded",
         message.GetTypeName());
  }
  Frame frame;
  frame.type = type;
  frame.tensors.push_back(FrameTensor::message(std::move(bytes)));
  return frame;
}

void parse_message(const Frame& frame, google::protobuf::MessageLite& message) {
  const std::string_view bytes = frame.message();
  if (bytes.size() > INT32_MAX || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    fail(ErrorKind::bad_input, kPlace, "wanted a {}, found {} bytes that are none", message.GetTypeName(), bytes.size());
  }
}

wire::Failure to_wire(const Failure& failure, int64_t stage) {
  wire::Failure made;
  made.set_kind(std::string(to_string(failure.kind)));
  made.set_message(failure.message);
  made.set_stage(static_cast<uint32_t>(stage));
  return made;
}

Failure from_wire(const wire::Failure& failure) { return {error_kind_from(failure.kind()), failure.message()}; }

std::vector<ShardDigest> shards_of(const wire::SurveyReply& reply) {
  std::vector<ShardDigest> shards;
  for (const wire::ShardDigest& shard : reply.shards()) shards.push_back({shard.file(), shard.sha256()});
  return shards;
}

wire::Plan to_wire(const Plan& plan, int64_t prefill_chunk) {
  wire::Plan made;
  for (const PlanStage& stage : plan.stages) {
    wire::PlannedStage& to = *made.add_stages();
    to.set_begin(stage.layers.begin.value);
    to.set_end(stage.layers.end.value);
    to.set_state_bytes(stage.state);
    to.set_expert_bytes(stage.experts_kept < stage.experts ? stage.experts_kept : -1);
  }
  made.set_profile(plan.profile == ops::Profile::bf16 ? 1 : 0);
  made.set_prefill_chunk(prefill_chunk);
  made.set_layer_count(plan.layer_count);
  return made;
}

std::string plan_sha256(const wire::Plan& plan) {
  const std::string bytes = plan.SerializeAsString();
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    fail(ErrorKind::internal, kPlace, "the SHA-256 library refused");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

wire::Step to_wire(const StageStep& step, const std::vector<int64_t>& starts, bool sampling) {
  wire::Step made;
  for (size_t i = 0; i < step.step.rows.size(); ++i) {
    const Rows& rows = step.step.rows[i];
    wire::Rows& to = *made.add_rows();
    to.set_sequence(rows.sequence.value);
    to.mutable_ids()->Add(rows.ids.begin(), rows.ids.end());
    to.set_logits(static_cast<uint32_t>(rows.logits));
    to.mutable_checkpoints()->Add(rows.checkpoints.begin(), rows.checkpoints.end());
    for (const SequenceId id : step.checkpoint_ids[i]) to.add_checkpoint_ids(id.value);
    to.set_start(starts[i]);
    if (sampling && rows.sample) *to.mutable_sample() = to_wire(*rows.sample);
  }
  return made;
}

void check_sample(const SampleRequest& request, int64_t vocab) {
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  if (!request.allowed.empty() && request.allowed.size() != words) {
    fail(ErrorKind::bad_input, kPlace, "allowed: wanted {} words for {} ids, found {}", words, vocab, request.allowed.size());
  }
  for (const std::vector<int32_t>* ids : {&request.prompt, &request.history, &request.never_penalised}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= vocab) fail(ErrorKind::bad_input, kPlace, "wanted ids in [0, {}), found {}", vocab, id);
    }
  }
  int32_t before = -1;
  for (const auto& [id, bias] : request.bias) {
    if (id <= before || id >= vocab || !std::isfinite(bias)) {
      fail(ErrorKind::bad_input, kPlace, "bias: wanted ids that ascend in [0, {}) with numbers, found id {} with {}", vocab, id,
           bias);
    }
    before = id;
  }
  if (request.top < 0 || request.top > vocab)
    fail(ErrorKind::bad_input, kPlace, "top: wanted a number in [0, {}], found {}", vocab, request.top);
}

StageStep from_wire(const wire::Step& step) {
  StageStep made;
  std::set<SequenceId> seen;
  for (const wire::Rows& rows : step.rows()) {
    Rows& to = made.step.rows.emplace_back();
    to.sequence = SequenceId(rows.sequence());
    if (!seen.insert(to.sequence).second) {
      fail(ErrorKind::bad_input, kPlace, "wanted each sequence once in a step, found sequence {} twice", to.sequence);
    }
    to.ids.assign(rows.ids().begin(), rows.ids().end());
    if (to.ids.empty()) fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted at least one token, found none", to.sequence);
    if (rows.logits() > static_cast<uint32_t>(Rows::Logits::all)) {
      fail(ErrorKind::bad_input, kPlace, "sequence {}: logits: wanted 0 to 2, found {}", to.sequence, rows.logits());
    }
    to.logits = static_cast<Rows::Logits>(rows.logits());
    to.checkpoints.assign(rows.checkpoints().begin(), rows.checkpoints().end());
    int64_t before = 0;
    for (const int64_t offset : to.checkpoints) {
      if (offset <= before || offset > static_cast<int64_t>(to.ids.size())) {
        fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted checkpoints that ascend in (0, {}], found {}", to.sequence,
             to.ids.size(), offset);
      }
      before = offset;
    }
    if (rows.checkpoint_ids_size() != rows.checkpoints_size()) {
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted an id for each of {} checkpoints, found {}", to.sequence,
           rows.checkpoints_size(), rows.checkpoint_ids_size());
    }
    std::vector<SequenceId>& ids = made.checkpoint_ids.emplace_back();
    for (const int64_t id : rows.checkpoint_ids()) ids.emplace_back(id);
    if (rows.has_sample()) to.sample = from_wire(rows.sample());
  }
  if (made.step.rows.empty()) fail(ErrorKind::bad_input, kPlace, "step: wanted rows of at least one sequence, found none");
  return made;
}

std::vector<SequenceRow> sequence_rows(const wire::Step& step) {
  std::vector<SequenceRow> made;
  uint32_t offset = 0;
  for (const wire::Rows& rows : step.rows()) {
    SequenceRow& row = made.emplace_back();
    row.sequence = static_cast<uint64_t>(rows.sequence());
    row.first_position = static_cast<uint32_t>(rows.start());
    row.count = static_cast<uint32_t>(rows.ids_size());
    row.row_offset = offset;
    row.phase = rows.ids_size() > 1 ? 0 : 2;
    offset += row.count;
  }
  return made;
}

void add_results(Frame& frame, wire::Done& done, std::vector<RowsResult> results) {
  for (RowsResult& result : results) {
    wire::RowsResult& to = *done.add_results();
    if (result.sampled) {
      to.mutable_sampled()->set_id(result.sampled->id);
      to.mutable_sampled()->set_logprob(result.sampled->logprob);
    }
    for (const ops::Sampled& top : result.top) {
      wire::Sampled& entry = *to.add_top();
      entry.set_id(top.id);
      entry.set_logprob(top.logprob);
    }
    if (result.logits.elements() == 0) continue;
    to.set_with_logits(true);
    frame.tensors.push_back(FrameTensor::of(TensorKind::logits, std::make_shared<const Tensor>(std::move(result.logits))));
  }
}

std::vector<RowsResult> results_of(const Frame& frame, const wire::Done& done, const StageStep& step) {
  const size_t wanted = step.step.rows.size();
  if (static_cast<size_t>(done.results_size()) != wanted) {
    fail(ErrorKind::bad_input, kPlace, "wanted results of {} sequences, found {}", wanted, done.results_size());
  }
  auto logits = frame.tensors.begin();
  std::vector<RowsResult> made;
  for (size_t i = 0; i < wanted; ++i) {
    const wire::RowsResult& from = done.results(static_cast<int>(i));
    RowsResult& to = made.emplace_back();
    to.checkpoints = step.checkpoint_ids[i];
    if (from.has_sampled() != step.step.rows[i].sample.has_value()) {
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted {} token, found {}", step.step.rows[i].sequence,
           step.step.rows[i].sample ? "a" : "no", from.has_sampled() ? "one" : "none");
    }
    if (from.has_sampled()) to.sampled = ops::Sampled{from.sampled().id(), from.sampled().logprob()};
    const int64_t top_wanted = step.step.rows[i].sample ? step.step.rows[i].sample->top : 0;
    if (from.top_size() != top_wanted) {
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted the {} most likely tokens, found {}", step.step.rows[i].sequence,
           top_wanted, from.top_size());
    }
    for (const wire::Sampled& top : from.top()) to.top.push_back({top.id(), top.logprob()});
    if (!from.with_logits()) continue;
    logits = std::find_if(logits, frame.tensors.end(), [](const FrameTensor& t) { return t.kind == TensorKind::logits; });
    if (logits == frame.tensors.end()) fail(ErrorKind::bad_input, kPlace, "wanted logits beside the message, found none");
    to.logits = Tensor::copy_of(logits->view);
    ++logits;
  }
  return made;
}

void add_state(Frame& frame, google::protobuf::RepeatedPtrField<std::string>& names,
               const std::map<std::string, TensorView>& tensors, const std::shared_ptr<const void>& owner) {
  for (const auto& [name, view] : tensors) {
    *names.Add() = name;
    frame.tensors.push_back({TensorKind::cache, view, owner});
  }
}

std::map<std::string, TensorView> state_of(const Frame& frame, const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::vector<const FrameTensor*> tensors;
  for (const FrameTensor& tensor : frame.tensors)
    if (tensor.kind == TensorKind::cache) tensors.push_back(&tensor);
  if (static_cast<size_t>(names.size()) != tensors.size()) {
    fail(ErrorKind::bad_input, kPlace, "state: wanted {} tensors as named, found {}", names.size(), tensors.size());
  }
  std::map<std::string, TensorView> made;
  for (size_t i = 0; i < tensors.size(); ++i) made.emplace(names.Get(static_cast<int>(i)), tensors[i]->view);
  return made;
}

}  // namespace weft
