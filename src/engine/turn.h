// One answer on one sequence, as a machine that an engine loop drives: it says which rows come next and takes what came back.
//
//     Turn turn(model, sequence, executor.consumed(sequence), ids, prompt, options);
//     while (!turn.over()) {
//       if (std::optional<Rows> rows = turn.next_rows(limit)) submit(*rows);   // several prompt chunks may be open
//       else turn.accept(result of the oldest open rows);
//       send(turn.take_events());
//     }
//
// The ids depend on the request only: not on the chunks of the prompt, on what shares a step, or on what the sequence had
// consumed already (design.md 4).
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/grammar/answer_rules.h"
#include "engine/model.h"
#include "engine/turn_closer.h"
#include "pipeline/executor.h"
#include "text/chat.h"

namespace weft {

struct TurnOptions {
  ops::SamplingParams sampling;
  std::optional<int64_t> max_tokens;            // >= 1; absent, or beyond the context: what the context leaves
  const grammar::AnswerRules* rules = nullptr;  // of the form of the answer; read when the turn begins
};

// How a turn ended.
enum class TurnEnd : uint8_t {
  running,
  stop,    // an end token, or the message was closed (3.9)
  length,  // max_tokens or the context
  cancelled,
};

struct TurnStatistics {
  int64_t prompt_tokens = 0;     // all before the first generated one
  int64_t reused_tokens = 0;     // of them, already in the state
  int64_t computed_tokens = 0;   // of them, computed by this turn; with the reused ones all, unless the turn was cancelled
  int64_t generated_tokens = 0;  // markers and the end token included
  int64_t reasoning_tokens = 0;
  double prompt_seconds = 0.0;    // until the first token, or the end
  double generate_seconds = 0.0;  // from the first token to the last

  [[nodiscard]] double prompt_rate() const;    // computed prompt tokens a second; 0 when unknown
  [[nodiscard]] double generate_rate() const;  // tokens a second after the first one; 0 when unknown
};

class Turn {
 public:
  // `ids` are all ids before the first draw, of which the sequence has consumed the first `consumed`; at least one is left.
  // Throws bad_input when they leave no room in the context, max_tokens is below 1, or no answer under the rules is that short.
  Turn(const Model& model, SequenceId sequence, TokenCount consumed, std::vector<TokenId> ids, const ChatPrompt& prompt,
       const TurnOptions& options);

  [[nodiscard]] bool over() const { return end_ != TurnEnd::running; }
  [[nodiscard]] TurnEnd end() const { return end_; }

  // The next rows to submit, at most max_rows (>= 1) of the prompt; nothing while the answer to the last ones is awaited, and
  // when the turn is over.
  [[nodiscard]] std::optional<Rows> next_rows(int64_t max_rows);
  // The result of the oldest rows not yet accepted. Throws what kept a mask from being made.
  void accept(const RowsResult& result);
  // Ends the turn now. Rows that were handed out must have been accepted, or their sequence be given up.
  void cancel();

  [[nodiscard]] std::vector<ChatEvent> take_events() { return parser_.take_events(); }
  [[nodiscard]] const ParserCounters& counters() const { return parser_.counters(); }
  [[nodiscard]] std::span<const TokenId> generated() const { return generated_; }
  // The same ids' log probabilities (natural, raw logits).
  [[nodiscard]] std::span<const float> logprobs() const { return logprobs_; }
  [[nodiscard]] TurnStatistics statistics() const;
  [[nodiscard]] int64_t prompt_tokens_submitted() const { return submitted_ - consumed_.value; }
  [[nodiscard]] int64_t prompt_tokens_to_submit() const { return prompt_size() - consumed_.value; }

  // Once the turn is over: what the sequence has to consume before anything may follow: pending ids that were not submitted,
  // the last generated id unless it is an end token, and what closes the turn.
  [[nodiscard]] std::vector<TokenId> unconsumed() const;

 private:
  using Clock = std::chrono::steady_clock;

  void finish(TurnEnd end);
  [[nodiscard]] SampleRequest sample_request();
  [[nodiscard]] int64_t prompt_size() const { return static_cast<int64_t>(prompt_.size()); }

  const Model& model_;
  SequenceId sequence_;
  TokenCount consumed_;  // when the turn began
  std::vector<TokenId> prompt_;
  TurnOptions options_;
  int64_t budget_ = 0;
  OutputParser parser_;
  TurnCloser closer_;

  std::shared_ptr<grammar::Matcher> matcher_;       // of options_.rules
  std::shared_future<std::vector<uint32_t>> mask_;  // of the draw that is open
  std::shared_ptr<std::optional<Failure>> mask_failure_;

  int64_t submitted_ = 0;  // of prompt_, what was consumed before included
  bool drawing_ = false;   // rows with a draw are open
  std::vector<TokenId> generated_;
  std::vector<float> logprobs_;
  TurnEnd end_ = TurnEnd::running;

  Clock::time_point begun_;
  std::optional<Clock::time_point> first_;
  Clock::time_point last_;
};

}  // namespace weft
