#include "server/api/run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/plural.h"

namespace weft::api {

namespace {

// What an end that is no answer is to its client.
std::optional<ApiError> error_of_end(const RequestReport& report) {
  if (report.end == RequestEnd::failed)
    return error_of(report.failure.value_or(Failure{ErrorKind::internal, "[engine] a request failed without a reason"}));
  // Nobody else but a client that left cancels single requests, so this is the end of the engine.
  if (report.end == RequestEnd::cancelled) return unavailable("the server is shutting down", "draining");
  if (report.end == RequestEnd::timeout && report.generated_tokens == 0) {
    return unavailable(fmt::format("the request waited for {:.1f} s and is not answered", report.queue_seconds), "timeout");
  }
  return std::nullopt;
}

}  // namespace

// Passes a choice's tokens to its turn, and says so to the run.
class Run::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<Run> run, int64_t choice, std::shared_ptr<TokenSink> turn)
      : run_(std::move(run)), choice_(choice), turn_(std::move(turn)) {}

  bool ready() override { return !run_->exchange_->full(); }
  void on_submit(int64_t budget) override { turn_->on_submit(budget); }
  void constrain(SampleRequest& draw, int64_t tokens_left) override { turn_->constrain(draw, tokens_left); }
  void on_prompt(int64_t done, int64_t total) override { turn_->on_prompt(done, total); }
  void on_prompt_logits(int64_t first, TensorView logits) override { turn_->on_prompt_logits(first, logits); }
  void on_top(std::span<const ops::Sampled> top) override { turn_->on_top(top); }
  bool on_token(const ops::Sampled& token) override {
    const auto now = std::chrono::steady_clock::now();
    ServerMetrics& metrics = run_->service_.metrics();
    const double passed = std::chrono::duration<double>(now - last_).count();
    metrics.count_token(passed, !seen_);
    seen_ = true;
    last_ = now;
    const bool ends = turn_->on_token(token);
    if (!run_->over_) run_->moved(choice_);
    return ends;
  }
  void on_end(const RequestReport& report) override {
    turn_->on_end(report);
    run_->take_end(choice_, report);
  }

 private:
  std::shared_ptr<Run> run_;
  int64_t choice_;
  std::shared_ptr<TokenSink> turn_;
  bool seen_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

Run::Run(const Service& service, std::shared_ptr<http::Exchange> exchange)
    : service_(service), exchange_(std::move(exchange)) {}

void Run::start(std::vector<Choice> choices) {
  EngineThread& engine = service_.engine();
  exchange_->on_room([&engine] { engine.wake(); });
  exchange_->on_gone([&engine, weak = weak_from_this()] {
    engine.between_steps([weak](Engine& inner) {
      const std::shared_ptr<Run> run = weak.lock();
      if (!run || run->over_) return;
      run->over_ = true;
      run->cancel_others(inner);
      run->left();
    });
  });
  // std::function wants what it holds to be copyable.
  auto held = std::make_shared<std::vector<Choice>>(std::move(choices));
  const bool taken =
      engine.between_steps([self = shared_from_this(), held](Engine& inner) { self->submit(inner, std::move(*held)); });
  if (!taken) fail_with(unavailable("the server is shutting down", "draining"));
}

void Run::cancel(std::function<void()> then) {
  service_.engine().between_steps([self = shared_from_this(), then = std::move(then)](Engine& engine) {
    if (!self->over_) {
      self->cancelled_ = true;
      self->cancel_others(engine);
    }
    then();
  });
}

void Run::cancelled() { failed(unavailable("the request was cancelled", "cancelled")); }

void Run::submit(Engine& engine, std::vector<Choice> choices) {
  if (over_) return;
  reports_.resize(choices.size());
  if (std::ssize(choices) > engine.max_queue()) {
    return fail_with(
        bad_request(fmt::format("n: wanted at most {} answers at once, found {}", engine.max_queue(), choices.size()), "n"));
  }
  const std::optional<Failure> failure = guard([&] {
    for (size_t i = 0; i < choices.size(); ++i) {
      auto sink = std::make_shared<Sink>(shared_from_this(), static_cast<int64_t>(i), std::move(choices[i].turn));
      ids_.push_back(engine.submit(std::move(choices[i].request), std::move(sink)));
    }
  });
  if (!failure) return began();
  const bool full = failure->kind == ErrorKind::unavailable && engine.queue_full();
  const ApiError error =
      full ? error_of_status(429, fmt::format("the queue is full: {} requests wait", engine.queued())) : error_of(*failure);
  fail_with(error);
  cancel_others(engine);
}

void Run::cancel_others(Engine& engine) {
  for (const RequestId id : ids_) engine.cancel(id);
}

void Run::fail_with(const ApiError& error) {
  if (over_) return;
  over_ = true;
  exchange_->note(error.message);
  failed(error);
}

void Run::take_end(int64_t choice, const RequestReport& report) {
  const std::optional<Failure> failure = guard([&] { pass_end(choice, report); });
  if (failure) fail_with(error_of(*failure));
}

void Run::pass_end(int64_t choice, const RequestReport& report) {
  service_.metrics().count_answer(report);
  reports_[static_cast<size_t>(choice)] = report;
  if (over_) return;
  if (report.end == RequestEnd::cancelled && cancelled_) {
    over_ = true;
    exchange_->note("cancelled, " + summary());
    return cancelled();
  }
  if (const std::optional<ApiError> error = error_of_end(report)) {
    fail_with(*error);
    // The engine is in the middle of something.
    service_.engine().between_steps([self = shared_from_this()](Engine& engine) { self->cancel_others(engine); });
    return;
  }
  moved(choice);
  ended(choice, report);
  if (!std::ranges::all_of(reports_, [](const auto& one) { return one.has_value(); })) return;
  over_ = true;
  exchange_->note(summary());
  completed();
}

std::string Run::summary() const {
  int64_t prompt = 0;
  int64_t reused = 0;
  int64_t generated = 0;
  double slowest = 0.0;
  for (const std::optional<RequestReport>& report : reports_) {
    if (!report) continue;
    prompt = std::max(prompt, report->prompt_tokens);
    reused = std::max(reused, report->reused_tokens);
    generated += report->generated_tokens;
    if (report->generate_rate() > 0.0)
      slowest = slowest == 0.0 ? report->generate_rate() : std::min(slowest, report->generate_rate());
  }
  return fmt::format("prompt {}{}, generated {}{}", counted(prompt, "token"),
                     reused > 0 ? fmt::format(" ({} reused)", reused) : "", generated,
                     slowest > 0.0 ? fmt::format(" at {:.1f}/s", slowest) : "");
}

}  // namespace weft::api
