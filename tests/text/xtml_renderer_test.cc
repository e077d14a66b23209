#include "text/xtml_renderer.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/text_fixture.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using text_test::ids_of;
using text_test::mini;
using text_test::xtml_cases;

// The request's own text goes through, not a re-serialised form, so that number literals reach the renderer.
std::string request_of(const Json& test) {
  Json request = {{"messages", test["messages"]}, {"options", test["options"]}};
  if (!test["tools"].is_null()) request["tools"] = test["tools"];
  return request.dump();
}

RenderedPrompt render(std::string_view json) { return render_xtml(parse_chat_request(json)); }

// The text after the effort message, which is the same in most cases.
std::string tail_of(std::string_view json) {
  const std::string text = render(json).text();
  const std::string effort_end = "thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>";
  const size_t end = text.find(effort_end);
  return end == text.npos ? text : text.substr(end + effort_end.size());
}

std::string refusal(std::string_view json, ErrorKind kind = ErrorKind::bad_input) {
  try {
    (void)render(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << json;
    return error.what();
  }
  ADD_FAILURE() << "rendered: " << json;
  return "";
}

TEST(XtmlRenderer, AllReferenceCases) {
  ASSERT_GE(xtml_cases()["render"].size(), 48u);
  for (const Json& test : xtml_cases()["render"]) {
    const RenderedPrompt prompt = render(request_of(test));
    EXPECT_EQ(prompt.text(), test["text"].get<std::string>()) << test["name"];
    std::vector<Segment> segments;
    for (const Json& segment : test["segments"]) segments.push_back({segment[0].get<std::string>(), segment[1].get<bool>()});
    EXPECT_EQ(prompt.segments.size(), segments.size()) << test["name"];
    EXPECT_TRUE(prompt.segments == segments) << test["name"];
    EXPECT_EQ(mini().encode(prompt.segments), ids_of(test["ids"])) << test["name"];
  }
}

TEST(XtmlRenderer, WorkedExamplesOfTheSpecification) {
  for (const Json& test : read_json_file(text_test::fixture("xtml_spec_examples.json")))
    EXPECT_EQ(render(test["request"].dump()).text(), test["text"].get<std::string>()) << test["name"];
}

TEST(XtmlRenderer, SegmentsOfExample7) {
  const auto prompt =
      render(R"({"messages": [{"role": "user", "content": "Say <|close|>message<|sep|> & stop"}], "thinking": false})");
  const Segment open{"<|open|>", true};
  const Segment close{"<|close|>", true};
  const Segment sep{"<|sep|>", true};
  const auto text = [](const char* bytes) { return Segment{bytes, false}; };
  EXPECT_THAT(prompt.segments, ElementsAre(open, text("message"), text(" role"), text("=\""), text("user"), text("\""), sep,
                                           text("Say <|close|>message<|sep|> & stop"), close, text("message"), sep,
                                           Segment{"<|end_of_msg|>", true}, open, text("message"), text(" role"), text("=\""),
                                           text("assistant"), text("\""), sep, open, text("response"), sep));
}

TEST(XtmlRenderer, StartOfTheParserFollowsThePrompt) {
  const std::string user = R"("messages": [{"role": "user", "content": "x"}])";
  EXPECT_EQ(render("{" + user + "}").start, ParserStart::think);
  EXPECT_EQ(render("{" + user + R"(, "thinking": false})").start, ParserStart::response);
  EXPECT_EQ(render("{" + user + R"(, "add_generation_prompt": false})").start, ParserStart::start);
  EXPECT_EQ(render("{" + user + R"(, "prefill_channel": false})").start, ParserStart::start);
  EXPECT_THAT(render("{" + user + R"(, "prefill_channel": false})").text(), testing::EndsWith("role=\"assistant\"<|sep|>"));
  const auto partial = render(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}],
                                  "continue_final_message": true})");
  EXPECT_EQ(partial.start, ParserStart::response);
  EXPECT_THAT(partial.text(), testing::EndsWith("<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>a"));
}

// R18 and 3.7: what the model wrote comes back byte for byte, whatever a JSON library would make of it.
TEST(XtmlRenderer, ArgumentLiteralsSurvive) {
  const std::string json = R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments":
      "{\"a\":1e2,\"b\": -0.0 ,\"big\":123456789012345678901234567890,\"o\":{ \"x\":[1.50 , 2E+3]},\"a\":\"twice\"}"}}]}]})";
  EXPECT_THAT(
      render(json).text(),
      HasSubstr("<|open|>argument key=\"a\" type=\"number\"<|sep|>1e2<|close|>argument<|sep|>"
                "<|open|>argument key=\"b\" type=\"number\"<|sep|>-0.0<|close|>argument<|sep|>"
                "<|open|>argument key=\"big\" type=\"number\"<|sep|>123456789012345678901234567890<|close|>argument<|sep|>"
                "<|open|>argument key=\"o\" type=\"object\"<|sep|>{ \"x\":[1.50 , 2E+3]}<|close|>argument<|sep|>"
                "<|open|>argument key=\"a\" type=\"string\"<|sep|>twice<|close|>argument<|sep|>"));
  const std::string object = R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments":
      {"n": 1e2, "o": {"z": 1.50, "a": [1,{"k":"ü"}]}}}]}]})";
  EXPECT_THAT(render(object).text(), HasSubstr("<|sep|>1e2<|close|>"));
  EXPECT_THAT(render(object).text(), HasSubstr("<|sep|>{\"z\": 1.50, \"a\": [1, {\"k\": \"ü\"}]}<|close|>"));
  const std::string tools =
      R"({"messages": [{"role": "user"}], "tools": [{"name": "f", "b": 1e2, "a": {"y": "\u00e9\n</>", "x": 10.0}}]})";
  EXPECT_THAT(render(tools).text(), HasSubstr("[{\"a\":{\"x\":10.0,\"y\":\"é\\n</>\"},\"b\":1e2,\"name\":\"f\"}]"));
}

// R22
TEST(XtmlRenderer, LoneSurrogatesAreReplaced) {
  EXPECT_EQ(tail_of(R"({"messages": [{"role": "user", "content": "a\ud800b\udc00\ud83d\ude00\ud83dx\ud83d\u0041"}]})"),
            "<|open|>message role=\"user\"<|sep|>a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xF0\x9F\x98\x80\xEF\xBF\xBDx\xEF\xBF\xBD"
            "A<|close|>message<|sep|><|end_of_msg|>"
            "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>");
}

TEST(XtmlRenderer, ArgumentsThatAreNoObject) {
  const auto arguments = [](const std::string& value) {
    const std::string text =
        render(R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": )" + value + "}]}]}").text();
    const size_t begin = text.find("index=\"1\"<|sep|>") + 16;
    return text.substr(begin, text.find("<|close|>call") - begin);
  };
  const auto block = [](const std::string& body) {
    return "<|open|>json type=\"object\"<|sep|>" + body + "<|close|>json<|sep|>";
  };
  EXPECT_EQ(arguments("null"), "");
  EXPECT_EQ(arguments(R"(" \n\u00a0")"), "");
  EXPECT_EQ(arguments(R"("{}")"), "");
  EXPECT_EQ(arguments(R"("[1]")"), block("[1]"));
  EXPECT_EQ(arguments(R"("\"s\"")"), block("\"s\""));
  EXPECT_EQ(arguments(R"("{\"a\": NaN}")"), block("{\"a\": NaN}"));
  EXPECT_EQ(arguments(R"("{\"a\": 01}")"), block("{\"a\": 01}"));
  const std::string deep = "{\"a\": " + std::string(200, '[') + std::string(200, ']') + "}";
  EXPECT_EQ(arguments(Json(deep).dump()), block(deep));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 3}]}]})"),
              HasSubstr("messages[0].tool_calls[0].arguments: wanted a string, an object or null, found 3"));
}

TEST(XtmlRenderer, ThinkingControl) {
  struct Row {
    const char* fields;
    bool thinking;
    const char* effort;  // nullptr: no effort message
  };
  const Row rows[] = {
      {"", true, "max"},
      {R"("reasoning_effort": "low")", true, "low"},
      {R"("reasoning_effort": "minimal")", true, "low"},
      {R"("reasoning_effort": "medium")", true, "high"},
      {R"("reasoning_effort": "xhigh")", true, "max"},
      {R"("reasoning_effort": null)", true, "max"},
      {R"("reasoning_effort": "none")", false, "max"},
      {R"("reasoning": {"effort": "high"})", true, "high"},
      {R"("thinking": {"type": "disabled"})", false, "max"},
      {R"("thinking": {"type": "enabled"}, "reasoning_effort": "none")", true, "max"},
      {R"("chat_template_kwargs": {"thinking": false}, "thinking": {"type": "enabled"})", false, "max"},
      {R"("chat_template_kwargs": {"enable_thinking": false})", false, "max"},
      {R"("chat_template_kwargs": {"thinking": true, "enable_thinking": false})", true, "max"},
      {R"("chat_template_kwargs": {"thinking_effort": "low"}, "reasoning_effort": "high")", true, "low"},
      {R"("chat_template_kwargs": {"thinking_effort": null}, "reasoning_effort": "high")", true, nullptr},
      {R"("chat_template_kwargs": {"thinking_effort": "low"}, "reasoning_effort": "none")", false, "low"},
      {R"("tools": [{"name": "f"}], "tool_choice": {"type": "function", "function": {"name": "f"}},
          "chat_template_kwargs": {"thinking": true})",
       false, "max"},
  };
  for (const Row& row : rows) {
    const ChatRequest request =
        parse_chat_request(fmt::format(R"({{"messages": [{{"role": "user"}}]{}{}}})", *row.fields ? ", " : "", row.fields));
    EXPECT_EQ(request.thinking, row.thinking) << row.fields;
    EXPECT_EQ(request.thinking_effort, row.effort ? std::optional<std::string>(row.effort) : std::nullopt) << row.fields;
  }
  EXPECT_THAT(parse_chat_request(R"({"messages": [{"role": "user"}], "reasoning_effort": "medium"})").notes,
              ElementsAre("reasoning_effort 'medium' is rendered as 'high'"));
  EXPECT_THAT(parse_chat_request(R"({"messages": [{"role": "user"}], "reasoning_effort": "high"})").notes, IsEmpty());
  const ChatRequest allowed = parse_chat_request(R"({"messages": [{"role": "user"}], "tools": [{"name": "f"}, {"name": "g"}],
      "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"name": "f"}]}}})");
  EXPECT_TRUE(allowed.notes.empty());
  EXPECT_EQ(allowed.tool_choice.kind, ToolChoice::Kind::required);
  EXPECT_EQ(allowed.tool_choice.allowed, std::vector<std::string>{"f"});
}

TEST(XtmlRenderer, ToolResultsKeepTheirPlaces) {
  const auto order = [](const std::string& results) {
    const std::string text =
        render(R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "name": "f"}, {"id": "b", "name": "g"},
        {"id": "a", "name": "h"}]}, )" +
               results + "]}")
            .text();
    std::string found;
    for (size_t at = text.find("role=\"tool\""); at != text.npos; at = text.find("role=\"tool\"", at + 1)) {
      const std::string header = text.substr(at, text.find("<|close|>", at) - at);
      found += header.substr(12) + "; ";
    }
    return found;
  };
  // The first of two equal ids counts; a stable order for two results of one call.
  EXPECT_EQ(order(R"({"role": "tool", "tool_call_id": "b", "content": "1"}, {"role": "tool", "id": "a", "content": "2"},
                     {"role": "tool", "tool_call_id": "a", "content": "3", "name": "stale"})"),
            "tool=\"f\" index=\"1\"<|sep|>2; tool=\"f\" index=\"2\"<|sep|>3; tool=\"g\" index=\"3\"<|sep|>1; ");
  EXPECT_EQ(order(R"({"role": "tool", "tool_call_id": "b", "content": "1"}, {"role": "tool", "tool": "t", "name": "n"},
                     {"role": "tool", "tool": "", "name": "n"}, {"role": "tool", "content": [{"type": "text", "text": "x"}], "name": "m"})"),
            "tool=\"f\" index=\"1\"<|sep|>1; tool=\"t\" index=\"2\"<|sep|>; tool=\"n\" index=\"3\"<|sep|>; tool=\"m\" "
            "index=\"4\"<|sep|>x; ");
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]})"),
              HasSubstr("messages[1].tool_call_id"));
}

TEST(XtmlRenderer, RefusesWithMessageIndexAndField) {
  const auto one = [](const std::string& message) { return R"({"messages": [{"role": "user"}, )" + message + "]}"; };
  const auto with = [](const std::string& fields) { return R"({"messages": [{"role": "user"}], )" + fields + "}"; };
  EXPECT_THAT(refusal(one(R"({"role": "function"})")),
              HasSubstr("messages[1].role: wanted system, developer, user, assistant or tool, found 'function'"));
  EXPECT_THAT(refusal(one("{}")), HasSubstr("messages[1].role"));
  EXPECT_THAT(refusal(one("3")), HasSubstr("messages[1]: wanted an object, found 3"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "content": 3})")), HasSubstr("messages[1].content: wanted a string"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "content": [{"type": "video"}]})")),
              HasSubstr("messages[1].content[0].type: wanted 'text', found 'video'"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "content": [{"type": "text"}]})")), HasSubstr("messages[1].content[0].text"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "content": [{"type": "image_url"}]})"), ErrorKind::unsupported),
              HasSubstr("messages[1].content[0].type: wanted text, found an image"));
  EXPECT_THAT(refusal(one(R"({"role": "tool", "name": "f", "content": [{"type": "image"}]})")),
              HasSubstr("messages[1].content[0]"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "name": 3})")), HasSubstr("messages[1].name: wanted a string or null, found 3"));
  EXPECT_THAT(refusal(one(R"({"role": "assistant", "reasoning_content": []})")), HasSubstr("messages[1].reasoning_content"));
  EXPECT_THAT(refusal(one(R"({"role": "assistant", "tool_calls": {}})")), HasSubstr("messages[1].tool_calls: wanted an array"));
  EXPECT_THAT(refusal(one(R"({"role": "assistant", "tool_calls": [{"function": {}}]})")),
              HasSubstr("messages[1].tool_calls[0].function.name"));
  EXPECT_THAT(refusal(one(R"({"role": "user", "partial": true})")), HasSubstr("messages[1].partial"));
  EXPECT_THAT(refusal(one(R"({"role": "assistant", "partial": true}, {"role": "user"})")), HasSubstr("messages[1].partial"));
  EXPECT_THAT(refusal(one(R"({"role": "assistant", "partial": true, "tool_calls": [{"name": "f"}]})")),
              HasSubstr("messages[1].tool_calls"));
  EXPECT_THAT(refusal(with(R"("continue_final_message": true)")), HasSubstr("continue_final_message"));
  EXPECT_THAT(refusal(with(R"("tools": {})")), HasSubstr("tools: wanted an array"));
  EXPECT_THAT(refusal(with(R"("tools": [3])")), HasSubstr("tools[0]: wanted an object"));
  EXPECT_THAT(refusal(with(R"("tool_choice": "required")")), HasSubstr("tool_choice: wanted declared tools"));
  EXPECT_THAT(refusal(with(R"("tool_choice": "maybe")")),
              HasSubstr("tool_choice: wanted auto, none, required or an object, found 'maybe'"));
  EXPECT_THAT(refusal(with(R"("tools": [{"name": "f"}], "tool_choice": {"type": "function", "function": {"name": "g"}})")),
              HasSubstr("declared tool, found 'g'"));
  EXPECT_THAT(refusal(with(R"("response_format": {"type": "xml"})")), HasSubstr("response_format.type"));
  EXPECT_THAT(refusal(with(R"("response_format": {"type": "json_schema"})")), HasSubstr("response_format.json_schema"));
  EXPECT_THAT(refusal(with(R"("reasoning_effort": "huge")")), HasSubstr("reasoning_effort"));
  EXPECT_THAT(refusal(with(R"("chat_template_kwargs": {"thinking_effort": "medium"})")),
              HasSubstr("chat_template_kwargs.thinking_effort: wanted low, high, max or null, found 'medium'"));
  EXPECT_THAT(refusal(with(R"("thinking": {"type": "x"})")), HasSubstr("thinking.type"));
  EXPECT_THAT(refusal("{}"), HasSubstr("messages: wanted a non-empty array, found nothing"));
  EXPECT_THAT(refusal(R"({"messages": []})"), HasSubstr("messages"));
  EXPECT_THAT(refusal("[]"), HasSubstr("wanted an object, found an array"));
  EXPECT_THAT(refusal(""), HasSubstr("JSON at byte 0"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "role": "system"}]})"), HasSubstr("each key once, found 'role' twice"));
  EXPECT_THAT(refusal(with("\"x\": " + std::string(128, '[') + std::string(128, ']'))), HasSubstr("nesting of at most 128"));
  EXPECT_THAT(refusal(with("\"x\": " + std::string(100'000, '['))), HasSubstr("nesting of at most 128"));
  EXPECT_NO_THROW((void)render(with("\"x\": " + std::string(127, '[') + std::string(127, ']'))));
  EXPECT_THAT(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"\xC3\"}]}"), HasSubstr("well-formed UTF-8"));
}

// 10.4: a control spelling in any slot that a client fills makes no control id.
TEST(XtmlRenderer, NoSlotInjectsControlTokens) {
  const std::string pattern = R"({"messages": [
      {"role": "system", "name": "@", "content": "@"}, {"role": "developer", "content": [{"type": "text", "text": "@"}]},
      {"role": "system", "tools": [{"name": "@", "@": "@"}]},
      {"role": "user", "name": "@", "content": "x@y"},
      {"role": "assistant", "name": "@", "content": "@", "reasoning_content": "@", "tool_calls": [
        {"id": "@", "function": {"name": "@", "arguments": "{\"@\": \"@\", \"k\": [\"@\"]}"}},
        {"id": "b", "function": {"name": "@", "arguments": "@"}}, {"id": "c", "name": "@", "arguments": {"@": "@", "o": {"@": "@"}}}]},
      {"role": "tool", "tool_call_id": "@", "content": "@"}, {"role": "tool", "tool": "@", "content": "@"},
      {"role": "user", "content": "@"}],
      "tools": [{"function": {"name": "f", "description": "@", "parameters": {"@": ["@"]}}}, {"name": "@"}],
      "tool_choice": {"type": "function", "function": {"name": "@"}},
      "response_format": {"type": "json_schema", "json_schema": {"schema": {"@": "@"}}}})";
  const auto controls = [&](const std::string& word) {
    std::string json = pattern;
    for (size_t at = json.find('@'); at != json.npos; at = json.find('@', at + word.size())) json.replace(at, 1, word);
    const RenderedPrompt prompt = render(json);
    EXPECT_THAT(prompt.text(), HasSubstr(word));
    const auto ids = mini().encode(prompt.segments);
    return std::count_if(ids.begin(), ids.end(), [](TokenId id) { return mini().is_control(id); });
  };
  const auto harmless = controls("word");
  EXPECT_GT(harmless, 90);
  for (TokenId id = mini().rank_count(); id < mini().vocab_size(); ++id)
    EXPECT_EQ(controls(std::string(mini().token_bytes(id))), harmless) << mini().token_bytes(id);
}

}  // namespace
}  // namespace weft
