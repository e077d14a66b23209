// What a model wrote, as reasoning, content and tool calls (prompt_and_api.md 3, 4.5): one incremental state machine for each
// format (xtml_parser.h, chatml_parser.h), with two front ends.
//
//     OutputParser parser = format.parser(prompt);
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

// Where the prompt left the model (3.4, 4.5): at the beginning of its turn, inside its reasoning, inside its answer.
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
  int64_t stray_markers = 0;       // markers outside the grammar, dropped (3.5, 4.5)
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

struct ParserOptions {
  ParserStart start = ParserStart::start;
  bool discard_calls = false;  // ChatRequest::calls_discarded(): calls are read and nothing of them comes out
  std::function<std::string()> make_call_id = random_call_id;
};

class ParserMachine;

class OutputParser {
 public:
  explicit OutputParser(std::unique_ptr<ParserMachine> machine);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // The two front ends; a stream uses one of them. With ids, text that spells a marker stays text. With text, the spellings are
  // markers, and a suffix that may become one is held back.
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
  // The ids that make a whole turn of those that were fed, so that another message may follow: what closes what is open, and
  // the end token with what stands behind it. An end token that was fed counts as one that was not. For output that was well
  // formed up to the end, tokens and closers together are the tokens of the rendered turn.
  [[nodiscard]] std::vector<TokenId> closers() const;

  // The events since the last call, neighbours of one kind joined.
  [[nodiscard]] std::vector<ChatEvent> take_events();
  [[nodiscard]] const ParserCounters& counters() const;

 private:
  std::unique_ptr<ParserMachine> machine_;
};

}  // namespace weft
