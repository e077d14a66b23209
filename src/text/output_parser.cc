#include "text/output_parser.h"

#include <algorithm>
#include <random>
#include <utility>

#include "text/parser_machine.h"

namespace weft {

void ParserMachine::emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind && !events_.back().recovered) {
    events_.back().text += text;
  } else {
    events_.push_back({.kind = kind, .text = std::string(text), .call_id = {}});
  }
}

void ParserMachine::emit_recovered(std::string text) {
  events_.push_back({.kind = Kind::content, .text = std::move(text), .call_id = {}, .recovered = true});
}

void ParserMachine::emit_call_start(std::string_view name) {
  ++call_index_;
  if (options_.discard_calls) return;
  events_.push_back(
      {.kind = Kind::call_start, .text = std::string(name), .call_index = call_index_, .call_id = options_.make_call_id()});
}

void ParserMachine::emit_arguments(std::string_view text) {
  if (text.empty() || options_.discard_calls) return;
  if (!events_.empty() && events_.back().kind == Kind::call_arguments && events_.back().call_index == call_index_) {
    events_.back().text += text;
  } else {
    events_.push_back({.kind = Kind::call_arguments, .text = std::string(text), .call_index = call_index_, .call_id = {}});
  }
}

void ParserMachine::emit_call_end() {
  if (options_.discard_calls) {
    ++counters_.discarded_calls;
    return;
  }
  ++complete_calls_;
  events_.push_back({.kind = Kind::call_end, .text = {}, .call_index = call_index_, .call_id = {}});
}

void ParserMachine::emit_finish(bool length) {
  const FinishReason reason = length                ? FinishReason::length
                              : complete_calls_ > 0 ? FinishReason::tool_calls
                                                    : FinishReason::stop;
  events_.push_back({.kind = Kind::finish, .text = {}, .call_id = {}, .reason = reason});
}

OutputParser::OutputParser(std::unique_ptr<ParserMachine> machine) : machine_(std::move(machine)) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::feed_token(TokenId id) { machine_->feed_token(id); }
void OutputParser::feed_text(std::string_view bytes) { machine_->feed_text(bytes); }
void OutputParser::finish(EndReason reason) { machine_->finish(reason); }
bool OutputParser::done() const { return machine_->done(); }
bool OutputParser::complete() const { return machine_->complete(); }
bool OutputParser::in_reasoning() const { return machine_->in_reasoning(); }
bool OutputParser::in_content() const { return machine_->in_content(); }
std::vector<TokenId> OutputParser::closers() const { return machine_->closers(); }
std::vector<ChatEvent> OutputParser::take_events() { return machine_->take_events(); }
const ParserCounters& OutputParser::counters() const { return machine_->counters(); }

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::tool_calls: return "tool_calls";
  }
  return "unknown";
}

void AnswerBuilder::add(const ChatEvent& event) {
  const auto index = static_cast<size_t>(event.call_index);
  switch (event.kind) {
    case ChatEvent::Kind::reasoning: answer_.reasoning += event.text; break;
    case ChatEvent::Kind::content:
      if (event.recovered) answer_.reasoning.clear();
      answer_.content += event.text;
      break;
    case ChatEvent::Kind::call_start:
      calls_.resize(std::max(calls_.size(), index + 1));
      calls_[index].call.id = event.call_id;
      calls_[index].call.name = event.text;
      break;
    case ChatEvent::Kind::call_arguments: calls_.at(index).call.arguments += event.text; break;
    case ChatEvent::Kind::call_end: calls_.at(index).complete = true; break;
    case ChatEvent::Kind::finish:
      answer_.finish_reason = event.reason;
      answer_.finished = true;
      break;
  }
}

ChatAnswer AnswerBuilder::answer() const {
  ChatAnswer answer = answer_;
  for (const Call& call : calls_) {
    if (call.complete) answer.tool_calls.push_back(call.call);
  }
  return answer;
}

std::string random_call_id() {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::random_device source;
  std::uniform_int_distribution<size_t> pick(0, kAlphabet.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kAlphabet[pick(source)];
  return id;
}

}  // namespace weft
