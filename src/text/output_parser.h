// What a Kimi K3 model wrote, as reasoning, content and tool calls (prompt_and_api.md 3): one incremental state machine with
// two front ends.
//
//     OutputParser parser(tokenizer, {.start = prompt.start});
//     for (id of generated ids) {
//       parser.feed_token(id);
//       for (const ChatEvent& event : parser.take_events()) send(event);
//       if (parser.done()) break;
//     }
//     parser.finish(EndReason::length);  // when the budget ended the turn; harmless after done()
//
// The events do not depend on how the input was cut. Model output never throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace weft {

// Where the prompt left the model (3.4).
enum class ParserStart : uint8_t { start, think, response };

enum class EndReason : uint8_t {
  stop,    // an end token, a stop string, the end of the text
  length,  // the token budget or the context
};

enum class FinishReason : uint8_t { stop, length, tool_calls };
[[nodiscard]] std::string_view to_string(FinishReason reason);

struct ChatEvent {
  enum class Kind : uint8_t {
    reasoning,       // text
    content,         // text
    call_start,      // call_index, call_id, text = function name
    call_arguments,  // call_index, text = a fragment of the arguments' JSON text
    call_end,        // call_index: the call is complete; calls without it are dropped from a buffered answer
    finish,          // reason; the last event
  };
  Kind kind = Kind::content;
  std::string text;  // well-formed UTF-8
  int64_t call_index = -1;
  std::string call_id;
  FinishReason reason = FinishReason::stop;
  // content: the model skipped its think channel, so this text, sent as reasoning before, is the answer (3.6).
  bool recovered = false;

  friend bool operator==(const ChatEvent&, const ChatEvent&) = default;
};

// What did not go by the book; each is visible in a response.
struct ParserCounters {
  int64_t stray_markers = 0;       // control ids outside the grammar, dropped (3.5)
  int64_t recoveries = 0;          // skipped think channels (3.6)
  int64_t dropped_tail_bytes = 0;  // a held marker prefix dropped at `length` (R12)
  int64_t abandoned_calls = 0;     // calls opened and not completed
  int64_t discarded_calls = 0;     // complete calls of a turn that may not call
  int64_t reasoning_tokens = 0;    // tokens of text consumed inside THINK (3.9); id front end only

  friend bool operator==(const ParserCounters&, const ParserCounters&) = default;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; a json block that the model wrote badly is kept as it is

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// A buffered answer: the fold of the events.
struct ChatAnswer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // complete ones only
  FinishReason finish_reason = FinishReason::stop;
  bool finished = false;  // a finish event was seen

  friend bool operator==(const ChatAnswer&, const ChatAnswer&) = default;
};
// Adds events in order.
class AnswerBuilder {
 public:
  void add(const ChatEvent& event);
  [[nodiscard]] ChatAnswer answer() const;

 private:
  struct Call {
    ToolCall call;
    bool complete = false;
  };
  ChatAnswer answer_;
  std::vector<Call> calls_;
};

// "call_" and 24 random characters of [A-Za-z0-9].
[[nodiscard]] std::string random_call_id();

class OutputParser {
 public:
  struct Options {
    ParserStart start = ParserStart::start;
    bool discard_calls = false;  // ChatRequest::calls_discarded(): the tools section is parsed and nothing of it comes out
    std::function<std::string()> make_call_id = random_call_id;
  };

  // Keeps a reference to the tokenizer.
  OutputParser(const KimiTokenizer& tokenizer, Options options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // The two front ends; a stream uses one of them. With ids, text that spells a marker stays text. With text, the four
  // spellings are markers, and a suffix that may become one is held back.
  void feed_token(TokenId id);
  void feed_text(std::string_view bytes);
  // The end of the stream. Nothing happens when the turn is over already.
  void finish(EndReason reason);

  // The turn is over: its message was closed, an end token came, or finish() was called. Further input is dropped.
  [[nodiscard]] bool done() const;
  // The message was closed or an end token came; false when finish() ended the turn.
  [[nodiscard]] bool complete() const;
  // The model is inside its reasoning (or its content) and no tag is open: where stop strings do not (or do) apply.
  [[nodiscard]] bool in_reasoning() const;
  [[nodiscard]] bool in_content() const;

  // The events since the last call, neighbours of one kind joined.
  [[nodiscard]] std::vector<ChatEvent> take_events();
  [[nodiscard]] const ParserCounters& counters() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace weft
