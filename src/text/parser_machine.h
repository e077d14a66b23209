// What the parsers of the formats share: the events that come out, and what became of the turn.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/output_parser.h"

namespace weft {

// The functions that OutputParser has, by the same names.
class ParserMachine {
 public:
  explicit ParserMachine(ParserOptions options) : options_(std::move(options)) {}
  virtual ~ParserMachine() = default;
  ParserMachine(const ParserMachine&) = delete;
  ParserMachine& operator=(const ParserMachine&) = delete;

  virtual void feed_token(TokenId id) = 0;
  virtual void feed_text(std::string_view bytes) = 0;
  virtual void finish(EndReason reason) = 0;
  [[nodiscard]] virtual bool done() const = 0;
  [[nodiscard]] virtual bool in_reasoning() const = 0;
  [[nodiscard]] virtual bool in_content() const = 0;
  [[nodiscard]] virtual std::vector<TokenId> closers() const = 0;

  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] std::vector<ChatEvent> take_events() { return std::exchange(events_, {}); }
  [[nodiscard]] const ParserCounters& counters() const { return counters_; }

 protected:
  using Kind = ChatEvent::Kind;

  // Reasoning or content.
  void emit(Kind kind, std::string_view text);
  void emit_recovered(std::string text);
  // Calls are numbered in the order in which they open; these three are about the last one. With ParserOptions::discard_calls
  // nothing comes out.
  void emit_call_start(std::string_view name);
  void emit_arguments(std::string_view text);
  void emit_call_end();
  void emit_finish(bool length);

  [[nodiscard]] const ParserOptions& options() const { return options_; }

  ParserCounters counters_;
  bool complete_ = false;

 private:
  ParserOptions options_;
  std::vector<ChatEvent> events_;
  int64_t call_index_ = -1;
  int64_t complete_calls_ = 0;
};

}  // namespace weft
