// The fields of requests: what each does, and how a wrong one is refused (prompt_and_api.md 6.2, 6.4, 6.7).
#include <gmock/gmock.h>

#include "api_fixture.h"

namespace weft::server_test {
namespace {

using ::testing::HasSubstr;

const std::string kAnswer =
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>one two three<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";

struct Wrong {
  std::string field;  // and its value
  Json value;
  std::string param;
  std::string part;  // of the message
  int status = 400;
};

void expect_refused(const Wrong& wrong, const std::string& path, Json body) {
  Scripted scripted(kAnswer);
  if (wrong.value.is_discarded()) {
    body.erase(wrong.field);
  } else {
    body[wrong.field] = wrong.value;
  }
  const auto recorder = scripted.api.ask(path, body);
  ASSERT_EQ(recorder->status(), wrong.status) << wrong.field << ": " << recorder->body();
  const Json error = parse_json(recorder->body(), "answer").at("error");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr(wrong.part)) << wrong.field;
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_TRUE(error.contains("code"));
  const std::string param = error.at("param").is_null() ? "" : error["param"].get<std::string>();
  EXPECT_EQ(param, wrong.param) << wrong.field << ": " << recorder->body();
  EXPECT_FALSE(recorder->streamed());
}

const Json kNothing = Json::parse("", nullptr, false);  // discarded: the field is left out

Json function_tool(const std::string& name) { return {{"type", "function"}, {"function", {{"name", name}}}}; }

Json schema_format(const Json& json_schema) { return {{"type", "json_schema"}, {"json_schema", json_schema}}; }

TEST(Fields, EachWrongOneIsNamed) {
  const Json many(513, function_tool("f"));
  const std::vector<Wrong> all = {
      {"model", kNothing, "model", "found nothing"},
      {"model", 7, "model", "wanted a string"},
      {"model", "gpt-4", "model", "found 'gpt-4'", 404},
      {"messages", kNothing, "messages", "found nothing"},
      {"messages", Json::array(), "messages", "an empty one"},
      {"messages", "hi", "messages", "wanted an array"},
      {"messages", {{{"role", "function"}, {"content", "x"}}}, "messages[0].role", "found 'function'"},
      {"messages", {{{"role", "user"}, {"content", 5}}}, "messages[0].content", "found 5"},
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}}}},
       "messages[0].content[0].type",
       "an image"},
      {"messages",
       {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"tool_calls", {{{"id", "1"}}}}}},
       "messages[1].tool_calls[0].name",
       "found none"},
      {"stream", "yes", "stream", "wanted a boolean"},
      {"stream_options", {{"include_usage", true}}, "stream_options", "stream: true"},
      {"max_tokens", 0, "max_tokens", "found 0"},
      {"max_tokens", 1.5, "max_tokens", "found 1.5"},
      {"max_completion_tokens", "ten", "max_completion_tokens", "found 'ten'"},
      {"temperature", 2.1, "temperature", "2.1"},
      {"temperature", "hot", "temperature", "a number"},
      {"top_p", 1.5, "top_p", "1.5"},
      {"top_k", -2, "top_k", "-2"},
      {"min_p", -0.1, "min_p", "-0.1"},
      {"presence_penalty", 3, "presence_penalty", "3"},
      {"frequency_penalty", -3, "frequency_penalty", "-3"},
      {"repetition_penalty", 0, "repetition_penalty", "found 0"},
      {"seed", 0.5, "seed", "0.5"},
      {"stop", 5, "stop", "a string or an array"},
      {"stop", {"a", 1}, "stop", "found 1"},
      {"stop", {""}, "stop", "1 to 256 bytes"},
      {"stop", std::vector<std::string>(17, "x"), "stop", "at most 16"},
      {"stop", std::string(257, 'x'), "stop", "one of 257"},
      {"stop_token_ids", {1, -1}, "stop_token_ids", "found -1"},
      {"stop_token_ids", {100000000}, "stop_token_ids", "found 100000000"},
      {"ignore_eos", 1, "ignore_eos", "a boolean"},
      {"min_tokens", -1, "min_tokens", "found -1"},
      {"logit_bias", {{"x", 1}}, "logit_bias", "found 'x'"},
      {"logit_bias", {{"1", 101}}, "logit_bias", "found 101"},
      {"logit_bias", {{"999999999", 1}}, "logit_bias", "'999999999'"},
      {"logprobs", 1, "logprobs", "a boolean"},
      {"top_logprobs", 21, "top_logprobs", "from 0 to 20"},
      {"top_logprobs", 2, "top_logprobs", "logprobs: true"},
      {"n", 0, "n", "found 0"},
      {"n", 17, "n", "found 17"},
      {"tools", many, "tools", "at most 512"},
      {"tools", {function_tool("a b")}, "tools[0].function.name", "found 'a b'"},
      {"tools", {function_tool("")}, "tools[0].function.name", "found ''"},
      {"tools", {function_tool(std::string(129, 'x'))}, "tools[0].function.name", "1 to 128"},
      {"tools", {function_tool("f"), function_tool("f")}, "tools[1].function.name", "each name once"},
      {"tools", {{{"type", "web_search"}}}, "tools[0].type", "found 'web_search'"},
      {"tools", {{{"function", {{"name", "f"}, {"strict", "yes"}}}}}, "tools[0].function.strict", "a boolean, found 'yes'"},
      {"tools", {{{"function", {{"name", "f"}, {"description", 5}}}}}, "tools[0].function.description", "a string, found 5"},
      {"tools", {{{"function", {{"name", "f"}, {"parameters", "x"}}}}}, "tools[0].function.parameters", "an object, found 'x'"},
      {"messages",
       {{{"role", "system"}, {"tools", {{{"function", {{"name", "f"}, {"strict", 1}}}}}}},
        {{"role", "user"}, {"content", "x"}}},
       "messages[0].tools[0].function.strict",
       "a boolean, found 1"},
      {"messages",
       {{{"role", "system"}, {"content", "rules"}, {"tools", {function_tool("f")}}}, {{"role", "user"}, {"content", "x"}}},
       "messages[0].content",
       "wanted nothing beside tools"},
      {"messages", {{{"role", "user"}, {"content", nullptr}}}, "messages[0].content", "an array of parts, found null"},
      {"messages", {{{"role", "user"}}}, "messages[0].content", "found nothing"},
      {"messages", {{{"role", "system"}}, {{"role", "user"}, {"content", "x"}}}, "messages[0].content", "found nothing"},
      {"messages", {{{"role", "developer"}, {"tools", Json::array()}}}, "messages[0].content", "found nothing"},
      {"messages",
       {{{"role", "assistant"}, {"tool_calls", {{{"type", "custom"}, {"function", {{"name", "f"}}}}}}}},
       "messages[0].tool_calls[0].type",
       "found 'custom'"},
      {"messages", {{{"role", "assistant"}, {"content", "x"}, {"refusal", 5}}}, "messages[0].refusal", "found 5"},
      {"response_format", schema_format(Json{{"schema", Json::object()}}), "response_format.json_schema.name", "found nothing"},
      {"response_format", schema_format({{"name", 5}}), "response_format.json_schema.name", "found 5"},
      {"response_format", schema_format({{"name", ""}}), "response_format.json_schema.name", "1 to 64"},
      {"response_format", schema_format({{"name", std::string(65, 'x')}}), "response_format.json_schema.name", "1 to 64"},
      {"response_format", schema_format({{"name", "a.b"}}), "response_format.json_schema.name", "found 'a.b'"},
      {"response_format", schema_format({{"name", "a"}, {"schema", 5}}), "response_format.json_schema.schema",
       "an object, found 5"},
      {"response_format", schema_format({{"name", "a"}, {"schema", nullptr}}), "response_format.json_schema.schema",
       "an object, found null"},
      {"response_format", schema_format({{"name", "a"}, {"strict", 1}}), "response_format.json_schema.strict", "found 1"},
      {"response_format", schema_format({{"name", "a"}, {"description", 1}}), "response_format.json_schema.description",
       "found 1"},
      {"options",
       {{"response_format", schema_format(Json{{"schema", Json::object()}})}},
       "options.response_format.json_schema.name",
       "found nothing"},
      {"verbosity", 5, "verbosity", "a string, found 5"},
      {"prediction", "x", "prediction", "an object, found 'x'"},
      {"prompt_cache_retention", 5, "prompt_cache_retention", "a string, found 5"},
      {"web_search_options", 5, "web_search_options", "an object, found 5"},
      {"tool_choice", "always", "tool_choice", "found 'always'"},
      {"tool_choice", "required", "tool_choice", "found none"},
      {"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}, "tool_choice", "found 'g'"},
      {"response_format", {{"type", "xml"}}, "response_format.type", "found 'xml'"},
      {"reasoning_effort", "huge", "reasoning_effort", "found 'huge'"},
      {"functions", {{{"name", "f"}}}, "functions", "use tools"},
      {"function_call", "auto", "function_call", "use tool_choice"},
      {"audio", {{"voice", "x"}}, "audio", "text only"},
      {"modalities", {"text", "audio"}, "modalities", "found 'audio'"},
  };
  for (const Wrong& wrong : all) expect_refused(wrong, "/v1/chat/completions", chat_body("Hi"));
}

TEST(Fields, LongValuesAreShownByTheirBeginning) {
  const std::string digits(300, '7');
  const std::string text(300, 'x');
  Scripted scripted(kAnswer);
  for (const char* field : {"max_tokens", "temperature", "top_k", "seed", "n", "logit_bias", "reasoning_effort"}) {
    for (const std::string& value : {digits, "\"" + text + "\""}) {
      const auto recorder = scripted.api.send(
          "POST", "/v1/chat/completions",
          fmt::format(R"({{"model":"test-model","messages":[{{"role":"user","content":"Hi"}}],"{}":{}}})", field, value));
      ASSERT_TRUE(recorder->wait_until_over());
      ASSERT_EQ(recorder->status(), 400) << field << recorder->body();
      EXPECT_LT(recorder->body().size(), 300U) << field << recorder->body();
    }
  }
  const auto unknown = scripted.api.send("GET", "/" + text);
  EXPECT_THAT(unknown->body(), HasSubstr("there is no /xxx"));
  EXPECT_THAT(unknown->body(), HasSubstr("xxx..."));
  EXPECT_LT(unknown->body().size(), 200U);
}

TEST(Fields, WrongOnesOfCompletions) {
  const Json body = {{"model", "test-model"}, {"prompt", "Hi"}};
  const std::vector<Wrong> all = {
      {"prompt", kNothing, "prompt", "found nothing"},
      {"prompt", Json::array(), "prompt", "found an array"},
      {"prompt", "", "prompt", "found none"},
      {"prompt", {1, -5}, "prompt", "found -5"},
      {"prompt", {1, 200000}, "prompt", "found 200000"},
      {"prompt", {"a", 1}, "prompt", "found 1"},
      {"suffix", "x", "suffix", "not supported"},
      {"best_of", 2, "best_of", "found more"},
      {"logprobs", 6, "logprobs", "from 0 to 5"},
      {"echo", "x", "echo", "a boolean"},
  };
  for (const Wrong& wrong : all) expect_refused(wrong, "/v1/completions", body);
}

TEST(Fields, WhatMayBeNullOrAbsent) {
  Scripted scripted(kAnswer);
  Json body = chat_body("Hi");
  const Json function = {{"name", "f"}, {"description", nullptr}, {"parameters", nullptr}, {"strict", nullptr}};
  const Json tool = {{"type", "function"}, {"function", function}};
  body["tools"] = Json::array({tool});
  for (const char* key : {"verbosity", "prediction", "prompt_cache_retention", "response_format"}) body[key] = nullptr;
  // A declaration, calls and an empty result need no content.
  Json declaration = {{"role", "system"}, {"tools", {tool}}};
  Json call = {{"role", "assistant"}, {"refusal", nullptr}};
  call["tool_calls"] = {{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}};
  Json result = {{"role", "tool"}, {"tool_call_id", "1"}};
  body["messages"].push_back(declaration);
  body["messages"].push_back(call);
  body["messages"].push_back(result);
  call["content"] = nullptr;
  result["content"] = nullptr;
  body["messages"].push_back(call);
  body["messages"].push_back(result);
  static_cast<void>(scripted.api.json("/v1/chat/completions", body));
}

TEST(Fields, UnknownOnesAndMarksAreIgnored) {
  Scripted scripted(kAnswer);
  Json body = chat_body("Hi");
  for (const char* key : {"user", "safety_identifier", "prompt_cache_key", "service_tier", "something_new"}) body[key] = "x";
  body["metadata"] = {{"a", "b"}};
  body["store"] = true;
  body["stop"] = nullptr;
  body["tools"] = Json::array();
  body["logit_bias"] = Json::object();
  const Json found = scripted.api.json("/v1/chat/completions", body);
  EXPECT_EQ(found["choices"][0]["message"]["content"], "one two three");
  EXPECT_THAT(found["weft"]["notes"].dump(), HasSubstr("something_new"));
}

TEST(Fields, ManyUnknownOnesAreCountedAndNotListed) {
  Scripted scripted(kAnswer);
  Json body = chat_body("Hi");
  std::string text = body.dump();
  text.pop_back();
  for (int i = 0; i < 50000; ++i) text += fmt::format(",\"k{}\":1", i);
  const auto recorder = scripted.api.send("POST", "/v1/chat/completions", text + "}");
  ASSERT_TRUE(recorder->wait_until_over());
  EXPECT_EQ(recorder->status(), 200);
  EXPECT_LE(recorder->head().headers.size(), 16U) << "clients bound their number";
  EXPECT_LE(parse_json(recorder->body(), "answer")["weft"]["notes"].size(), 40U);
  EXPECT_THAT(recorder->body(), HasSubstr("further unknown fields"));
}

TEST(Fields, ASchemaThatDoublesIsRefusedAtOnce) {
  Json definitions;
  for (int i = 0; i < 30; ++i) {
    const Json next = i == 29 ? Json{{"type", "integer"}} : Json{{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
    definitions[fmt::format("d{}", i)] = {{"type", "object"},
                                          {"properties", {{"a", next}, {"b", next}}},
                                          {"required", {"a", "b"}},
                                          {"additionalProperties", false}};
  }
  Json body = chat_body("Hi");
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "x"}, {"strict", true}, {"schema", {{"$ref", "#/$defs/d0"}, {"$defs", definitions}}}}}};
  Scripted scripted(kAnswer);
  const Json error = scripted.api.json("/v1/chat/completions", body, 400)["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("shortest value"));
}

TEST(Fields, TheShapeOfAnAnswer) {
  Scripted scripted(kAnswer);
  const Json found = scripted.api.json("/v1/chat/completions", chat_body("Hi"));
  EXPECT_TRUE(found["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(found["id"].get<std::string>().size(), std::string("chatcmpl-").size() + 24);
  EXPECT_EQ(found["object"], "chat.completion");
  EXPECT_GT(found["created"].get<int64_t>(), 1'700'000'000);
  EXPECT_EQ(found["model"], "test-model");
  EXPECT_EQ(found["system_fingerprint"].get<std::string>().substr(0, 3), "fp_");
  const Json& choice = found["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Hm.");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Json& usage = found["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int64_t>() + usage["completion_tokens"].get<int64_t>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(found["weft"]["tokens_reused"], 0);
}

TEST(Fields, TheShapeOfAStream) {
  Scripted scripted(kAnswer);
  Json body = chat_body("Hi");
  body["stream_options"] = {{"include_usage", true}};
  const Streamed stream = scripted.api.stream(body);
  EXPECT_TRUE(stream.clean);
  EXPECT_EQ(stream.done, 1);
  EXPECT_EQ(stream.content, "one two three");
  EXPECT_EQ(stream.reasoning, "Hm.");
  ASSERT_GT(stream.chunks.size(), 4U);
  EXPECT_EQ(stream.chunks.front()["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  for (const Json& chunk : stream.chunks) {
    EXPECT_EQ(chunk["id"], stream.chunks.front()["id"]);
    EXPECT_EQ(chunk["created"], stream.chunks.front()["created"]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["model"], "test-model");
  }
  for (size_t i = 1; i + 2 < stream.chunks.size(); ++i) {
    const Json& choice = stream.chunks[i]["choices"][0];
    EXPECT_TRUE(choice["finish_reason"].is_null());
    EXPECT_NE(choice["delta"].dump(), "{}");
    EXPECT_NE(choice["delta"].value("content", "x"), "") << "an empty delta";
  }
  const Json& finish = stream.chunks[stream.chunks.size() - 2]["choices"][0];
  EXPECT_EQ(finish["finish_reason"], "stop");
  EXPECT_EQ(finish["delta"].dump(), "{}");
  const Json& usage = stream.chunks.back();
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_GT(usage["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(usage.contains("weft"));

  // Without usage the last chunk has what is Weft's own.
  Scripted again(kAnswer);
  const Streamed without = again.api.stream(chat_body("Hi"));
  EXPECT_EQ(without.chunks.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(without.chunks.back().contains("weft"));
  EXPECT_FALSE(without.chunks.back().contains("usage"));
}

TEST(Fields, StopStringsEndTheContent) {
  Json body = chat_body("Hi");
  body["stop"] = {"three", " tw"};
  Scripted scripted(kAnswer);
  const Json found = scripted.api.json("/v1/chat/completions", body);
  EXPECT_EQ(found["choices"][0]["message"]["content"], "one");
  EXPECT_EQ(found["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(found["choices"][0]["stop_reason"], " tw");
  Scripted again(kAnswer);
  const Streamed stream = again.api.stream(body);
  EXPECT_EQ(stream.content, "one");
  EXPECT_EQ(stream.chunks.back()["choices"][0]["stop_reason"], " tw");
}

TEST(Fields, SeveralChoices) {
  Json body = chat_body("Hi");
  body["n"] = 2;
  // Two choices draw in turn from one script.
  std::vector<TokenId> script;
  for (const TokenId id : engine_test::ids_of(kAnswer)) script.insert(script.end(), {id, id});
  Scripted scripted("");
  scripted.executor->then(script);
  const Json found = scripted.api.json("/v1/chat/completions", body);
  ASSERT_EQ(found["choices"].size(), 2U);
  for (const Json& choice : found["choices"]) EXPECT_EQ(choice["message"]["content"], "one two three");
  EXPECT_EQ(found["choices"][1]["index"], 1);
  const Json& usage = found["usage"];
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int64_t>() + usage["completion_tokens"].get<int64_t>());
  Scripted again("");
  again.executor->then(script);
  const Streamed stream = again.api.stream(body);
  EXPECT_EQ(stream.finishes, (std::vector<std::string>{"stop", "stop"}));
  EXPECT_EQ(stream.done, 1);
}

TEST(Fields, LogProbabilities) {
  Json body = chat_body("Hi");
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const auto text_of = [](const Json& list) {
    std::string text;
    for (const Json& entry : list) {
      text += entry["token"].get<std::string>();
      EXPECT_EQ(entry["top_logprobs"].size(), 2U);
      EXPECT_EQ(entry["logprob"], -0.5);
      EXPECT_FALSE(entry["bytes"].empty());
    }
    return text;
  };
  Scripted scripted(kAnswer);
  const Json found = scripted.api.json("/v1/chat/completions", body);
  EXPECT_EQ(text_of(found["choices"][0]["logprobs"]["content"]), "one two three");
  Scripted again(kAnswer);
  std::string streamed;
  for (const Json& chunk : again.api.stream(body).chunks) {
    for (const Json& choice : chunk["choices"]) {
      if (!choice["logprobs"].is_null()) streamed += text_of(choice["logprobs"]["content"]);
    }
  }
  EXPECT_EQ(streamed, "one two three");
}

TEST(Fields, ReasoningIsLeftOutWhenAsked) {
  Json body = chat_body("Hi");
  body["include_reasoning"] = false;
  Scripted scripted(kAnswer);
  const Json found = scripted.api.json("/v1/chat/completions", body);
  EXPECT_FALSE(found["choices"][0]["message"].contains("reasoning_content"));
  Scripted again(kAnswer);
  EXPECT_EQ(again.api.stream(body).reasoning, "");
}

TEST(Fields, TooLongAPromptAndAClampedBudget) {
  Api api(engine_test::mini());
  Json body = chat_body(std::string(40000, 'x') + " y");
  const Json refused = api.json("/v1/chat/completions", body, 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(refused["error"]["message"].get<std::string>(),
              HasSubstr("wanted at most 4095 tokens (a context of 4096), found "));
  body = chat_body("What is 17 * 23? Answer with the number only.");
  body["max_tokens"] = 1'000'000'000;
  EXPECT_EQ(api.json("/v1/chat/completions", body)["choices"][0]["message"]["content"], "391");
}

// What is far beyond the context is refused as what is just beyond it, without a look at all of it.
TEST(Fields, FarTooLongAPromptIsRefusedAlike) {
  Api api(engine_test::mini());
  std::string words;
  while (words.size() < 8'000'000) words += "seven words of a line and no more\n";
  const std::string near = words.substr(0, 34 * 1000);
  const auto refusal = [&](const std::string& path, Json body, const char* field, const Json& value) {
    body[field] = value;
    Json error = api.json(path, body, 400)["error"];
    std::string message = error["message"];
    const size_t at = message.find("found ");
    error["message"] = message.substr(0, at);
    return std::pair(error, message.substr(at));
  };
  const auto expect_alike = [&](const std::string& path, const Json& body, const char* field, const auto& of_text) {
    const auto [error, found] = refusal(path, body, field, of_text(near));
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["param"], field);
    for (const std::string& text : {words, std::string(8'000'000, 'x')}) {
      const auto [far, far_found] = refusal(path, body, field, of_text(text));
      EXPECT_EQ(far, error);
      ASSERT_THAT(far_found, ::testing::MatchesRegex("found at least [0-9]+"));
      EXPECT_GT(std::stoll(far_found.substr(15)), 100'000) << "as far as the bytes say";
    }
  };
  const Json model = {{"model", "test-model"}};
  const auto same = [](const std::string& text) { return Json(text); };
  expect_alike("/v1/completions", model, "prompt", same);
  expect_alike("/v1/responses", model, "input", same);
  expect_alike("/v1/chat/completions", model, "messages",
               [](const std::string& text) { return chat_body(text).at("messages"); });
}

TEST(Fields, AllowedToolsAreTheOnlyOnesThatMayBeCalled) {
  Api api(engine_test::mini());
  Json body = chat_body("What is the weather in Tokyo?");
  body["tools"] = {
      {{"type", "function"},
       {"function",
        {{"name", "get_weather"},
         {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}}}},
      {{"type", "function"},
       {"function", {{"name", "other"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}};
  body["max_tokens"] = 300;
  body["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools", {{"mode", "required"}, {"tools", {{{"type", "function"}, {"function", {{"name", "other"}}}}}}}}};
  const Json found = api.json("/v1/chat/completions", body);
  const Json& message = found["choices"][0]["message"];
  ASSERT_TRUE(message.contains("tool_calls")) << found.dump();
  for (const Json& call : message["tool_calls"]) EXPECT_EQ(call["function"]["name"], "other");
  body["tool_choice"]["allowed_tools"]["tools"][0]["function"]["name"] = "nobody";
  EXPECT_EQ(api.json("/v1/chat/completions", body, 400)["error"]["type"], "invalid_request_error");
}

TEST(Fields, ABudgetBelowTheShortestAnswerIsNamed) {
  Json body = chat_body("Hi");
  body["thinking"] = {{"type", "disabled"}};
  body["max_tokens"] = 2;
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "a"},
        {"strict", true},
        {"schema", {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}, {"required", {"a"}}}}}}};
  Scripted scripted(kAnswer);
  const Json error = scripted.api.json("/v1/chat/completions", body, 400)["error"];
  EXPECT_EQ(error["param"], "max_tokens");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("shortest answer"));
}

TEST(Fields, ASchemaThatCannotBeEnforced) {
  // Not supported, invalid, and what no value fulfils.
  for (const Json& schema : std::vector<Json>{{{"not", {{"type", "string"}}}},
                                              {{"type", "foo"}},
                                              {{"$ref", "#/nope"}},
                                              {{"required", "x"}},
                                              {{"enum", Json::array()}}}) {
    SCOPED_TRACE(schema.dump());
    Json body = chat_body("Hi");
    body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"strict", true}, {"schema", schema}}}};
    Scripted strict(kAnswer);
    static_cast<void>(strict.api.json("/v1/chat/completions", body, 400));
    body["response_format"]["json_schema"]["strict"] = false;
    Scripted relaxed(kAnswer);
    const auto recorder = relaxed.api.ask("/v1/chat/completions", body);
    EXPECT_EQ(recorder->status(), 200) << recorder->body();
    const std::string* warning = http::find_header(recorder->head().headers, "x-weft-warning");
    ASSERT_NE(warning, nullptr);
    EXPECT_THAT(*warning, HasSubstr("response_format is not enforced"));
  }
}

TEST(Completions, TextBehindText) {
  Scripted scripted("World<|end_of_msg|>");
  const Json found = scripted.api.json("/v1/completions", {{"model", "default"}, {"prompt", "Hello "}, {"echo", true}});
  EXPECT_TRUE(found["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(found["object"], "text_completion");
  EXPECT_EQ(found["choices"][0]["text"], "Hello World");
  EXPECT_EQ(found["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(found["model"], "default");
}

TEST(Completions, SeveralPromptsGiveSeveralChoices) {
  Api api(engine_test::mini());
  const Json found = api.json("/v1/completions", {{"model", "test-model"},
                                                  {"prompt", {"Hello", "The number"}},
                                                  {"max_tokens", 3},
                                                  {"temperature", 0},
                                                  {"logprobs", 2},
                                                  {"echo", true}});
  ASSERT_EQ(found["choices"].size(), 2U);
  for (const Json& choice : found["choices"]) {
    const Json& logprobs = choice["logprobs"];
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["tokens"].size(), logprobs["token_logprobs"].size());
    std::string text;
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      EXPECT_EQ(logprobs["text_offset"][i], text.size());
      text += logprobs["tokens"][i].get<std::string>();
      if (i > 0) {
        EXPECT_LT(logprobs["token_logprobs"][i].get<double>(), 0.0);
        EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2U);
      }
    }
    EXPECT_EQ(choice["text"], text);
  }
  // What is scored in the prompt is what is drawn there: the same text as a prompt gives the same numbers.
  const std::string whole = found["choices"][0]["text"];
  const Json again = api.json(
      "/v1/completions",
      {{"model", "test-model"}, {"prompt", whole}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 0}, {"echo", true}});
  const Json& first = found["choices"][0]["logprobs"]["token_logprobs"];
  const Json& second = again["choices"][0]["logprobs"]["token_logprobs"];
  for (size_t i = 1; i < std::min(first.size(), second.size()); ++i) EXPECT_EQ(first[i], second[i]) << i;
}

TEST(Completions, StreamsAreTheWholeInPieces) {
  Api api(engine_test::mini());
  Json body = {{"model", "test-model"}, {"prompt", "Hello"}, {"max_tokens", 8}, {"temperature", 0}, {"echo", true}};
  const Json whole = api.json("/v1/completions", body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto recorder = api.ask("/v1/completions", body);
  std::string text;
  size_t at = 0;
  int finishes = 0;
  Json last;
  for (size_t end = 0; (end = recorder->body().find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = recorder->body().substr(at, end - at);
    if (event == "data: [DONE]") continue;
    last = parse_json(event.substr(6), "chunk");
    for (const Json& choice : last["choices"]) {
      text += choice["text"].get<std::string>();
      finishes += choice["finish_reason"].is_null() ? 0 : 1;
    }
  }
  EXPECT_EQ(whole["choices"][0]["text"], text);
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

}  // namespace
}  // namespace weft::server_test
