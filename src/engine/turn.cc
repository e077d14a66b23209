#include "engine/turn.h"

#include <algorithm>

#include "base/error.h"

namespace weft {
namespace {

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

double TurnStatistics::prompt_rate() const {
  return prompt_seconds > 0.0 ? static_cast<double>(computed_tokens) / prompt_seconds : 0.0;
}

double TurnStatistics::generate_rate() const {
  return generate_seconds > 0.0 ? static_cast<double>(generated_tokens - 1) / generate_seconds : 0.0;
}

Turn::Turn(const Model& model, SequenceId sequence, TokenCount consumed, std::vector<TokenId> ids, const ChatPrompt& prompt,
           const TurnOptions& options)
    : model_(model),
      sequence_(sequence),
      consumed_(consumed),
      prompt_(std::move(ids)),
      options_(options),
      parser_(model.format().parser(prompt)),
      closer_(model.format().tokenizer(), prompt.start),
      submitted_(consumed.value),
      begun_(Clock::now()),
      last_(begun_) {
  if (prompt_size() <= consumed_.value) fail(ErrorKind::bad_input, "prompt", "wanted at least one new token, found none");
  budget_ = model.max_context() - prompt_size();
  if (budget_ < 1) {
    fail(ErrorKind::bad_input, "prompt", "wanted at most {} tokens (a context of {}), found {}", model.max_context() - 1,
         model.max_context(), prompt_size());
  }
  if (options_.max_tokens) {
    if (*options_.max_tokens < 1) {
      fail(ErrorKind::bad_input, "max_tokens", "wanted at least 1, found {}", *options_.max_tokens);
    }
    budget_ = std::min(budget_, *options_.max_tokens);
  }
  if (options_.rules != nullptr) {
    matcher_ = std::make_shared<grammar::Matcher>(options_.rules->matcher(prompt.start, budget_));
  }
}

SampleRequest Turn::sample_request() {
  SampleRequest request;
  request.params = options_.sampling;
  if (matcher_) {
    const int64_t left = budget_ - static_cast<int64_t>(generated_.size());
    // A mask that fails must not fail the step, which other requests share: accept() throws it.
    mask_failure_ = std::make_shared<std::optional<Failure>>();
    mask_ = std::async(std::launch::async, [matcher = matcher_, failure = mask_failure_, &all = model_.valid_ids(), left] {
      std::vector<uint32_t> mask(all.size());
      *failure = guard([&] { matcher->fill_mask(mask, left); });
      return *failure ? all : mask;
    });
    request.mask = mask_;
  } else {
    request.allowed = model_.valid_ids();
  }
  const ops::SamplingParams& params = options_.sampling;
  const bool counts = params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F;
  if (counts || params.repetition_penalty != 1.0F) {
    request.history = generated_;
    if (params.repetition_penalty != 1.0F) request.prompt = prompt_;
    request.never_penalised = model_.control_ids();
  }
  return request;
}

std::optional<Rows> Turn::next_rows(int64_t max_rows) {
  if (over() || drawing_) return std::nullopt;
  Rows rows;
  rows.sequence = sequence_;
  if (submitted_ < prompt_size()) {
    const int64_t count = std::min(prompt_size() - submitted_, std::max<int64_t>(max_rows, 1));
    rows.ids.assign(prompt_.begin() + submitted_, prompt_.begin() + submitted_ + count);
    submitted_ += count;
    if (submitted_ < prompt_size()) return rows;
  } else {
    rows.ids = {generated_.back()};
  }
  rows.sample = sample_request();
  drawing_ = true;
  return rows;
}

void Turn::accept(const RowsResult& result) {
  if (!result.sampled || over()) return;
  drawing_ = false;
  last_ = Clock::now();
  if (!first_) first_ = last_;
  const TokenId id = result.sampled->id;
  if (matcher_) {
    mask_.wait();
    if (*mask_failure_) (*mask_failure_)->raise();
    matcher_->accept(id);
  }
  generated_.push_back(id);
  logprobs_.push_back(result.sampled->logprob);
  parser_.feed_token(id);
  closer_.add(id);
  if (parser_.done() || model_.format().tokenizer().is_stop(id)) {
    finish(TurnEnd::stop);
  } else if (static_cast<int64_t>(generated_.size()) >= budget_) {
    finish(TurnEnd::length);
  }
}

void Turn::cancel() {
  if (!over()) finish(TurnEnd::cancelled);
}

void Turn::finish(TurnEnd end) {
  end_ = end;
  parser_.finish(end == TurnEnd::stop ? EndReason::stop : EndReason::length);
}

TurnStatistics Turn::statistics() const {
  TurnStatistics made;
  made.prompt_tokens = prompt_size();
  made.reused_tokens = consumed_.value;
  made.computed_tokens = prompt_tokens_submitted();
  made.generated_tokens = static_cast<int64_t>(generated_.size());
  made.reasoning_tokens = parser_.counters().reasoning_tokens;
  made.prompt_seconds = seconds(first_.value_or(Clock::now()) - begun_);
  made.generate_seconds = first_ ? seconds(last_ - *first_) : 0.0;
  return made;
}

std::vector<TokenId> Turn::unconsumed() const {
  std::vector<TokenId> ids(prompt_.begin() + submitted_, prompt_.end());
  if (!generated_.empty() && !model_.format().tokenizer().is_stop(generated_.back())) ids.push_back(generated_.back());
  const std::vector<TokenId> closers = closer_.closers();
  ids.insert(ids.end(), closers.begin(), closers.end());
  return ids;
}

}  // namespace weft
