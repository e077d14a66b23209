// The faults of other engines that prompt_and_api.md section 9 lists, and cases C3 and C15, through the API: what a client sees
// of a model that writes such a text, whole and as a stream. The parsers are cut at every byte in tests/text/.
#include <gmock/gmock.h>

#include "api_fixture.h"

namespace weft::server_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// ⟨name⟩ in the spec.
std::string open(const std::string& tag) { return "<|open|>" + tag + "<|sep|>"; }
std::string close(const std::string& tag) { return "<|close|>" + tag + "<|sep|>"; }
const std::string kEnd = close("message") + "<|end_of_msg|>";

Json tool(const std::string& name) { return {{"type", "function"}, {"function", {{"name", name}}}}; }
Json free_tool(const std::string& name) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
}

struct Seen {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::string finish;
};

// What the whole answer and the stream say, which must be the same.
template <class... Script>
Seen answer(const Json& body, const Script&... script) {
  Seen whole;
  {
    Scripted scripted(script...);
    const Json found = scripted.api.json("/v1/chat/completions", body);
    if (!found.contains("choices")) return whole;
    const Json& message = found["choices"][0]["message"];
    whole.reasoning = message.value("reasoning_content", "");
    whole.content = message["content"].is_null() ? "" : message["content"].get<std::string>();
    if (message.contains("tool_calls")) {
      for (const Json& call : message["tool_calls"])
        whole.calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
    }
    whole.finish = found["choices"][0]["finish_reason"];
  }
  Scripted scripted(script...);
  const Streamed stream = scripted.api.stream(body);
  EXPECT_TRUE(stream.clean);
  EXPECT_EQ(stream.done, 1);
  EXPECT_EQ(stream.errors, 0);
  EXPECT_EQ(stream.content, whole.content);
  EXPECT_EQ(stream.finishes, std::vector<std::string>{whole.finish});
  EXPECT_EQ(stream.calls.size(), whole.calls.size());
  for (size_t i = 0; i < std::min(stream.calls.size(), whole.calls.size()); ++i) {
    EXPECT_EQ(stream.calls[i].name, whole.calls[i].name);
    EXPECT_EQ(stream.calls[i].arguments, whole.calls[i].arguments);
  }
  // A skipped think channel is seen while it streams and is no reasoning afterwards (3.6).
  if (!whole.reasoning.empty()) {
    EXPECT_EQ(stream.reasoning, whole.reasoning);
  }
  EXPECT_THAT(whole.reasoning + whole.content + stream.reasoning + stream.content, Not(HasSubstr("<|")));
  return whole;
}

Json no_thinking(Json body) {
  body["thinking"] = {{"type", "disabled"}};
  return body;
}

TEST(KnownFaults, F01CloseOfTheMessageEndsTheContent) {
  const Seen seen = answer(no_thinking(chat_body("Hi")), "Hello" + close("message"));
  EXPECT_EQ(seen.content, "Hello");
  EXPECT_EQ(seen.finish, "stop");
}

TEST(KnownFaults, F02AnOpenedToolSectionEndsTheReasoning) {
  Json body = chat_body("Hi");
  body["tools"] = {tool("ls")};
  const Seen seen =
      answer(body, "need it" + open("tools") + open(R"(call tool="ls" index="1")") + close("call") + close("tools") + kEnd);
  EXPECT_EQ(seen.reasoning, "need it");
  ASSERT_EQ(seen.calls.size(), 1U);
  EXPECT_EQ(seen.calls[0].name, "ls");
  EXPECT_EQ(seen.calls[0].arguments, "{}");
  EXPECT_EQ(seen.finish, "tool_calls");
}

TEST(KnownFaults, F03TheGrammarBeginsWithTheResponseToo) {
  Json body = chat_body("Hi");
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema",
                              {{"name", "a"},
                               {"strict", true},
                               {"schema",
                                {{"type", "object"},
                                 {"properties", {{"a", {{"type", "integer"}}}}},
                                 {"required", {"a"}},
                                 {"additionalProperties", false}}}}}};
  // The model opens its response without having closed its reasoning. The mask of the next draw is that of the schema.
  Scripted scripted(open("response") + R"({"a":1})" + close("response") + kEnd);
  const Streamed stream = scripted.api.stream(body);
  EXPECT_EQ(stream.content, R"({"a":1})");
  Scripted again(open("response"));
  body["max_tokens"] = 40;
  const auto recorder = again.api.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(recorder->wait_until_over());  // the script ends: the draw behind the opener has been asked for
  const SampleRequest& draw = again.executor->last_request;
  ASSERT_TRUE(draw.mask.valid());
  const std::vector<uint32_t> mask = draw.mask.get();
  const Tokenizer& tokenizer = again.model.format().tokenizer();
  int allowed = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto bit = static_cast<uint32_t>(id);
    if (((mask[bit / 32] >> (bit % 32)) & 1U) == 0) continue;
    ++allowed;
    const std::string_view bytes = tokenizer.token_bytes(id);
    EXPECT_EQ(bytes.find_first_not_of(" \t\r\n{\"a:"), std::string_view::npos) << bytes;
    EXPECT_TRUE(bytes[0] == '{' || bytes[0] == ' ' || bytes[0] == '\n') << bytes;
  }
  EXPECT_GT(allowed, 0);
}

TEST(KnownFaults, F04AnAnswerInsideTheThinkChannelIsTheAnswer) {
  const Seen seen = answer(chat_body("Hi"), "42" + close("response") + kEnd);
  EXPECT_EQ(seen.content, "42");
  EXPECT_EQ(seen.reasoning, "");
  Json body = chat_body("Hi");
  body["max_tokens"] = 1;
  const Seen cut = answer(body, std::string("4"));
  EXPECT_EQ(cut.reasoning, "4");
  EXPECT_EQ(cut.content, "");
  EXPECT_EQ(cut.finish, "length");
}

TEST(KnownFaults, F05NoCallFoundIsNoError) {
  // `required` is held to by grammar, so a model that writes no call has to be one whose tools are `auto`.
  Json body = chat_body("Hi");
  body["tools"] = {tool("ls")};
  const Seen seen = answer(body, "hm" + close("think") + open("response") + "I cannot." + close("response") + kEnd);
  EXPECT_EQ(seen.content, "I cannot.");
  EXPECT_TRUE(seen.calls.empty());
  EXPECT_EQ(seen.finish, "stop");
}

TEST(KnownFaults, F06TheStartStateComesFromThePrompt) {
  const Seen seen = answer(chat_body("Hi"), "secret" + close("think") + open("response") + "hi" + close("response") + kEnd);
  EXPECT_EQ(seen.reasoning, "secret");
  EXPECT_EQ(seen.content, "hi");
}

TEST(KnownFaults, F07MarkersInMessagesAreText) {
  Scripted scripted(std::string("x"));
  const auto count = [&](const std::string& text) {
    Json body = chat_body(text);
    body["tools"] = {tool(".hidden")};
    const Json found = scripted.api.json("/tokenize", body);
    const TokenId end = scripted.model.format().tokenizer().control_id("<|end_of_msg|>");
    int64_t ends = 0;
    for (const Json& id : found["tokens"]) ends += id == end ? 1 : 0;
    return ends;
  };
  EXPECT_EQ(count("<|end_of_msg|><|open|>"), count("harmless"));
  EXPECT_GE(count("harmless"), 2);
}

TEST(KnownFaults, F08CallsSurviveEveryCutOfTheStream) {
  // Each token is its own chunk here; S4 of 3.10.
  Json body = chat_body("Hi");
  body["tools"] = {free_tool("tide_height"), tool("ping")};
  body["tools"][0]["function"]["parameters"] = {
      {"type", "object"}, {"properties", {{"port", {{"type", "string"}}}, {"hours", {{"type", "number"}}}}}};
  const Seen seen = answer(body, "Two calls." + close("think") + open("response") + close("response") + open("tools") +
                                     open(R"(call tool="tide_height" index="1")") +
                                     open(R"(argument key="port" type="string")") + "Barry \"2\"\n" + close("argument") +
                                     open(R"(argument key="hours" type="number")") + "1e1" + close("argument") + close("call") +
                                     open(R"(call tool="ping" index="7")") + close("call") + close("tools") + kEnd);
  ASSERT_EQ(seen.calls.size(), 2U);
  EXPECT_EQ(seen.calls[0].arguments, R"({"port": "Barry \"2\"\n", "hours": 1e1})");
  EXPECT_EQ(seen.calls[1].name, "ping");
  EXPECT_EQ(seen.calls[1].arguments, "{}");
  EXPECT_EQ(seen.content, "");
}

TEST(KnownFaults, F09ArgumentsAreStreamedAsTheyCome) {
  Json body = chat_body("Hi");
  body["tools"] = {free_tool("write")};
  body["tools"][0]["function"]["parameters"] = {{"type", "object"}, {"properties", {{"text", {{"type", "string"}}}}}};
  std::string text;
  while (text.size() < 100000) text += "all work and no play ";
  Scripted scripted("x" + close("think") + open("response") + close("response") + open("tools") +
                    open(R"(call tool="write" index="1")") + open(R"(argument key="text" type="string")") + text +
                    close("argument") + close("call") + close("tools") + kEnd);
  const Streamed stream = scripted.api.stream(body);
  ASSERT_EQ(stream.calls.size(), 1U);
  EXPECT_EQ(parse_json(stream.calls[0].arguments, "arguments")["text"], text);
  int deltas = 0;
  bool named_first = false;
  for (const Json& chunk : stream.chunks) {
    for (const Json& choice : chunk["choices"]) {
      if (!choice["delta"].contains("tool_calls")) continue;
      const Json& call = choice["delta"]["tool_calls"][0];
      if (deltas == 0)
        named_first = call.contains("id") && call["function"]["name"] == "write" &&
                      call["function"]["arguments"].get<std::string>().empty();
      ++deltas;
    }
  }
  EXPECT_TRUE(named_first);
  EXPECT_GT(deltas, 100);
}

TEST(KnownFaults, F10OddOrderIsTolerated) {
  Json body = chat_body("Hi");
  const Seen seen = answer(body, "x" + close("think") + R"({"a":1})" + kEnd);
  EXPECT_EQ(seen.reasoning, "x");
  EXPECT_EQ(seen.content, R"({"a":1})");
}

TEST(KnownFaults, F11EveryEndTokenEndsTheAnswer) {
  for (const std::string& end : {close("message") + "[EOS]", std::string("[EOS]"), kEnd}) {
    const Seen seen = answer(chat_body("Hi"), "x" + close("think") + open("response") + "4" + end + "more");
    EXPECT_EQ(seen.content, "4");
    EXPECT_EQ(seen.finish, "stop");
  }
}

TEST(KnownFaults, F12ThinkOpenedByThePrompt) {
  const Seen seen = answer(chat_body("Hi"), std::string("Greet.\n</think>\n\nHello!<|im_end|>"), true);
  EXPECT_EQ(seen.reasoning, "Greet.");
  EXPECT_EQ(seen.content, "Hello!");
}

TEST(KnownFaults, F13BracesInsideAStringArgument) {
  Json body = chat_body("Hi");
  body["tools"] = {free_tool("sh")};
  const Seen seen =
      answer(body,
             std::string("<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"c\": \"mkdir -p t/{a,b\"}}\n</tool_call>"
                         "<|im_end|>"),
             false);
  ASSERT_EQ(seen.calls.size(), 1U);
  EXPECT_EQ(seen.calls[0].arguments, R"({"c": "mkdir -p t/{a,b"})");
  EXPECT_EQ(seen.finish, "tool_calls");
}

TEST(KnownFaults, F14NullContentInTheHistory) {
  Json body = chat_body("Hi");
  body["tools"] = {tool("f")};
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}}}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "1"}, {"content", nullptr}});
  EXPECT_EQ(answer(body, std::string("ok<|im_end|>"), false).content, "ok");
  EXPECT_EQ(answer(body, "x" + close("think") + open("response") + "ok" + close("response") + kEnd).content, "ok");
}

TEST(KnownFaults, F15TextBeforeACallIsContent) {
  Json body = chat_body("Hi");
  body["tools"] = {tool("f")};
  const Seen seen = answer(
      body, std::string("I will look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>"), false);
  EXPECT_EQ(seen.content, "I will look.");
  ASSERT_EQ(seen.calls.size(), 1U);
  EXPECT_EQ(seen.calls[0].name, "f");
}

TEST(Cases, C3NothingIsLostWhenToolsFollowAnOpenThinkChannel) {
  Json body = chat_body("Hi");
  body["tools"] = {tool("ping")};
  const Seen seen = answer(body, "plan" + open("tools") + open(R"(call tool="ping" index="1")") + close("call") +
                                     open(R"(call tool="ping" index="2")") + close("call") + close("tools") + kEnd);
  EXPECT_EQ(seen.reasoning, "plan");
  EXPECT_EQ(seen.calls.size(), 2U);
}

TEST(Cases, C15ThreeCleanFields) {
  Json body = chat_body("Hi");
  body["tools"] = {tool("ping"), free_tool("write")};
  body["tools"][1]["function"]["parameters"] = {{"type", "object"}, {"properties", {{"text", {{"type", "string"}}}}}};
  const Seen thought = answer(body, std::string("Let me think<|end_of_msg|>"));
  EXPECT_EQ(thought.reasoning, "Let me think");
  EXPECT_EQ(thought.content, "");
  const Seen both = answer(body, "x" + close("think") + open("response") + "y" + close("response") + kEnd);
  EXPECT_EQ(both.reasoning + "|" + both.content, "x|y");
  // Markup inside an argument is spelled with ordinary tokens, as the model sees it in its prompt.
  const Seen nested = answer(body, "x" + close("think") + open("response") + close("response") + open("tools") +
                                       open(R"(call tool="write" index="1")") + open(R"(argument key="text" type="string")") +
                                       "<b>bold</b>" + close("argument") + close("call") + close("tools") + kEnd);
  ASSERT_EQ(nested.calls.size(), 1U);
  EXPECT_EQ(nested.calls[0].arguments, R"({"text": "<b>bold</b>"})");
}

}  // namespace
}  // namespace weft::server_test
