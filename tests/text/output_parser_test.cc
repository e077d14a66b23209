#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/json_value.h"
#include "text/parser_streams.h"
#include "text/text_fixture.h"
#include "text/xtml_markers.h"
#include "text/xtml_parser.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using text_test::EventLog;
using text_test::mini;
using text_test::run_ids;
using text_test::run_text;
using text_test::shifted;
using text_test::spelled;
using text_test::Stream;
using text_test::streams;
using text_test::xtml_cases;

TEST(OutputParser, StreamsAsText) {
  for (const Stream& stream : streams()) EXPECT_EQ(run_text(stream, mini(), {}).lines, stream.events) << stream.name;
}

TEST(OutputParser, StreamsAsIds) {
  for (const Stream& stream : streams()) {
    const auto& expected = stream.id_events.empty() ? stream.events : stream.id_events;
    EXPECT_EQ(run_ids(stream, mini()).lines, expected) << stream.name;
  }
}

// R15: nothing depends on which ids the checkpoint gives to its control tokens.
TEST(OutputParser, StreamsAsIdsOfShiftedControlTokens) {
  for (const int shift : {1, 100, 255}) {
    for (const Stream& stream : streams()) {
      const auto& expected = stream.id_events.empty() ? stream.events : stream.id_events;
      EXPECT_EQ(run_ids(stream, shifted(shift)).lines, expected) << stream.name << " shifted by " << shift;
    }
  }
}

// 10.1
TEST(OutputParser, EventsDoNotDependOnTheCuts) {
  for (const Stream& stream : streams()) {
    const size_t size = spelled(stream.input).size();
    const EventLog whole = run_text(stream, mini(), {});
    for (size_t cut = 0; cut <= size; ++cut) {
      const EventLog log = run_text(stream, mini(), {cut});
      ASSERT_EQ(log.lines, stream.events) << stream.name << " cut at " << cut;
    }
    for (const size_t piece : {1, 2, 3, 5, 7}) {
      std::vector<size_t> cuts;
      for (size_t at = piece; at < size; at += piece) cuts.push_back(at);
      ASSERT_EQ(run_text(stream, mini(), cuts).lines, stream.events) << stream.name << " in pieces of " << piece;
    }
  }
}

// Each structural marker cut at every two places.
TEST(OutputParser, MarkersSplitOverTwoSteps) {
  for (const std::string_view marker : kXtmlMarkers) {
    Stream stream{
        std::string(marker), ParserStart::response, "ab" + std::string(marker) + "think<|sep|>cd", EndReason::stop, {}, {}};
    const size_t size = stream.input.size();
    stream.events = run_text(stream, mini(), {}).lines;
    for (size_t first = 0; first <= size; ++first) {
      for (size_t second = first; second <= size; ++second)
        ASSERT_EQ(run_text(stream, mini(), {first, second}).lines, stream.events)
            << marker << " at " << first << ", " << second;
    }
  }
  const Stream answer{"answer",
                      ParserStart::response,
                      "<|open|>response<|sep|>391<|close|>response<|sep|><|close|>message<|sep|>",
                      EndReason::stop,
                      {},
                      {}};
  for (size_t first = 0; first <= answer.input.size(); ++first) {
    for (size_t second = first; second <= answer.input.size(); ++second)
      ASSERT_THAT(run_text(answer, mini(), {first, second}).lines, ElementsAre("C391", "Fstop"));
  }
}

TEST(OutputParser, HoldsBackNoMoreThanAMarkersPrefix) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response});
  const auto fed = [&](std::string_view text) {
    parser.feed_text(text);
    std::string out;
    for (const ChatEvent& event : parser.take_events()) out += event.text;
    return out;
  };
  EXPECT_EQ(fed("a<|"), "a");
  EXPECT_EQ(fed("b"), "<|b");
  EXPECT_EQ(fed("a<"), "a");
  EXPECT_EQ(fed("|close"), "");
  EXPECT_EQ(fed("d|>"), "<|closed|>");
  EXPECT_EQ(fed("<|end_of_msg|"), "");
  EXPECT_EQ(fed("<"), "<|end_of_msg|");
  EXPECT_EQ(fed("x"), "<x");
}

TEST(OutputParser, HeldTailIsTextAtANormalEndAndDroppedAtLength) {
  for (const std::string tail : {"<", "<|", "<|op", "<|end_of_msg|"}) {
    OutputParser stopped = xtml_parser(mini(), {.start = ParserStart::response});
    stopped.feed_text(fmt::format("a{}", tail));
    stopped.finish(EndReason::stop);
    EXPECT_EQ(stopped.take_events()[0].text, fmt::format("a{}", tail));
    EXPECT_EQ(stopped.counters().dropped_tail_bytes, 0);
    OutputParser cut = xtml_parser(mini(), {.start = ParserStart::response});
    cut.feed_text(fmt::format("a{}", tail));
    cut.finish(EndReason::length);
    EXPECT_EQ(cut.take_events()[0].text, "a");
    EXPECT_EQ(cut.counters().dropped_tail_bytes, static_cast<int64_t>(tail.size()));
  }
}

TEST(OutputParser, ReferenceCases) {
  ASSERT_GE(xtml_cases()["parse"].size(), 21u);
  for (const Json& test : xtml_cases()["parse"]) {
    OutputParser parser =
        xtml_parser(mini(), {.start = test["thinking"].get<bool>() ? ParserStart::think : ParserStart::response});
    EventLog log;
    for (const Json& id : test["ids"]) {
      parser.feed_token(id.get<TokenId>());
      log.add(parser.take_events());
    }
    parser.finish(EndReason::length);
    log.add(parser.take_events());
    const Json& expect = test["expect"];
    const ChatAnswer answer = log.answer();
    EXPECT_EQ(answer.reasoning, expect["reasoning_content"].get<std::string>()) << test["name"];
    EXPECT_EQ(answer.content, expect["content"].get<std::string>()) << test["name"];
    EXPECT_EQ(parser.complete(), expect["complete"].get<bool>()) << test["name"];
    ASSERT_EQ(answer.tool_calls.size(), expect["tool_calls"].size()) << test["name"];
    for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
      EXPECT_EQ(answer.tool_calls[i].name, expect["tool_calls"][i]["name"].get<std::string>());
      EXPECT_EQ(answer.tool_calls[i].arguments, expect["tool_calls"][i]["arguments"].get<std::string>());
    }
    // The pieces are what the ids say.
    std::vector<Segment> segments;
    for (const Json& piece : test["pieces"]) segments.push_back({piece[0].get<std::string>(), piece[1].get<bool>()});
    EXPECT_EQ(mini().encode(segments), text_test::ids_of(test["ids"])) << test["name"];
  }
}

ChatAnswer answer_of(const Stream& stream) { return run_text(stream, mini(), {}).answer(); }

TEST(OutputParser, BufferedAnswers) {
  for (const Stream& stream : streams()) {
    const ChatAnswer answer = answer_of(stream);
    EXPECT_TRUE(answer.finished) << stream.name;
    for (const ToolCall& call : answer.tool_calls) EXPECT_FALSE(call.name.empty());
  }
  const auto named = [](const std::string& name) {
    for (const Stream& stream : streams()) {
      if (stream.name == name) return answer_of(stream);
    }
    throw std::out_of_range(name);
  };
  EXPECT_EQ(named("S7").reasoning, "");
  EXPECT_EQ(named("S7").content, "Paris");
  EXPECT_THAT(named("S10").tool_calls, IsEmpty());
  ASSERT_EQ(named("S13").tool_calls.size(), 1u);
  EXPECT_EQ(named("S13").tool_calls[0].name, "b");
  EXPECT_EQ(named("S4").tool_calls[0].arguments, "{\"port\": \"Barry \\\"2\\\"\\n\", \"hours\": 1e1}");
}

TEST(OutputParser, CountsWhatDidNotGoByTheBook) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::think});
  const auto feed = [&](std::string_view input) {
    for (const TokenId id : mini().encode(text_test::segments_of(input))) parser.feed_token(id);
  };
  feed("Hello world⟨b⟩ again");
  parser.feed_token(mini().control_id("<|media_pad|>"));
  parser.feed_token(mini().vocab_size());
  parser.feed_token(-1);
  const auto counted = static_cast<int64_t>(mini().encode("Hello world").size() + mini().encode(" again").size());
  EXPECT_EQ(parser.counters().reasoning_tokens, counted);
  EXPECT_EQ(parser.counters().stray_markers, 4);
  EXPECT_TRUE(parser.in_reasoning());
  feed("⟨/response⟩");
  EXPECT_EQ(parser.counters().recoveries, 1);
  feed("⟨tools⟩⟨call tool=\"a\"⟩⟨argument key=\"x\"⟩");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_FALSE(parser.done());
  parser.finish(EndReason::length);
  EXPECT_EQ(parser.counters().abandoned_calls, 1);
  EXPECT_TRUE(parser.done());
  EXPECT_FALSE(parser.complete());
}

// Whatever a value nests, the arguments are JSON that a reader takes.
TEST(OutputParser, ForeignIdsInsideATagAreDropped) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::think});
  parser.feed_token(mini().control_id("<|open|>"));
  for (const TokenId id : {-1, mini().vocab_size(), mini().control_id("<|media_pad|>")}) parser.feed_token(id);
  for (const TokenId id : mini().encode("response")) parser.feed_token(id);
  parser.feed_token(mini().control_id("<|sep|>"));
  EXPECT_TRUE(parser.in_content());
  EXPECT_EQ(parser.counters().stray_markers, 3);
  EXPECT_EQ(mini().decode(parser.closers(), ControlText::all),
            "<|close|>response<|sep|><|close|>think<|sep|><|close|>message<|sep|><|end_of_msg|>");
}

TEST(OutputParser, ArgumentsNestNoDeeperThanAReaderTakes) {
  for (const auto& [depth, kept] : {std::pair(kMaxJsonDepth - 1, true), std::pair(kMaxJsonDepth, false)}) {
    const auto levels = static_cast<size_t>(depth);
    OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response});
    parser.feed_text(spelled(fmt::format("⟨tools⟩⟨call tool=\"a\"⟩⟨argument key=\"k\" type=\"array\"⟩{}{}⟨/argument⟩⟨/call⟩",
                                         std::string(levels, '['), std::string(levels, ']'))));
    EventLog log;
    log.add(parser.take_events());
    const auto calls = log.answer().tool_calls;
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_TRUE(try_parse_json_value(calls[0].arguments)) << depth;
    EXPECT_EQ(calls[0].arguments.starts_with("{\"k\": ["), kept) << depth;
  }
}

TEST(OutputParser, CountsDiscardedCalls) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response, .discard_calls = true});
  parser.feed_text(spelled("⟨tools⟩⟨call tool=\"a\"⟩⟨/call⟩⟨call tool=\"b\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩"));
  EXPECT_EQ(parser.counters().discarded_calls, 2);
}

TEST(OutputParser, TheOpenerOfAnotherTurnEndsThisOne) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response});
  parser.feed_text(spelled("a⟨/response⟩⟨message role=\"user\"⟩"));
  EXPECT_TRUE(parser.done());
  EXPECT_TRUE(parser.complete());
}

TEST(OutputParser, HalfACharacterOfAnAbandonedArgumentIsDropped) {
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response});
  parser.feed_text(spelled("⟨tools⟩⟨call tool=\"a\"⟩⟨argument key=\"k\"⟩v"));
  parser.feed_text("\xF0\x9F");
  parser.feed_text(spelled("⟨call tool=\"b\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩"));
  EventLog log;
  log.add(parser.take_events());
  EXPECT_THAT(log.lines, ElementsAre("B0a", "A0{\"k\": \"v", "B1b", "A1{}", "E1", "Ftool_calls"));
}

// Fault 9: a long string argument streams, and the call is announced before any of it.
TEST(OutputParser, LongArgumentsStream) {
  const std::string body(100'000, 'x');
  OutputParser parser = xtml_parser(mini(), {.start = ParserStart::response});
  std::vector<ChatEvent> events;
  for (const TokenId id :
       mini().encode(text_test::segments_of("⟨tools⟩⟨call tool=\"write\"⟩⟨argument key=\"t\" type=\"string\"⟩" + body))) {
    parser.feed_token(id);
    for (ChatEvent& event : parser.take_events()) events.push_back(std::move(event));
  }
  ASSERT_GT(events.size(), 10u);
  EXPECT_EQ(events[0].kind, ChatEvent::Kind::call_start);
  EXPECT_EQ(events[0].text, "write");
  size_t bytes = 0;
  for (const ChatEvent& event : events) bytes += event.kind == ChatEvent::Kind::call_arguments ? event.text.size() : 0;
  EXPECT_EQ(bytes, body.size() + std::string("{\"t\": \"").size());
}

TEST(OutputParser, AHeaderThatNeverEndsIsText) {
  const std::string text = "a<|open|>" + std::string(9'000, 'x') + "⟨/response⟩⟨/message⟩";
  const Stream stream{"long header", ParserStart::response, text, EndReason::stop, {}, {}};
  EXPECT_THAT(run_text(stream, mini(), {}).lines, ElementsAre("Ca<|open|>" + std::string(9'000, 'x'), "Fstop"));
  for (const size_t cut : {8'200, 8'201, 8'202, 8'203, 8'999})
    EXPECT_EQ(run_text(stream, mini(), {cut}).lines, run_text(stream, mini(), {}).lines);
  // By ids the first 8 KiB are the header that is dropped.
  EXPECT_THAT(run_ids(stream, mini()).lines, ElementsAre("Ca" + std::string(9'000 - 8'192, 'x'), "Fstop"));
}

// 10.6: half a character does not reach the next channel.
TEST(OutputParser, HalfCharactersStayInTheirChannel) {
  const std::string character = "\xF0\x9F\x98\x80";
  for (size_t half = 1; half < 4; ++half) {
    const std::string head = character.substr(0, half);
    const std::string tail = character.substr(half);
    std::string tail_text;
    for (size_t i = 0; i < tail.size(); ++i) tail_text += "\xEF\xBF\xBD";
    OutputParser parser = xtml_parser(mini(), {.start = ParserStart::think});
    EventLog log;
    const auto feed = [&](const std::string& bytes) {
      for (const char c : bytes) {
        parser.feed_text(std::string_view(&c, 1));
        log.add(parser.take_events());
      }
    };
    feed("a" + head + "<|close|>think<|sep|><|open|>response<|sep|>" + tail + "b" + head);
    parser.finish(EndReason::stop);
    log.add(parser.take_events());
    EXPECT_THAT(log.lines, ElementsAre("Ra\xEF\xBF\xBD", "C" + tail_text + "b\xEF\xBF\xBD", "Fstop"));
    // The same by ids of single bytes.
    OutputParser by_ids = xtml_parser(mini(), {.start = ParserStart::think});
    EventLog id_log;
    const auto feed_bytes = [&](const std::string& bytes) {
      for (const char c : bytes) {
        for (TokenId id = 0; id < 256; ++id) {
          if (mini().token_bytes(id) == std::string_view(&c, 1)) by_ids.feed_token(id);
        }
        id_log.add(by_ids.take_events());
      }
    };
    feed_bytes("a" + head);
    for (const TokenId id : mini().encode(text_test::segments_of("⟨/think⟩⟨response⟩"))) by_ids.feed_token(id);
    feed_bytes(tail + "b" + head);
    by_ids.finish(EndReason::length);
    id_log.add(by_ids.take_events());
    EXPECT_THAT(id_log.lines, ElementsAre("Ra\xEF\xBF\xBD", "C" + tail_text + "b\xEF\xBF\xBD", "Flength"));
  }
}

TEST(OutputParser, CallIdsComeFromTheCaller) {
  int made = 0;
  OutputParser parser =
      xtml_parser(mini(), {.start = ParserStart::response, .make_call_id = [&] { return fmt::format("id{}", made++); }});
  parser.feed_text(spelled("⟨tools⟩⟨call tool=\"a\"⟩⟨/call⟩⟨call tool=\"b\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩"));
  EventLog log;
  log.add(parser.take_events());
  EXPECT_EQ(log.answer().tool_calls[0].id, "id0");
  EXPECT_EQ(log.answer().tool_calls[1].id, "id1");
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(random_call_id());
  EXPECT_EQ(ids.size(), 100u);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 29u);
    EXPECT_EQ(id.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
