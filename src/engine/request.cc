#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

using request_state::Drawing;
using request_state::Ended;
using request_state::Feeding;
using request_state::Queued;

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

[[noreturn]] void wrong_state(RequestId id, std::string_view event) {
  fail(ErrorKind::internal, "request", "{}: wanted a state in which it may be {}, found another", id, event);
}

}  // namespace

std::string_view to_string(ReusedFrom from) {
  switch (from) {
    case ReusedFrom::memory: return "memory";
    case ReusedFrom::disk: return "disk";
    case ReusedFrom::nothing: break;
  }
  return "nothing";
}

double RequestReport::prompt_rate() const {
  return prompt_seconds > 0.0 ? static_cast<double>(computed_tokens) / prompt_seconds : 0.0;
}

double RequestReport::generate_rate() const {
  return generate_seconds > 0.0 ? static_cast<double>(generated_tokens - 1) / generate_seconds : 0.0;
}

Request::Request(RequestId id, GenerateRequest asked, int64_t budget, std::shared_ptr<TokenSink> sink)
    : id_(id),
      asked_(std::move(asked)),
      prompt_size_(static_cast<int64_t>(asked_.ids.size())),
      budget_(budget),
      sink_(std::move(sink)),
      asked_at_(Clock::now()),
      last_at_(asked_at_) {}

SequenceId Request::sequence() const {
  if (const auto* feeding = std::get_if<Feeding>(&state_)) return feeding->sequence.id();
  if (const auto* drawing = std::get_if<Drawing>(&state_)) return drawing->sequence.id();
  wrong_state(id_, "asked for its sequence");
}

void Request::admit(OwnedSequence sequence, TokenCount position, ReusedFrom from) {
  if (!queued()) wrong_state(id_, "admitted");
  ++attempt_;
  open_rows_ = 0;
  if (!admitted_at_) {
    admitted_at_ = Clock::now();
    report_.reused_tokens = position.value;
    report_.reused_from = from;
    submitted_ = position.value;
  }
  state_ = Feeding{std::move(sequence)};
}

SampleRequest Request::sample_request() {
  SampleRequest made;
  made.params = asked_.sampling;
  made.bias = asked_.bias;
  made.top = asked_.top;
  sink_->constrain(made, budget_left());
  const bool counts = made.params.frequency_penalty != 0.0F || made.params.presence_penalty != 0.0F;
  const bool repeats = made.params.repetition_penalty != 1.0F;
  if (counts || repeats) {
    made.history.assign(asked_.ids.begin() + prompt_size_, asked_.ids.end());
    made.never_penalised = asked_.never_penalised;
  }
  if (repeats) made.prompt.assign(asked_.ids.begin(), asked_.ids.begin() + prompt_size_);
  return made;
}

Rows Request::take_rows(TokenCount position, int64_t count) {
  auto* feeding = std::get_if<Feeding>(&state_);
  const int64_t end = position.value + count;
  if (feeding == nullptr || end > static_cast<int64_t>(asked_.ids.size())) wrong_state(id_, "fed");
  Rows rows;
  rows.sequence = feeding->sequence.id();
  rows.ids.assign(asked_.ids.begin() + position.value, asked_.ids.begin() + end);
  const bool draws = end == static_cast<int64_t>(asked_.ids.size());
  if (draws) rows.sample = sample_request();
  if (asked_.prompt_logits && position.value < prompt_size_) rows.logits = Rows::Logits::all;
  const int64_t again = std::clamp(submitted_ - position.value, int64_t{0}, count);
  report_.recomputed_tokens += again;
  report_.computed_tokens += std::min(end, prompt_size_) - std::min(position.value + again, prompt_size_);
  submitted_ = std::max(submitted_, end);
  ++open_rows_;
  if (draws) state_ = Drawing{std::move(feeding->sequence)};
  return rows;
}

std::optional<RequestEnd> Request::accept(const ops::Sampled& drawn, std::span<const ops::Sampled> top) {
  auto* drawing = std::get_if<Drawing>(&state_);
  if (drawing == nullptr) wrong_state(id_, "given a token");
  last_at_ = Clock::now();
  if (!first_at_) first_at_ = last_at_;
  asked_.ids.push_back(drawn.id);
  alone_ = false;
  state_ = Feeding{std::move(drawing->sequence)};
  if (!top.empty()) sink_->on_top(top);
  if (sink_->on_token(drawn)) return RequestEnd::stop;
  if (budget_left() == 0) return RequestEnd::length;
  return std::nullopt;
}

std::optional<OwnedSequence> Request::take_sequence() {
  std::optional<OwnedSequence> sequence;
  if (auto* feeding = std::get_if<Feeding>(&state_)) sequence = std::move(feeding->sequence);
  if (auto* drawing = std::get_if<Drawing>(&state_)) sequence = std::move(drawing->sequence);
  return sequence;
}

OwnedSequence Request::go_back(bool alone) {
  std::optional<OwnedSequence> sequence = take_sequence();
  if (!sequence) wrong_state(id_, "sent back");
  state_ = Queued{};
  alone_ = alone;
  if (!alone) ++report_.preemptions;
  return std::move(*sequence);
}

std::optional<OwnedSequence> Request::end(RequestEnd end, std::optional<Failure> failure) {
  if (ended()) wrong_state(id_, "ended");
  std::optional<OwnedSequence> sequence = take_sequence();
  state_ = Ended{};
  report_.end = end;
  report_.failure = std::move(failure);
  report_.prompt_tokens = prompt_size_;
  report_.generated_tokens = generated();
  const Clock::time_point now = Clock::now();
  report_.queue_seconds = seconds(admitted_at_.value_or(now) - asked_at_);
  report_.prompt_seconds = admitted_at_ ? seconds(first_at_.value_or(now) - *admitted_at_) : 0.0;
  report_.generate_seconds = first_at_ ? seconds(last_at_ - *first_at_) : 0.0;
  return sequence;
}

}  // namespace weft
