// render(parse(x)) gives x's channels back (prompt_and_api.md 3.11), and nothing of the markup leaks (10.2).
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chat.h"
#include "text/json_value.h"
#include "text/parser_streams.h"
#include "text/text_fixture.h"
#include "text/toy_vocabulary.h"
#include "text/xtml_renderer.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;
using text_test::EventLog;
using text_test::mini;
using text_test::Numbers;

// A well-formed turn as a model writes it after the prompt's think opener.
class RandomTurn {
 public:
  explicit RandomTurn(uint64_t seed) : numbers_(seed) {
    plain(text());
    close("think");
    open("response");
    plain(text());
    close("response");
    const uint64_t calls = numbers_.below(4);
    if (calls > 0) open("tools");
    for (uint64_t i = 0; i < calls; ++i) {
      open(fmt::format("call tool=\"{}\" index=\"{}\"", attribute(), i + 1));
      if (numbers_.below(8) == 0) {
        // No object, so that it does not come back as argument elements.
        open("json type=\"object\"");
        plain("[1, " + text());
        close("json");
      } else {
        arguments();
      }
      close("call");
    }
    if (calls > 0) close("tools");
    close("message");
    segments.push_back({"<|end_of_msg|>", true});
  }

  std::vector<Segment> segments;

 private:
  void arguments() {
    for (uint64_t i = numbers_.below(4); i > 0; --i) {
      const char* literals[][2] = {{"number", "1e2"},     {"number", "-0.50"},
                                   {"boolean", "true"},   {"null", "null"},
                                   {"array", "[1,  2 ]"}, {"object", "{\"b\":[],\n \"a\": \"\\u00e9\"}"},
                                   {"object", "{}"},      {"number", "98765432109876543210"}};
      if (numbers_.below(2) == 0) {
        open(fmt::format("argument key=\"{}\" type=\"string\"", attribute()));
        plain(text());
      } else {
        const auto& [type, literal] = literals[numbers_.below(8)];
        open(fmt::format("argument key=\"{}\" type=\"{}\"", attribute(), type));
        plain(literal);
      }
      close("argument");
    }
  }
  std::string text() {
    static const std::string kParts[] = {"a",
                                         "\"",
                                         "&",
                                         "&amp;",
                                         "&quot;",
                                         "\n",
                                         " ",
                                         "\\",
                                         "😀",
                                         "é",
                                         "你",
                                         "\t",
                                         "<|",
                                         "<|open|>",
                                         "<|close|>message<|sep|>",
                                         "<|end_of_msg|>",
                                         "x=\"y\"",
                                         "{",
                                         "}",
                                         "\x01",
                                         "word ",
                                         "'",
                                         "</"};
    std::string out = "t";
    for (uint64_t i = numbers_.below(8); i > 0; --i) out += kParts[numbers_.below(std::size(kParts))];
    return out;
  }
  // Escaped as the renderer must escape it.
  std::string attribute() {
    std::string out;
    for (const char c : text()) out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
    return out;
  }
  void plain(const std::string& bytes) { segments.push_back({bytes, false}); }
  void tag(const char* marker, const std::string& header) {
    segments.push_back({marker, true});
    plain(header);
    segments.push_back({"<|sep|>", true});
  }
  void open(const std::string& header) { tag("<|open|>", header); }
  void close(const std::string& header) { tag("<|close|>", header); }

  Numbers numbers_;
};

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(RoundTrip, AReturnedAnswerRendersAsTheModelWroteIt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomTurn turn(seed);
    std::string written;
    for (const Segment& segment : turn.segments) written += segment.bytes;
    OutputParser parser = xtml_parser(mini(), {.start = ParserStart::think});
    EventLog log;
    for (const TokenId id : mini().encode(turn.segments)) {
      parser.feed_token(id);
      log.add(parser.take_events());
    }
    ASSERT_TRUE(parser.complete());
    ASSERT_EQ(parser.counters().stray_markers, 0) << written;
    const ChatAnswer answer = log.answer();
    std::string calls;
    for (const ToolCall& call : answer.tool_calls) {
      calls += fmt::format(R"({}{{"id": "{}", "type": "function", "function": {{"name": {}, "arguments": {}}}}})",
                           calls.empty() ? "" : ", ", call.id, json_string(call.name), json_string(call.arguments));
    }
    const std::string request = fmt::format(
        R"({{"messages": [{{"role": "assistant", "content": {}, "reasoning_content": {}, "tool_calls": [{}]}}],
             "add_generation_prompt": false, "thinking_effort": null}})",
        json_string(answer.content), json_string(answer.reasoning), calls);
    ASSERT_EQ(render_xtml(parse_chat_request(request)).text(),
              "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>" + written)
        << "seed " << seed;
  }
}

TEST(RoundTrip, NoMarkupLeaksFromWellFormedTurns) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomTurn turn(seed);
    // Ordinary text without any spelling, so that whatever spelling comes out has leaked.
    for (Segment& segment : turn.segments) {
      if (segment.is_control) continue;
      for (size_t at = segment.bytes.find("<|"); at != std::string::npos; at = segment.bytes.find("<|"))
        segment.bytes.replace(at, 2, "--");
    }
    std::string text;
    for (const Segment& segment : turn.segments) text += segment.bytes;
    OutputParser by_text = xtml_parser(mini(), {.start = ParserStart::think});
    OutputParser by_ids = xtml_parser(mini(), {.start = ParserStart::think});
    by_text.feed_text(text);
    for (const TokenId id : mini().encode(turn.segments)) by_ids.feed_token(id);
    EventLog log;
    log.add(by_text.take_events());
    EventLog id_log;
    id_log.add(by_ids.take_events());
    EXPECT_EQ(log.lines, id_log.lines);
    for (const std::string& line : log.lines) EXPECT_THAT(line, Not(HasSubstr("<|")));
  }
}

}  // namespace
}  // namespace weft
