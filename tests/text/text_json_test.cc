#include "text/text_json.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/text_fixture.h"

namespace weft {
namespace {

using testing::HasSubstr;

const ChatFormat& format() {
  static const ChatFormat loaded = ChatFormat::load(text_test::mini_folder());
  return loaded;
}

template <class Body>
std::string refusal(Body&& body) {
  try {
    (void)body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(TextJson, Encode) {
  EXPECT_EQ(text_encode_json(format(), R"({"text": "Hello world"})"), R"({"ids": [5472, 3028], "count": 2})");
  EXPECT_EQ(text_encode_json(format(), R"({"text": "[BOS]a[EOS]", "allow_special": true})"),
            R"({"ids": [5888, 64, 5889], "count": 3})");
  EXPECT_EQ(text_encode_json(format(), R"({"segments": [["<|open|>", true], ["Hello", false], [" world", false]]})"),
            R"({"ids": [5891, 5472, 3028], "count": 3})");
  EXPECT_THAT(refusal([] { return text_encode_json(format(), "{}"); }),
              HasSubstr("[text encode] wanted one of 'text' and 'segments', found neither"));
  EXPECT_THAT(refusal([] { return text_encode_json(format(), "[]"); }), HasSubstr("wanted an object"));
  EXPECT_THAT(refusal([] { return text_encode_json(format(), R"({"segments": [["x", true]]})"); }),
              HasSubstr("segments[0]: wanted the name of a control token"));
  EXPECT_THAT(refusal([] { return text_encode_json(format(), R"({"segments": ["x"]})"); }), HasSubstr("segments[0]"));
  EXPECT_THAT(refusal([] { return text_encode_json(format(), R"({"text": 1})"); }),
              HasSubstr("text: wanted a string, found a number"));
}

TEST(TextJson, Decode) {
  EXPECT_EQ(text_decode_json(format(), R"({"ids": [5888, 5472, 5891, 3028]})"), R"({"text": "Hello world"})");
  EXPECT_EQ(text_decode_json(format(), R"({"ids": [5888, 5472, 5891], "control": "unflagged"})"),
            R"({"text": "Hello<|open|>"})");
  EXPECT_EQ(text_decode_json(format(), R"({"ids": [5888, 5472, 5891], "control": "all"})"),
            R"({"text": "[BOS]Hello<|open|>"})");
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": [6144]})"); }),
              HasSubstr("ids[0]: wanted an id in [0, 6144), found 6144"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": [1.5]})"); }),
              HasSubstr("ids[0]: wanted an integer, found 1.5"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": ["x"]})"); }),
              HasSubstr("ids[0]: wanted an integer, found a string"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": [], "control": "x"})"); }),
              HasSubstr("control: wanted one of none, unflagged, all"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), "{}"); }), HasSubstr("ids: wanted an array"));
}

TEST(TextJson, RenderGivesWhatTheReferenceGives) {
  for (const Json& test : text_test::xtml_cases()["render"]) {
    Json request = {{"messages", test["messages"]}, {"options", test["options"]}, {"tools", test["tools"]}};
    const Json result = Json::parse(text_render_json(format(), request.dump()));
    EXPECT_EQ(result["text"], test["text"]) << test["name"];
    EXPECT_EQ(result["segments"], test["segments"]) << test["name"];
    EXPECT_EQ(result["ids"], test["ids"]) << test["name"];
    EXPECT_EQ(result["count"], test["ids"].size()) << test["name"];
  }
  const Json result =
      Json::parse(text_render_json(format(), R"({"messages": [{"role": "user"}], "reasoning_effort": "medium"})"));
  EXPECT_EQ(result["start"], "think");
  EXPECT_EQ(result["notes"].size(), 1u);
}

TEST(TextJson, ParseGivesWhatTheReferenceGives) {
  for (const Json& test : text_test::xtml_cases()["parse"]) {
    const Json input = {
        {"ids", test["ids"]}, {"start", test["thinking"].get<bool>() ? "think" : "response"}, {"end", "length"}};
    const Json result = Json::parse(text_parse_json(format(), input.dump()));
    const Json& expect = test["expect"];
    EXPECT_EQ(result["reasoning_content"], expect["reasoning_content"]) << test["name"];
    if (result["content"].is_null()) {
      EXPECT_EQ(expect["content"], "") << test["name"];
      EXPECT_FALSE(expect["tool_calls"].empty());
    } else {
      EXPECT_EQ(result["content"], expect["content"]) << test["name"];
    }
    EXPECT_EQ(result["complete"], expect["complete"]) << test["name"];
    ASSERT_EQ(result["tool_calls"].size(), expect["tool_calls"].size());
    for (size_t i = 0; i < result["tool_calls"].size(); ++i)
      EXPECT_EQ(result["tool_calls"][i]["arguments"], expect["tool_calls"][i]["arguments"]);
  }
}

TEST(TextJson, UnknownFieldsAreRefused) {
  EXPECT_THAT(refusal([] { return text_encode_json(format(), R"({"text": "a", "allow_specail": true})"); }),
              HasSubstr("wanted only the fields text, segments, allow_special, found 'allow_specail'"));
  EXPECT_THAT(refusal([] { return text_encode_json(format(), R"({"segments": [], "allow_special": true})"); }),
              HasSubstr("allow_special"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": [5472], "count": 2})"); }), HasSubstr("count: wanted"));
  EXPECT_THAT(refusal([] { return text_decode_json(format(), R"({"ids": [], "contrl": "all"})"); }), HasSubstr("'contrl'"));
  EXPECT_THAT(refusal([] { return text_parse_json(format(), R"({"text": "a", "strat": "think"})"); }), HasSubstr("'strat'"));
  EXPECT_THAT(refusal([] { return text_parse_json(format(), R"({"ids": [], "pieces": 1})"); }), HasSubstr("pieces"));
}

TEST(TextJson, RenderNotesWhatItIgnores) {
  const auto notes = [](std::string_view request) { return Json::parse(text_render_json(format(), request))["notes"].dump(); };
  EXPECT_EQ(notes(R"({"messages": [{"role": "user", "content": "a", "name": null, "refusal": null, "annotations": []}],
                      "temperature": 0, "stop": "x", "model": "m"})"),
            "[]");
  EXPECT_EQ(notes(R"({"messages": [{"role": "user", "content": "a", "colour": 1}, {"role": "user", "colour": 2}],
                      "tools_choice": "auto"})"),
            R"j(["'messages[].colour' is not a known field and was ignored (2 times)",)j"
            R"("'tools_choice' is not a known field and was ignored"])");
  EXPECT_EQ(notes(R"({"messages": [{"role": "user", "tool_calls": [{"name": "f"}]},
                                   {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1}]}]})"),
            R"(["'messages[].tool_calls' is not a known field and was ignored",)"
            R"("'messages[].content[].cache_control' is not a known field and was ignored"])");
  for (const char* field :
       {R"("options": {"temperature": 1})", R"("reasoning": {"effort": "low", "max_tokens": 3})",
        R"("thinking": {"type": "enabled", "budget_tokens": 3})", R"("chat_template_kwargs": {"thinkng": false})"}) {
    EXPECT_THAT(notes(fmt::format(R"({{"messages": [{{"role": "user"}}], {}}})", field)), HasSubstr("was ignored")) << field;
  }
}

TEST(TextJson, FunctionsNeedNames) {
  const auto render = [](std::string_view tool) {
    return text_render_json(format(), fmt::format(R"({{"messages": [{{"role": "user"}}], "tools": [{}]}})", tool));
  };
  for (const char* tool :
       {R"({"type": "function", "function": {}})", R"({"type": "function"})", "{}", R"({"function": {"name": ""}})",
        R"({"function": {"name": null}})", R"({"function": {"name": 3}})"}) {
    EXPECT_THAT(refusal([&] { return render(tool); }), HasSubstr("tools[0].function.name")) << tool;
  }
  EXPECT_THAT(refusal([&] { return render(R"({"type": "function", "function": 3})"); }), HasSubstr("tools[0].function"));
  EXPECT_NE(render(R"({"type": "function", "function": {"name": "f"}})"), "");
  EXPECT_NE(render(R"({"name": "f"})"), "");
}

TEST(TextJson, ParseTextInPieces) {
  const std::string text = "<|open|>response<|sep|>391<|close|>response<|sep|><|close|>message<|sep|>";
  for (int pieces = 1; pieces < 80; ++pieces) {
    const Json result =
        Json::parse(text_parse_json(format(), Json{{"text", text}, {"start", "response"}, {"pieces", pieces}}.dump()));
    EXPECT_EQ(result["content"], "391");
    EXPECT_EQ(result["finish_reason"], "stop");
    EXPECT_EQ(result["complete"], true);
  }
  const Json held = Json::parse(text_parse_json(format(), R"({"text": "a<|op", "start": "response", "end": "length"})"));
  EXPECT_EQ(held["content"], "a");
  EXPECT_EQ(held["counters"]["dropped_tail_bytes"], 4);
  EXPECT_THAT(refusal([] { return text_parse_json(format(), R"({"text": "", "ids": []})"); }), HasSubstr("found both"));
  EXPECT_THAT(refusal([] { return text_parse_json(format(), R"({"text": "", "pieces": 0})"); }),
              HasSubstr("pieces: wanted at least 1"));
  EXPECT_THAT(refusal([] { return text_parse_json(format(), R"({"text": "", "start": "x"})"); }),
              HasSubstr("start: wanted one of"));
}

TEST(ChatFormat, PromptAndParserBelongTogether) {
  ChatFormat loaded = ChatFormat::load(text_test::mini_folder());
  const ChatPrompt prompt = loaded.render(R"({"messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(prompt.start, ParserStart::think);
  EXPECT_TRUE(prompt.thinking);
  EXPECT_TRUE(prompt.discard_calls);  // no tools were declared
  OutputParser parser = loaded.parser(prompt);
  const ChatFormat moved = std::move(loaded);
  for (const TokenId id : moved.tokenizer().encode("r")) parser.feed_token(id);
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_FALSE(moved.render(R"({"messages": [{"role": "user"}], "tools": [{"name": "f"}]})").discard_calls);
  EXPECT_TRUE(
      moved.render(R"({"messages": [{"role": "user"}], "tools": [{"name": "f"}], "tool_choice": "none"})").discard_calls);
  EXPECT_FALSE(moved.render(R"({"messages": [{"role": "system", "tools": [{"name": "f"}]}]})").discard_calls);
}

}  // namespace
}  // namespace weft
