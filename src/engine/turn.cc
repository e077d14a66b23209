#include "engine/turn.h"

#include <utility>

#include "base/error.h"

namespace weft {

Turn::Turn(const Model& model, const ChatPrompt& prompt, const TurnOptions& options)
    : model_(model),
      options_(options),
      end_(model.format().tokenizer(), options.end),
      stops_(options.stop),
      start_(prompt.start),
      thinking_(prompt.thinking),
      parser_(model.format().parser(prompt)),
      notes_(prompt.notes) {}

GenerateRequest Turn::request(std::vector<TokenId> ids) const {
  GenerateRequest request;
  request.ids = std::move(ids);
  request.max_tokens = options_.max_tokens;
  request.sampling = options_.sampling;
  request.never_penalised = model_.control_ids();
  request.bias = options_.bias;
  if (options_.logprobs) request.top = options_.top_logprobs;
  return request;
}

void Turn::on_prompt(int64_t done, int64_t total) { progress_ = {done, total}; }

void Turn::on_submit(int64_t budget) {
  if (options_.rules != nullptr) matcher_ = std::make_shared<grammar::Matcher>(options_.rules->matcher(start_, budget));
}

void Turn::constrain(SampleRequest& draw, int64_t tokens_left) {
  if (!matcher_) {
    draw.allowed = model_.valid_ids();
    end_.restrict(draw.allowed, generated());
    return;
  }
  if (mask_.valid()) mask_.wait();  // of a step that failed: the matcher serves one at a time
  // A mask that fails must not fail the step, which other requests share: on_token() throws it.
  mask_failure_ = std::make_shared<std::optional<Failure>>();
  mask_ = model_.mask_thread()
              .post([matcher = matcher_, failure = mask_failure_, &all = model_.valid_ids(), end = end_, drawn = generated(),
                     tokens_left] {
                std::vector<uint32_t> mask(all.size());
                *failure = guard([&] {
                  matcher->fill_mask(mask, tokens_left);
                  end.restrict(mask, drawn);
                });
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
  if (end_.asked(token.id, generated())) {
    stop_id_ = token.id;
    return true;
  }
  const Tokenizer& tokenizer = model_.format().tokenizer();
  if (options_.logprobs && parser_.in_content() && !tokenizer.is_control(token.id))
    content_tokens_.push_back({{token.id, token.logprob, std::exchange(top_, {})}, content_read_});
  parser_.feed_token(token.id);
  pump();
  return cut_ || ((parser_.done() || tokenizer.is_stop(token.id)) && end_.may_end(generated()));
}

void Turn::pump() {
  for (ChatEvent& event : parser_.take_events()) take_event(std::move(event));
}

void Turn::take_event(ChatEvent event) {
  if (event.kind == ChatEvent::Kind::finish) {
    finish_ = std::move(event);
    return;
  }
  if (cut_) return;
  if (event.kind == ChatEvent::Kind::content) {
    content_read_ += event.text.size();
    std::string shown;
    cut_ = stops_.feed(event.text, shown);
    give_content(std::move(shown), event.recovered);
    return;
  }
  std::string held;
  stops_.flush(held);
  give_content(std::move(held), false);
  if (event.kind == ChatEvent::Kind::call_end) cut_ = ++calls_ == options_.max_calls;
  events_.push_back(std::move(event));
}

void Turn::give_content(std::string text, bool recovered) {
  if (text.empty()) return;
  content_shown_ += text.size();
  ChatEvent event;
  event.text = std::move(text);
  event.recovered = recovered;
  events_.push_back(std::move(event));
}

void Turn::on_end(const RequestReport& report) {
  report_ = report;
  parser_.finish(report.end == RequestEnd::stop ? EndReason::stop : EndReason::length);
  pump();
  std::string held;
  if (!cut_) stops_.flush(held);
  give_content(std::move(held), false);
  if (!finish_) return;
  // The parser knows nothing of an end that was passed over, nor of one that came from without.
  if (options_.end.ignore && report.end == RequestEnd::length) finish_->reason = FinishReason::length;
  if (stops_.matched() && finish_->reason == FinishReason::length) finish_->reason = FinishReason::stop;
  // What is held to a form is brought to its end in time, which is not the end that the model would have given it.
  if (report.end == RequestEnd::stop && was_cut_by_limit()) {
    finish_->reason = FinishReason::length;
    notes_.emplace_back("the token limit was near: the answer was brought to its end in time, and may be shorter or other");
  }
  events_.push_back(std::move(*finish_));
  finish_.reset();
}

bool Turn::was_cut_by_limit() const {
  if (!matcher_ || stops_.matched()) return false;
  if (mask_.valid()) mask_.wait();
  return matcher_->was_cut();
}

std::vector<ChatEvent> Turn::take_events() {
  std::vector<ChatEvent> events = std::exchange(events_, {});
  for (const ChatEvent& event : events) builder_.add(event);
  return events;
}

std::vector<TokenLogprob> Turn::take_logprobs() {
  std::vector<TokenLogprob> given;
  size_t count = 0;
  // At the end all are out but those that a stop string cut off.
  while (count < content_tokens_.size() && (content_tokens_[count].offset < content_shown_ || (over() && !stops_.matched()))) {
    given.push_back(std::move(content_tokens_[count++].token));
  }
  content_tokens_.erase(content_tokens_.begin(), content_tokens_.begin() + static_cast<int64_t>(count));
  return given;
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
          .stop_string = stops_.matched(),
          .stop_id = stop_id_,
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
