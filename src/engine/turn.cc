#include "engine/turn.h"

#include "base/error.h"

namespace weft {

Turn::Turn(const Model& model, const ChatPrompt& prompt, const TurnOptions& options)
    : model_(model),
      options_(options),
      start_(prompt.start),
      thinking_(prompt.thinking),
      parser_(model.format().parser(prompt)),
      notes_(prompt.notes) {}

GenerateRequest Turn::request(std::vector<TokenId> ids) const {
  return {std::move(ids), options_.max_tokens, options_.sampling, model_.control_ids()};
}

void Turn::on_prompt(int64_t done, int64_t total) { progress_ = {done, total}; }

void Turn::on_submit(int64_t budget) {
  if (options_.rules != nullptr) matcher_ = std::make_shared<grammar::Matcher>(options_.rules->matcher(start_, budget));
}

void Turn::constrain(SampleRequest& draw, int64_t tokens_left) {
  if (!matcher_) {
    draw.allowed = model_.valid_ids();
    return;
  }
  if (mask_.valid()) mask_.wait();  // of a step that failed: the matcher serves one at a time
  // A mask that fails must not fail the step, which other requests share: on_token() throws it.
  mask_failure_ = std::make_shared<std::optional<Failure>>();
  mask_ = model_.mask_thread()
              .post([matcher = matcher_, failure = mask_failure_, &all = model_.valid_ids(), tokens_left] {
                std::vector<uint32_t> mask(all.size());
                *failure = guard([&] { matcher->fill_mask(mask, tokens_left); });
                return *failure ? all : mask;
              })
              .share();
  draw.mask = mask_;
}

bool Turn::on_token(const ops::Sampled& token) {
  if (matcher_) {
    mask_.wait();
    if (*mask_failure_) (*mask_failure_)->raise();
    matcher_->accept(token.id);
  }
  generated_.push_back(token.id);
  logprobs_.push_back(token.logprob);
  parser_.feed_token(token.id);
  return parser_.done() || model_.format().tokenizer().is_stop(token.id);
}

void Turn::on_end(const RequestReport& report) {
  report_ = report;
  parser_.finish(report.end == RequestEnd::stop ? EndReason::stop : EndReason::length);
}

std::vector<ChatEvent> Turn::take_events() {
  std::vector<ChatEvent> events = parser_.take_events();
  for (const ChatEvent& event : events) builder_.add(event);
  return events;
}

TurnResult Turn::result() {
  if (!over()) fail(ErrorKind::internal, "turn", "wanted the result of a turn that is over, found one that goes on");
  if (report_->failure) report_->failure->raise();
  static_cast<void>(take_events());
  return {.answer = builder_.answer(),
          .end = report_->end,
          .statistics = *report_,
          .counters = parser_.counters(),
          .thinking = thinking_,
          .sampling = options_.sampling,
          .ids = generated_,
          .logprobs = logprobs_,
          .notes = notes_};
}

std::vector<TokenId> Turn::whole_turn() const {
  std::vector<TokenId> ids = generated_;
  if (!ids.empty() && model_.format().tokenizer().is_stop(ids.back())) ids.pop_back();
  const std::vector<TokenId> closers = parser_.closers();
  ids.insert(ids.end(), closers.begin(), closers.end());
  return ids;
}

}  // namespace weft
