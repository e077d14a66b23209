// Prints an answer as it arrives: content to standard output, tool calls there too as one JSON line each, reasoning to standard
// error when it is asked for.
#pragma once

#include <string>
#include <vector>

#include "app/terminal.h"
#include "engine/chat_session.h"

namespace weft {

class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool show_reasoning) : show_reasoning_(show_reasoning) {}

  void print(const ChatEvent& event);
  void prompt_progress(int64_t done, int64_t total) { status_.progress("prompt", done, total); }
  // Ends what is open on a terminal; `line_break`: on any standard output.
  void finish(bool line_break);

 private:
  void end_reasoning();

  bool show_reasoning_;
  StatusLine status_;
  bool in_reasoning_ = false;
  bool line_open_ = false;  // standard output is within a line
  std::vector<ToolCall> calls_;
};

}  // namespace weft
