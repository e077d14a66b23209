#include "app/answer_printer.h"

#include "engine/answer_json.h"

namespace weft {

void AnswerPrinter::print(const ChatEvent& event) {
  status_.clear();
  using Kind = ChatEvent::Kind;
  switch (event.kind) {
    case Kind::reasoning:
      if (!show_reasoning_) return;
      if (!in_reasoning_ && errors_are_terminal()) write_error_stream("\x1b[2m");
      in_reasoning_ = true;
      write_error_stream(event.text);
      return;
    case Kind::content:
      end_reasoning();
      if (event.text.empty()) return;
      write_output(event.text);
      line_open_ = !event.text.ends_with('\n');
      return;
    case Kind::call_start:
      calls_.resize(static_cast<size_t>(event.call_index) + 1);
      calls_.back().name = event.text;
      return;
    case Kind::call_arguments: calls_[static_cast<size_t>(event.call_index)].arguments += event.text; return;
    case Kind::call_end:
      end_reasoning();
      write_output(
          fmt::format("{}{}\n", line_open_ ? "\n" : "", tool_call_line(calls_[static_cast<size_t>(event.call_index)])));
      line_open_ = false;
      return;
    case Kind::finish: end_reasoning(); return;
  }
}

void AnswerPrinter::end_reasoning() {
  if (!in_reasoning_) return;
  in_reasoning_ = false;
  write_error_stream(errors_are_terminal() ? "\x1b[0m\n" : "\n");
}

void AnswerPrinter::finish(bool line_break) {
  end_reasoning();
  status_.clear();
  if (line_open_ && (line_break || output_is_terminal())) write_output("\n");
  line_open_ = false;
}

}  // namespace weft
