// A request on its way through the engine: what was asked, where its tokens go, and its state as a type (docs/engine.md, R).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/owned_sequence.h"
#include "ops/sample.h"
#include "pipeline/executor.h"

namespace weft {

using RequestId = Strong<struct RequestIdTag>;

struct GenerateRequest {
  std::vector<int32_t> ids;           // the prompt, at least one
  std::optional<int64_t> max_tokens;  // >= 1; absent, or beyond the context: what the context leaves
  ops::SamplingParams sampling;
  std::vector<int32_t> never_penalised;  // ascending
  std::vector<ops::LogitBias> bias;      // each id once, ascending
  int64_t top = 0;                       // most likely ids beside each drawn one (TokenSink::on_top)
  bool prompt_logits = false;            // TokenSink::on_prompt_logits; nothing of the prompt is reused then
};

enum class RequestEnd : uint8_t {
  stop,       // its sink said so
  length,     // max_tokens or the context
  cancelled,  // by its owner
  timeout,    // a limit of EngineOptions
  failed,     // RequestReport::failure says why
};

enum class ReusedFrom : uint8_t { nothing, memory, disk };
[[nodiscard]] std::string_view to_string(ReusedFrom from);

struct RequestReport {
  RequestEnd end = RequestEnd::cancelled;
  std::optional<Failure> failure;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of them, in a stored state
  ReusedFrom reused_from = ReusedFrom::nothing;
  int64_t computed_tokens = 0;    // of them, computed; with the reused ones all, unless the request ended within its prompt
  int64_t recomputed_tokens = 0;  // computed again: the request was preempted, or shared a step that failed
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  double queue_seconds = 0.0;     // until it was admitted
  double prompt_seconds = 0.0;    // from then until the first token, or the end
  double generate_seconds = 0.0;  // from the first token to the last

  [[nodiscard]] double prompt_rate() const;    // computed prompt tokens a second; 0 when unknown
  [[nodiscard]] double generate_rate() const;  // tokens a second after the first one; 0 when unknown
};

// Where a request's tokens go. The engine calls its members in its own thread, between steps; none may call the engine. What
// one throws fails the request.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // False: no room for a further token now. The request rests and keeps its memory.
  [[nodiscard]] virtual bool ready() { return true; }
  // The request is about to be queued, and may generate `budget` tokens. What this throws refuses it.
  virtual void on_submit(int64_t budget) { static_cast<void>(budget); }
  // Says which ids may be drawn next: `allowed` or `mask` of the draw. Asked once for every draw, when all earlier tokens have
  // been given. `tokens_left` of the budget, that of the draw included.
  virtual void constrain(SampleRequest& draw, int64_t tokens_left) {
    static_cast<void>(draw);
    static_cast<void>(tokens_left);
  }
  // `done` of `total` prompt tokens are in the state.
  virtual void on_prompt(int64_t done, int64_t total) {
    static_cast<void>(done);
    static_cast<void>(total);
  }
  // The logits [rows, V] behind the prompt tokens from `first` on, in order and without a gap; each prompt token once, unless
  // the request runs again. Only when the request asks for them.
  virtual void on_prompt_logits(int64_t first, TensorView logits) {
    static_cast<void>(first);
    static_cast<void>(logits);
  }
  // The most likely ids beside the token that on_token() gives next: most likely first, log probabilities of the raw logits.
  // Only when the request asks for them.
  virtual void on_top(std::span<const ops::Sampled> top) { static_cast<void>(top); }
  // A drawn token. True: the request ends with it (RequestEnd::stop).
  [[nodiscard]] virtual bool on_token(const ops::Sampled& token) = 0;
  // The last call.
  virtual void on_end(const RequestReport& report) = 0;
};

// States; an event consumes one and gives the next.
namespace request_state {
struct Queued {};  // holds no memory
struct Feeding {   // ids beyond the sequence's position may be submitted
  OwnedSequence sequence;
};
struct Drawing {  // the rows that draw the next token are open
  OwnedSequence sequence;
};
struct Ended {};
}  // namespace request_state

class Request {
 public:
  using Clock = std::chrono::steady_clock;

  // `budget`: most tokens to generate, >= 1.
  Request(RequestId id, GenerateRequest asked, int64_t budget, std::shared_ptr<TokenSink> sink);

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] TokenSink& sink() { return *sink_; }
  [[nodiscard]] std::span<const int32_t> ids() const { return asked_.ids; }  // prompt, then generated
  [[nodiscard]] int64_t prompt_size() const { return prompt_size_; }
  [[nodiscard]] int64_t budget_left() const { return budget_ - generated(); }
  [[nodiscard]] Clock::time_point asked_at() const { return asked_at_; }
  [[nodiscard]] bool prompt_logits() const { return asked_.prompt_logits; }
  [[nodiscard]] bool admitted_before() const { return admitted_at_.has_value(); }

  [[nodiscard]] bool queued() const { return std::holds_alternative<request_state::Queued>(state_); }
  [[nodiscard]] bool feeding() const { return std::holds_alternative<request_state::Feeding>(state_); }
  [[nodiscard]] bool ended() const { return std::holds_alternative<request_state::Ended>(state_); }
  [[nodiscard]] SequenceId sequence() const;  // of a request that is Feeding or Drawing
  // Counts the times that the request was admitted: rows of an earlier time are stale.
  [[nodiscard]] int64_t attempt() const { return attempt_; }
  [[nodiscard]] int64_t open_rows() const { return open_rows_; }  // entries in open steps
  [[nodiscard]] bool alone() const { return alone_; }             // it may share no step

  // Queued -> Feeding. The sequence has consumed the first `position` ids.
  void admit(OwnedSequence sequence, TokenCount position, ReusedFrom from);
  // Feeding -> Feeding, or Drawing when the rows reach the last id. `position`: of the sequence.
  [[nodiscard]] Rows take_rows(TokenCount position, int64_t count);
  void close_rows() { --open_rows_; }
  // Drawing -> Feeding. How the request ends with this token, if it does.
  [[nodiscard]] std::optional<RequestEnd> accept(const ops::Sampled& drawn, std::span<const ops::Sampled> top);
  // Feeding | Drawing -> Queued: it is preempted, or shared a failed step and has to run alone.
  [[nodiscard]] OwnedSequence go_back(bool alone);
  // Any -> Ended. The sequence that it had.
  [[nodiscard]] std::optional<OwnedSequence> end(RequestEnd end, std::optional<Failure> failure);
  [[nodiscard]] const RequestReport& report() const { return report_; }  // complete once it has ended

 private:
  [[nodiscard]] int64_t generated() const { return static_cast<int64_t>(asked_.ids.size()) - prompt_size_; }
  [[nodiscard]] SampleRequest sample_request();
  [[nodiscard]] std::optional<OwnedSequence> take_sequence();

  RequestId id_;
  GenerateRequest asked_;
  int64_t prompt_size_;
  int64_t budget_;
  std::shared_ptr<TokenSink> sink_;
  std::variant<request_state::Queued, request_state::Feeding, request_state::Drawing, request_state::Ended> state_;
  int64_t attempt_ = 0;
  int64_t open_rows_ = 0;
  bool alone_ = false;
  int64_t submitted_ = 0;  // the furthest position that was ever submitted
  RequestReport report_;

  Clock::time_point asked_at_;
  std::optional<Clock::time_point> admitted_at_;
  std::optional<Clock::time_point> first_at_;
  Clock::time_point last_at_;
};

}  // namespace weft
