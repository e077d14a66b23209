#include "text/chatml_parser.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chatml_renderer.h"
#include "text/chatml_streams.h"
#include "text/json_scanner.h"
#include "text/json_value.h"
#include "text/text_fixture.h"
#include "text/toy_qwen.h"

namespace weft {
namespace {

using text_test::chatml_streams;
using text_test::EventLog;
using text_test::run_chatml;
using text_test::small_qwen;
using text_test::Stream;

EventLog run_chatml_ids(const Stream& stream, const Tokenizer& tokenizer) {
  OutputParser parser = chatml_parser(tokenizer, {.start = stream.start, .discard_calls = stream.discard_calls});
  EventLog log;
  for (const TokenId id : tokenizer.encode(stream.input, true)) {
    parser.feed_token(id);
    log.add(parser.take_events());
  }
  parser.finish(stream.end);
  log.add(parser.take_events());
  return log;
}

TEST(ChatmlParser, StreamsAsText) {
  for (const Stream& stream : chatml_streams())
    EXPECT_EQ(run_chatml(stream, small_qwen(), {}).lines, stream.events) << stream.name;
}

TEST(ChatmlParser, StreamsAsIds) {
  for (const Tokenizer* tokenizer : {&small_qwen(), &text_test::qwen()}) {
    for (const Stream& stream : chatml_streams()) {
      const auto& expected = stream.id_events.empty() ? stream.events : stream.id_events;
      EXPECT_EQ(run_chatml_ids(stream, *tokenizer).lines, expected) << stream.name;
    }
  }
}

// 10.1
TEST(ChatmlParser, EventsDoNotDependOnTheCuts) {
  for (const Stream& stream : chatml_streams()) {
    const size_t size = stream.input.size();
    for (size_t cut = 0; cut <= size; ++cut)
      ASSERT_EQ(run_chatml(stream, small_qwen(), {cut}).lines, stream.events) << stream.name << " cut at " << cut;
    for (const size_t piece : {1, 2, 3, 5, 7}) {
      std::vector<size_t> cuts;
      for (size_t at = piece; at < size; at += piece) cuts.push_back(at);
      ASSERT_EQ(run_chatml(stream, small_qwen(), cuts).lines, stream.events) << stream.name << " in pieces of " << piece;
    }
  }
}

// Mixes of markers, calls and text: the events are the same however the text is cut, and the answer is their fold.
TEST(ChatmlParser, RandomStreamsDoNotDependOnTheCuts) {
  const std::vector<std::string> words{"<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<|im_end|>",
                                       "\n",
                                       " ",
                                       "a",
                                       "{\"name\": ",
                                       "\"f\"",
                                       ", ",
                                       "\"arguments\": ",
                                       "{",
                                       "}",
                                       "\"",
                                       "\\",
                                       "<",
                                       "é",
                                       "null",
                                       "1",
                                       "}\n</tool_call>",
                                       "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"k\": "};
  text_test::Numbers numbers(11);
  for (int round = 0; round < 4000; ++round) {
    Stream stream{"random",
                  static_cast<ParserStart>(numbers.below(3)),
                  "",
                  numbers.below(2) == 0 ? EndReason::stop : EndReason::length,
                  {},
                  {},
                  numbers.below(8) == 0};
    const uint64_t length = 1 + numbers.below(14);
    for (uint64_t i = 0; i < length; ++i) stream.input += words[numbers.below(words.size())];
    stream.events = run_chatml(stream, small_qwen(), {}).lines;
    const size_t piece = 1 + numbers.below(5);
    std::vector<size_t> cuts;
    for (size_t at = 1 + numbers.below(piece); at < stream.input.size(); at += piece) cuts.push_back(at);
    ASSERT_EQ(run_chatml(stream, small_qwen(), cuts).lines, stream.events) << stream.input;
  }
}

TEST(ChatmlParser, CountsWhatDidNotGoByTheBook) {
  const Tokenizer& tokenizer = small_qwen();
  OutputParser parser = chatml_parser(tokenizer, {.start = ParserStart::think});
  for (const TokenId id : tokenizer.encode("zz")) parser.feed_token(id);
  parser.feed_token(tokenizer.control_id("<|im_start|>"));     // flagged as special: dropped
  parser.feed_token(tokenizer.control_id("<tool_response>"));  // not flagged: text
  parser.feed_token(-1);
  parser.feed_token(tokenizer.vocab_size());
  parser.feed_token(tokenizer.control_id("</think>"));
  parser.feed_token(tokenizer.control_id("</think>"));
  for (const TokenId id : tokenizer.encode("<tool_call>{\"name\": \"f\", x</tool_call>", true)) parser.feed_token(id);
  EXPECT_TRUE(parser.in_content());
  parser.feed_token(tokenizer.control_id("<|endoftext|>"));
  EXPECT_TRUE(parser.done());
  EXPECT_TRUE(parser.complete());
  EXPECT_EQ(parser.counters().stray_markers, 4);
  EXPECT_EQ(parser.counters().abandoned_calls, 1);
  EXPECT_EQ(parser.counters().reasoning_tokens, 3);
  AnswerBuilder builder;
  for (const ChatEvent& event : parser.take_events()) builder.add(event);
  EXPECT_EQ(builder.answer().reasoning, "zz<tool_response>");
  EXPECT_TRUE(builder.answer().tool_calls.empty());
}

// Fault 9
TEST(ChatmlParser, LongArgumentsStream) {
  OutputParser parser = chatml_parser(small_qwen(), {.start = ParserStart::start});
  parser.feed_text("<tool_call>\n{\"name\": \"write\", \"arguments\": {\"text\": \"");
  const auto first = parser.take_events();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].kind, ChatEvent::Kind::call_start);
  EXPECT_EQ(first[1].text, "{\"text\": \"");
  size_t pieces = 0;
  for (int i = 0; i < 100; ++i) {
    parser.feed_text(std::string(1000, 'x'));
    for (const ChatEvent& event : parser.take_events()) pieces += event.text.size() == 1000 ? 1 : 0;
  }
  EXPECT_EQ(pieces, 100U);
}

TEST(ChatmlParser, ArgumentsNestNoDeeperThanAReaderTakes) {
  for (const int depth : {kMaxJsonDepth - 1, kMaxJsonDepth}) {
    const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string("{\"a\": ") +
                             std::string(static_cast<size_t>(depth) - 1, '[') +
                             std::string(static_cast<size_t>(depth) - 1, ']') + "}}</tool_call>";
    OutputParser parser = chatml_parser(small_qwen(), {.start = ParserStart::start});
    parser.feed_text(text);
    parser.finish(EndReason::stop);
    AnswerBuilder builder;
    for (const ChatEvent& event : parser.take_events()) builder.add(event);
    EXPECT_EQ(builder.answer().tool_calls.size(), depth < kMaxJsonDepth ? 1U : 0U) << depth;
  }
}

std::string closing(std::string_view written, ParserStart start) {
  OutputParser parser = chatml_parser(small_qwen(), {.start = start});
  for (const TokenId id : small_qwen().encode(written, true)) parser.feed_token(id);
  return small_qwen().decode(parser.closers(), ControlText::all);
}

TEST(ChatmlParser, ClosesWhatIsOpen) {
  EXPECT_EQ(closing("", ParserStart::start), "<|im_end|>\n");
  EXPECT_EQ(closing("Hello", ParserStart::start), "<|im_end|>\n");
  EXPECT_EQ(closing("Hello<|im_end|>", ParserStart::start), "<|im_end|>\n");
  EXPECT_EQ(closing("It is", ParserStart::think), "\n</think>\n\n<|im_end|>\n");
  EXPECT_EQ(closing("It is\n", ParserStart::think), "</think>\n\n<|im_end|>\n");
  EXPECT_EQ(closing("a\n</think>\n\nb", ParserStart::think), "<|im_end|>\n");
  EXPECT_EQ(closing("<tool_call>\n{\"name\": \"f\"}", ParserStart::start), "\n</tool_call><|im_end|>\n");
  EXPECT_EQ(closing("<tool_call>\n{\"name\": \"f\"}\n</tool_call>", ParserStart::start), "<|im_end|>\n");
}

// 3.11: what is rendered of an answer is read as that answer.
TEST(ChatmlParser, ReadsWhatTheRendererWrites) {
  const std::vector<std::string> texts{"", "plain", "a\n\nb", "é 你 😀", "{\"a\": 1}", "<b>&amp;</b>", "x <tool> y"};
  const std::vector<std::string> arguments{"{}", "{\"a\": \"}<\\\" \\u00e9\"}", "{\"n\":1e2,\"x\":[1,{\"y\":null}]}",
                                           "{\"s\": \"line\\nbreak\"}"};
  constexpr ChatTemplate kThinking{.opens_think = true, .can_turn_off = false, .keeps_reasoning = true};
  text_test::Numbers numbers(5);
  for (int round = 0; round < 300; ++round) {
    ChatRequest request = parse_chat_request(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]})");
    ChatMessage message = request.messages.back();
    message.reasoning = texts[numbers.below(texts.size())];
    message.content = {texts[numbers.below(texts.size())]};
    const uint64_t calls = numbers.below(3);
    for (uint64_t i = 0; i < calls; ++i) {
      RequestToolCall& call = message.tool_calls.emplace_back();
      call.name = fmt::format("f{}", i);
      call.arguments = arguments[numbers.below(arguments.size())];
    }
    request.messages.back() = message;
    request.add_generation_prompt = false;
    const std::vector<Segment> whole = render_chatml(request, kThinking).segments;
    request.messages.pop_back();
    request.add_generation_prompt = true;
    const std::string prompt = render_chatml(request, kThinking).text();
    std::vector<TokenId> ids;
    std::string before;
    for (const Segment& segment : whole) {
      const size_t room = prompt.size() - std::min(prompt.size(), before.size());
      before += segment.bytes;
      if (segment.bytes.size() <= room) continue;
      for (const TokenId id : small_qwen().encode(Segment{segment.bytes.substr(room), segment.is_control})) ids.push_back(id);
    }
    OutputParser parser = chatml_parser(small_qwen(), {.start = ParserStart::think});
    for (const TokenId id : ids) parser.feed_token(id);
    AnswerBuilder builder;
    for (const ChatEvent& event : parser.take_events()) builder.add(event);
    const ChatAnswer answer = builder.answer();
    EXPECT_TRUE(parser.complete());
    EXPECT_EQ(answer.reasoning, *message.reasoning);
    EXPECT_EQ(answer.content, message.content.front());
    ASSERT_EQ(answer.tool_calls.size(), calls);
    for (size_t i = 0; i < calls; ++i) {
      EXPECT_EQ(answer.tool_calls[i].name, message.tool_calls[i].name);
      EXPECT_EQ(answer.tool_calls[i].arguments, *message.tool_calls[i].arguments);
    }
  }
}

// The scanner against the reader of whole texts.
TEST(JsonScanner, AcceptsWhatTheReaderAccepts) {
  const std::string_view alphabet = "{}[]\":,\\u0019.eE+-ntrf asl\n\x01";
  text_test::Numbers numbers(9);
  int64_t accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    const uint64_t length = 1 + numbers.below(10);
    static const std::vector<std::string> words{"{",  "}",      "[",    "]",    "\"a\"", "\"b\\n\\u00e9\"", ":", ",", "1",
                                                "-0", "0.5e+3", "true", "null", " ",     "\"k\":"};
    for (uint64_t i = 0; i < length; ++i)
      text +=
          numbers.below(6) == 0 ? std::string(1, alphabet[numbers.below(alphabet.size())]) : words[numbers.below(words.size())];
    text += '\n';  // so that a number at the top has an end
    JsonScanner scanner;
    bool good = true;
    for (const char c : text) good = good && scanner.step(c);
    good = good && scanner.complete();
    const bool wanted = try_parse_json_value(text, {.duplicate_keys = true}).has_value();
    ASSERT_EQ(good, wanted) << text;
    accepted += wanted ? 1 : 0;
  }
  EXPECT_GT(accepted, 5000);
}

}  // namespace
}  // namespace weft
