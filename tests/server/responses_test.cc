// /v1/responses: items, events, the store (prompt_and_api.md 6.10).
#include <gmock/gmock.h>

#include "server/api/responses_output.h"
#include "server/api/responses_store.h"
#include "server/responses_fixture.h"

namespace weft::api_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr const char* kPath = "/v1/responses";
constexpr const char* kMultiply = "What is 17 * 23? Answer with the number only.";
constexpr const char* kWeather = "What is the weather in Tokyo?";

Json request(const Json& input) { return {{"model", "k3-mini"}, {"input", input}, {"temperature", 0}}; }

Json weather_tools() {
  return Json::parse(R"([{"type": "function", "name": "get_weather", "description": "Get the current weather for a city.",
      "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                     "required": ["city"]}}])");
}

Json with(Json request, const char* key, const Json& value) {
  request[key] = value;
  return request;
}

// What SDKs call output_text.
std::string text_of(const Json& response) {
  std::string text;
  for (const Json& item : response["output"]) {
    if (item["type"] != "message") continue;
    for (const Json& part : item["content"]) text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<std::string> types_of(const Json& items) {
  std::vector<std::string> types;
  for (const Json& item : items) types.push_back(item["type"]);
  return types;
}

// Without what differs from one answer to the next.
Json without_ids(Json items) {
  for (Json& item : items) {
    item.erase("id");
    item.erase("call_id");
  }
  return items;
}

std::vector<Event> stream(Served& served, const Json& body) {
  const http::Response response = served.ask("POST", kPath, with(body, "stream", true).dump());
  EXPECT_EQ(response.status, 200) << response.body;
  return events_of(response.body);
}

std::vector<std::string> names_of(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) {
    // Deltas of one text count once.
    if (names.empty() || names.back() != event.name) names.push_back(event.name);
  }
  return names;
}

std::string deltas_of(const std::vector<Event>& events, const std::string& name) {
  std::string text;
  for (const Event& event : events) {
    if (event.name == name) text += event.data["delta"].get<std::string>();
  }
  return text;
}

void expect_error(Served& served, const Json& body, const std::string& param, const std::string& message) {
  const Json error = served.post(kPath, body, 400)["error"];
  EXPECT_EQ(error["param"], param) << error;
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
}

TEST(Responses, Whole) {
  Served served;
  Json asked = request(kMultiply);
  asked["metadata"] = {{"a", "b"}};
  asked["instructions"] = "You are a helpful assistant.";
  asked["user"] = "me";
  const Json response = served.post(kPath, asked);
  EXPECT_THAT(response["id"].get<std::string>(), MatchesRegex("resp_[A-Za-z0-9]{24}"));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "k3-mini");
  for (const char* key : {"error", "incomplete_details", "previous_response_id", "max_output_tokens"})
    EXPECT_TRUE(response.at(key).is_null()) << key;
  EXPECT_EQ(response["metadata"], asked["metadata"]);
  EXPECT_EQ(response["instructions"], asked["instructions"]);
  EXPECT_EQ(response["user"], "me");
  EXPECT_EQ(response["temperature"], 0.0);
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_EQ(response["tools"], Json::array());
  EXPECT_EQ(response["parallel_tool_calls"], true);
  EXPECT_EQ(response["text"]["format"]["type"], "text");
  EXPECT_EQ(response["store"], true);

  ASSERT_THAT(types_of(response["output"]), ElementsAre("reasoning", "message"));
  const Json& reasoning = response["output"][0];
  EXPECT_THAT(reasoning["id"].get<std::string>(), MatchesRegex("rs_.*"));
  EXPECT_EQ(reasoning["summary"], Json::array());
  EXPECT_EQ(reasoning["content"][0]["type"], "reasoning_text");
  EXPECT_NE(reasoning["content"][0]["text"], "");
  const Json& message = response["output"][1];
  EXPECT_THAT(message["id"].get<std::string>(), MatchesRegex("msg_.*"));
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["status"], "completed");
  EXPECT_EQ(message["content"], Json::parse(R"([{"type": "output_text", "text": "391", "annotations": [], "logprobs": []}])"));

  const Json& usage = response["usage"];
  EXPECT_GT(usage["input_tokens"], 0);
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_GT(usage["output_tokens"], usage["output_tokens_details"]["reasoning_tokens"]);
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(response["weft"]["profile"], "exact");

  // The same answer as that of a chat, which has the same prompt.
  const Json chat = served.post(
      "/v1/chat/completions",
      {{"model", "k3-mini"},
       {"temperature", 0},
       {"messages", {{{"role", "system"}, {"content", asked["instructions"]}}, {{"role", "user"}, {"content", kMultiply}}}}});
  EXPECT_EQ(chat["choices"][0]["message"]["content"], text_of(response));
  EXPECT_EQ(chat["choices"][0]["message"]["reasoning_content"], reasoning["content"][0]["text"]);
  EXPECT_EQ(chat["usage"]["prompt_tokens"], usage["input_tokens"]);
}

TEST(Responses, StreamIsTheWholeAnswerInOrder) {
  Served served;
  const Json whole = served.post(kPath, request(kMultiply));
  const std::vector<Event> events = stream(served, request(kMultiply));
  EXPECT_THAT(names_of(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                          "response.content_part.done", "response.output_item.done", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done", "response.output_item.done", "response.completed"));
  std::string item;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& data = events[i].data;
    EXPECT_EQ(data["type"], events[i].name);
    EXPECT_EQ(data["sequence_number"], i);
    if (events[i].name == "response.output_item.added") item = data["item"]["id"];
    if (data.contains("item_id")) {
      EXPECT_EQ(data["item_id"], item);
      EXPECT_EQ(data["output_index"], item.starts_with("rs_") ? 0 : 1);
    }
  }
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
  EXPECT_EQ(events[0].data["response"]["output"], Json::array());
  const Json& last = events.back().data["response"];
  EXPECT_EQ(last["id"], events[0].data["response"]["id"]);
  EXPECT_EQ(last["status"], "completed");
  EXPECT_EQ(without_ids(last["output"]), without_ids(whole["output"]));
  EXPECT_EQ(deltas_of(events, "response.output_text.delta"), text_of(whole));
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], deltas_of(events, "response.reasoning_text.delta"));
  EXPECT_GT(last["usage"]["input_tokens_details"]["cached_tokens"], 0);
  Json kept = served.get(fmt::format("{}/{}", kPath, last["id"].get<std::string>()));
  EXPECT_EQ(kept, last);
}

TEST(Responses, FunctionCallsGoRoundByIdAndByItems) {
  Served served;
  const Json asked = with(request(kWeather), "tools", weather_tools());
  const Json first = served.post(kPath, asked);
  EXPECT_EQ(first["status"], "completed");
  const Json& call = first["output"].back();
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "get_weather");
  EXPECT_EQ(call["arguments"], R"({"city": "Tokyo"})");
  EXPECT_EQ(call["status"], "completed");
  EXPECT_THAT(call["id"].get<std::string>(), MatchesRegex("fc_.*"));
  EXPECT_THAT(call["call_id"].get<std::string>(), MatchesRegex("call_.*"));
  EXPECT_EQ(first["tools"][0]["name"], "get_weather");

  const Json result = {{"type", "function_call_output"},
                       {"call_id", call["call_id"]},
                       {"output", R"({"condition": "sunny", "temperature": 4})"}};
  Json by_id = with(asked, "input", Json::array({result}));
  by_id["previous_response_id"] = first["id"];
  const Json second = served.post(kPath, by_id);
  EXPECT_THAT(text_of(second), HasSubstr("Tokyo is sunny"));
  EXPECT_EQ(second["previous_response_id"], first["id"]);

  Json items = {{{"role", "user"}, {"content", kWeather}}};
  for (const Json& item : first["output"]) items.push_back(item);
  items.push_back(result);
  const Json again = served.post(kPath, with(asked, "input", items));
  EXPECT_EQ(without_ids(again["output"]), without_ids(second["output"]));
  EXPECT_EQ(again["usage"]["input_tokens"], second["usage"]["input_tokens"]);

  // Items without the reasoning are another prompt.
  items.erase(1);
  EXPECT_LT(served.post(kPath, with(asked, "input", items))["usage"]["input_tokens"], second["usage"]["input_tokens"]);

  const std::string id = second["id"];
  const Json list = served.get(fmt::format("{}/{}/input_items?order=asc", kPath, id));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(types_of(list["data"]).back(), "function_call_output");
  EXPECT_EQ(list["data"].size(), first["output"].size() + 2);
  EXPECT_EQ(list["data"][0]["content"][0]["text"], kWeather);
  EXPECT_EQ(list["data"][0]["role"], "user");
  const Json page = served.get(fmt::format("{}/{}/input_items?limit=1", kPath, id));
  EXPECT_EQ(page["data"].size(), 1U);
  EXPECT_EQ(page["data"][0], list["data"].back());
  EXPECT_EQ(page["has_more"], true);
  const Json next =
      served.get(fmt::format("{}/{}/input_items?limit=100&after={}", kPath, id, page["last_id"].get<std::string>()));
  EXPECT_EQ(next["data"].size(), list["data"].size() - 1);
  EXPECT_EQ(served.get(fmt::format("{}/{}/input_items?limit=0", kPath, id), 400)["error"]["param"], "limit");
}

TEST(Responses, StreamOfAFunctionCall) {
  Served served;
  const std::vector<Event> events = stream(served, with(request(kWeather), "tools", weather_tools()));
  std::vector<std::string> names = names_of(events);
  names.erase(names.begin(), std::ranges::find(names, "response.output_item.done") + 1);  // the reasoning
  EXPECT_THAT(names, ElementsAre("response.output_item.added", "response.function_call_arguments.delta",
                                 "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(deltas_of(events, "response.function_call_arguments.delta"), R"({"city": "Tokyo"})");
  const Json& done = events[events.size() - 3].data;
  EXPECT_EQ(done["arguments"], R"({"city": "Tokyo"})");
  EXPECT_EQ(done["item_id"], events[events.size() - 2].data["item"]["id"]);
  EXPECT_EQ(events.back().data["response"]["output"].back(), events[events.size() - 2].data["item"]);
}

TEST(Responses, ToolChoice) {
  Served served;
  Json asked = with(request("What is 2 + 2?"), "tools", weather_tools());
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"name", "get_weather"}},
                             Json::parse(R"({"type": "allowed_tools", "mode": "required",
                                             "tools": [{"type": "function", "name": "get_weather"}]})")}) {
    const Json response = served.post(kPath, with(asked, "tool_choice", choice));
    EXPECT_EQ(response["output"].back()["type"], "function_call") << choice;
    EXPECT_EQ(response["tool_choice"], choice);
  }
  EXPECT_EQ(served.post(kPath, with(asked, "tool_choice", "none"))["output"].back()["type"], "message");
}

TEST(Responses, TextFormats) {
  Served served;
  Json asked = request("What is 17 * 23?");
  asked["text"] = Json::parse(R"({"format": {"type": "json_schema", "name": "product", "strict": true, "schema": {
      "type": "object", "properties": {"product": {"type": "integer"}}, "required": ["product"],
      "additionalProperties": false}}})");
  const Json response = served.post(kPath, asked);
  const Json answer = Json::parse(text_of(response));
  EXPECT_TRUE(answer.at("product").is_number_integer());
  EXPECT_EQ(answer.size(), 1U);
  EXPECT_EQ(response["text"], asked["text"]);
  asked["text"] = {{"format", {{"type", "json_object"}}}};
  EXPECT_TRUE(Json::parse(text_of(served.post(kPath, asked))).is_object());
}

TEST(Responses, CutByMaxOutputTokens) {
  Served served;
  const Json response = served.post(kPath, with(request(kMultiply), "max_output_tokens", 3));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["max_output_tokens"], 3);
  EXPECT_EQ(response["usage"]["output_tokens"], 3);
  ASSERT_THAT(types_of(response["output"]), ElementsAre("reasoning"));
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  const std::vector<Event> events = stream(served, with(request(kMultiply), "max_output_tokens", 3));
  EXPECT_EQ(events.back().name, "response.incomplete");
  EXPECT_EQ(without_ids(events.back().data["response"]["output"]), without_ids(response["output"]));
}

TEST(Responses, Reasoning) {
  Served served;
  const Json none = served.post(kPath, with(request(kMultiply), "reasoning", {{"effort", "none"}, {"summary", "auto"}}));
  EXPECT_THAT(types_of(none["output"]), ElementsAre("message"));
  EXPECT_EQ(none["reasoning"], Json::parse(R"({"effort": "none", "summary": "auto"})"));
  EXPECT_THAT(none["weft"]["notes"], IsEmpty());
  const Json hidden = served.post(kPath, with(request(kMultiply), "include_reasoning", false));
  EXPECT_THAT(types_of(hidden["output"]), ElementsAre("message"));
  EXPECT_GT(hidden["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
  const Json medium = served.post(kPath, with(request(kMultiply), "reasoning", {{"effort", "medium"}}));
  EXPECT_THAT(medium["weft"]["notes"].dump(), HasSubstr("reasoning.effort 'medium' is rendered as 'high'"));
}

TEST(Responses, LogProbabilities) {
  Served served;
  Json asked = request(kMultiply);
  asked["include"] = {"message.output_text.logprobs"};
  asked["top_logprobs"] = 2;
  const Json response = served.post(kPath, asked);
  const Json& part = response["output"].back()["content"][0];
  std::string text;
  for (const Json& token : part["logprobs"]) {
    text += token["token"].get<std::string>();
    EXPECT_LE(token["logprob"], 0.0);
    EXPECT_EQ(token["top_logprobs"].size(), 2U);
  }
  EXPECT_EQ(text, "391");
  const std::vector<Event> events = stream(served, asked);
  Json streamed = Json::array();
  for (const Event& event : events) {
    if (event.name != "response.output_text.delta") continue;
    for (const Json& token : event.data["logprobs"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, part["logprobs"]);
}

TEST(Responses, ErrorsNameFieldsOfThisApi) {
  Served served;
  const Json good = request("Hi");
  const auto input = [&](const char* items) { return request(Json::parse(items)); };
  expect_error(served, {{"input", "Hi"}}, "model", "wanted the name of a model");
  expect_error(served, {{"model", "k3-mini"}}, "input", "found nothing");
  expect_error(served, request(Json::array()), "input", "");
  expect_error(served, request(3), "input", "wanted a string or an array of items, found 3");
  expect_error(served, input(R"([{"role": "user", "content": "a"}, {"role": "clown", "content": "b"}])"), "input[1].role",
               "found 'clown'");
  expect_error(served, input(R"([{"role": "user"}])"), "input[0].content", "found nothing");
  expect_error(served, input(R"([{"content": "a"}])"), "input[0].type", "found nothing");
  expect_error(served, input(R"([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])"),
               "input[0].content[0].type", "'input_image'");
  expect_error(served, input(R"([{"type": "computer_call_output"}])"), "input[0].type", "'computer_call_output'");
  expect_error(served, input(R"([{"type": "reasoning", "content": [{"type": "x"}]}])"), "input[0].content[0].type", "'x'");
  expect_error(served, input(R"([{"type": "function_call", "call_id": "a"}])"), "input[0].name", "found nothing");
  // Two items are one message, so the places differ.
  expect_error(served, input(R"([{"type": "reasoning", "content": []}, {"role": "assistant", "content": "a"},
                         {"type": "function_call_output", "call_id": "x", "output": "b"}])"),
               "input[2].call_id", "input[2].call_id: wanted the id of a call");
  expect_error(served, with(good, "tools", {{{"type", "web_search"}}}), "tools[0].type", "'web_search'");
  expect_error(served, with(good, "tools", {{{"type", "function"}, {"name", "a b"}}}), "tools[0].name", "tools[0].name: ");
  expect_error(served, with(good, "tool_choice", "required"), "tool_choice", "");
  expect_error(served, with(good, "tool_choice", {{"type", "file_search"}}), "tool_choice.type", "'file_search'");
  expect_error(served, with(good, "text", {{"format", {{"type", "xml"}}}}), "text.format.type", "'xml'");
  expect_error(served, with(good, "text", {{"format", {{"type", "json_schema"}}}}), "text.format.schema", "found nothing");
  expect_error(
      served,
      with(good, "text",
           Json::parse(R"({"format": {"type": "json_schema", "name": "a", "strict": true, "schema": {"type": "bogus"}}})")),
      "text.format.schema#/type", "text.format.schema#/type: wanted the name of a type");
  const auto format = [&](const char* fields) {
    return with(good, "text",
                Json::parse(fmt::format(R"({{"format": {{"type": "json_schema", "schema": {{}}, {}}}}})", fields)));
  };
  expect_error(served, format(R"("strict": true)"), "text.format.name", "found nothing");
  expect_error(served, format(R"("name": "a b")"), "text.format.name", "found 'a b'");
  expect_error(served, format(R"("name": "a", "strict": 1)"), "text.format.strict", "wanted a boolean, found 1");
  expect_error(served, format(R"("name": "a", "description": 1)"), "text.format.description", "wanted a string, found 1");
  expect_error(served, with(good, "text", {{"verbosity", 1}}), "text.verbosity", "wanted a string, found 1");
  for (const char* key : {"description", "parameters", "strict"}) {
    expect_error(served, with(good, "tools", {{{"type", "function"}, {"name", "f"}, {key, 1}}}),
                 fmt::format("tools[0].{}", key), "found 1");
  }
  for (const char* key : {"max_tool_calls", "service_tier", "prompt_cache_retention", "stream_options"})
    expect_error(served, with(good, key, {true}), key, "found an array");
  expect_error(served, with(good, "stream_options", {{"include_obfuscation", 1}}), "stream_options.include_obfuscation",
               "found 1");
  expect_error(served, with(good, "reasoning", {{"summary", 1}}), "reasoning.summary", "found 1");
  expect_error(served, input(R"([{"role": "user", "content": null}])"), "input[0].content", "found nothing");
  expect_error(served, input(R"([{"role": "user", "content": "a", "id": 1}])"), "input[0].id", "found 1");
  expect_error(served, input(R"([{"role": "user", "content": "a", "status": 1}])"), "input[0].status", "found 1");
  expect_error(served, input(R"([{"type": "reasoning", "summary": "a"}])"), "input[0].summary", "found 'a'");
  expect_error(served, input(R"([{"type": "reasoning", "encrypted_content": 1}])"), "input[0].encrypted_content", "found 1");
  expect_error(served, with(good, "reasoning", {{"effort", "huge"}}), "reasoning.effort", "'huge'");
  expect_error(served, with(good, "max_output_tokens", 0), "max_output_tokens", "max_output_tokens: wanted an integer");
  expect_error(served, with(good, "top_logprobs", 21), "top_logprobs", "found 21");
  expect_error(served, with(good, "temperature", 3), "temperature", "found 3");
  expect_error(served, with(good, "truncation", "some"), "truncation", "'some'");
  expect_error(served, with(good, "background", true), "background", "only while the client waits");
  expect_error(served, with(good, "conversation", "conv_1"), "conversation", "previous_response_id");
  expect_error(served, with(good, "metadata", "a"), "metadata", "wanted an object");
  expect_error(served, with(good, "previous_response_id", "resp_1"), "previous_response_id", "no response 'resp_1'");
  expect_error(served, request(std::string(20000, 'a') + " b"), "input", "");
  EXPECT_EQ(served.post(kPath, with(good, "model", "other"), 404)["error"]["code"], "model_not_found");
}

TEST(Responses, NotesWhatIsNotDone) {
  Served served;
  Json asked = with(request(kMultiply), "max_output_tokens", 1);
  asked["truncation"] = "auto";
  asked["colour"] = "red";
  asked["include"] = {"reasoning.encrypted_content"};
  const http::Response response = served.ask("POST", kPath, asked.dump());
  const std::string notes = Json::parse(response.body)["weft"]["notes"].dump();
  EXPECT_THAT(notes, HasSubstr("truncation 'auto'"));
  EXPECT_THAT(notes, HasSubstr("'colour' is not a known field"));
  EXPECT_THAT(notes, HasSubstr("reasoning.encrypted_content"));
  EXPECT_NE(http::find_header(response.headers, "X-Weft-Warning"), nullptr);
}

TEST(Responses, RecoveredContentClosesTheReasoning) {
  Scripted scripted("It is 4.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
  const std::vector<Event> events = stream(*scripted, request("2 + 2?"));
  EXPECT_THAT(names_of(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                          "response.content_part.done", "response.output_item.done", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done", "response.output_item.done", "response.completed"));
  const Json& response = events.back().data["response"];
  EXPECT_EQ(text_of(response), "It is 4.");
  // The text is not of the reasoning any more.
  EXPECT_EQ(response["output"][0]["content"], Json::array());
  EXPECT_EQ(response["weft"]["recovered_answers"], 1);
}

TEST(ResponseOutput, ACallThatIsNotEndedIsIncomplete) {
  std::vector<std::string> names;
  api::ResponseOutput output([&](std::string_view type, const Json& fields) {
    names.emplace_back(type);
    EXPECT_EQ(fields["output_index"], names.size() > 4 ? 1 : 0);
  });
  ChatEvent event{.kind = ChatEvent::Kind::call_start, .text = "f", .call_index = 0, .call_id = "call_1"};
  output.add(event);
  event = {.kind = ChatEvent::Kind::call_arguments, .text = "{\"a\":", .call_index = 0, .call_id = {}};
  output.add(event);
  event = {.kind = ChatEvent::Kind::content, .text = "x", .call_id = {}};
  output.add(event);
  output.close("completed");
  EXPECT_THAT(names, ElementsAre("response.output_item.added", "response.function_call_arguments.delta",
                                 "response.function_call_arguments.done", "response.output_item.done",
                                 "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                                 "response.output_text.done", "response.content_part.done", "response.output_item.done"));
  EXPECT_EQ(output.items()[0]["status"], "incomplete");
  EXPECT_EQ(output.items()[0]["arguments"], "{\"a\":");
  EXPECT_EQ(output.items()[1]["status"], "completed");
}

TEST(Responses, AFailureAfterTheStartIsAnEvent) {
  Scripted scripted("It is");  // and then the executor fails
  const std::vector<Event> events = stream(*scripted, request("2 + 2?"));
  EXPECT_EQ(events.back().name, "response.failed");
  const Json& response = events.back().data["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"]["code"], "server_error");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "It is");
  EXPECT_EQ(scripted->get(fmt::format("{}/{}", kPath, response["id"].get<std::string>()))["status"], "failed");
  Scripted whole("It is");
  EXPECT_EQ(whole->post(kPath, request("2 + 2?"), 503)["error"]["type"], "unavailable_error");
}

// Ends no earlier than the test wants: its client stops taking.
struct Held {
  explicit Held(Served& served)
      : recorder(served.begin("POST", kPath, with(request(kMultiply), "stream", true).dump(),
                              [](const std::string& body) { return body.find("reasoning_text.delta") != std::string::npos; })) {
    EXPECT_TRUE(recorder->wait_until_full());
    const std::string body = recorder->body();
    id = events_of(body.substr(0, body.find("\n\n") + 2)).front().data["response"]["id"];
  }
  std::shared_ptr<Recorder> recorder;
  std::string id;
};

TEST(Responses, CancelEndsOneThatRuns) {
  Served served;
  const Held held(served);
  const std::string path = fmt::format("{}/{}", kPath, held.id);
  EXPECT_EQ(served.get(path)["status"], "in_progress");
  expect_error(served, with(request("Hi"), "previous_response_id", held.id), "previous_response_id", "still in progress");
  const Json cancelled = Json::parse(served.ask("POST", path + "/cancel").body);
  EXPECT_EQ(cancelled["id"], held.id);
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_NE(cancelled["output"][0]["content"][0]["text"], "");
  const std::vector<Event> events = events_of(api_test::whole(*held.recorder).body);
  EXPECT_EQ(events.back().name, "response.incomplete");
  EXPECT_EQ(events.back().data["response"], cancelled);
  EXPECT_EQ(served.get(path), cancelled);
  // Once more, and of one that has ended.
  EXPECT_EQ(Json::parse(served.ask("POST", path + "/cancel").body), cancelled);
  const Json whole = served.post(kPath, request(kMultiply));
  EXPECT_EQ(Json::parse(served.ask("POST", fmt::format("{}/{}/cancel", kPath, whole["id"].get<std::string>())).body), whole);
}

TEST(Responses, AClientThatLeavesCancels) {
  Served served;
  const Held held(served);
  held.recorder->leave();
  // The engine takes the request's end and this one in order.
  static_cast<void>(served.post(kPath, with(request(kMultiply), "max_output_tokens", 1)));
  EXPECT_EQ(served.get(fmt::format("{}/{}", kPath, held.id))["status"], "cancelled");
}

TEST(Responses, Deleted) {
  Served served;
  const Json whole = served.post(kPath, with(request(kMultiply), "max_output_tokens", 1));
  const std::string path = fmt::format("{}/{}", kPath, whole["id"].get<std::string>());
  EXPECT_EQ(served.get(path), whole);
  EXPECT_EQ(Json::parse(served.ask("DELETE", path).body),
            Json({{"id", whole["id"]}, {"object", "response"}, {"deleted", true}}));
  static_cast<void>(served.get(path, 404));
  EXPECT_EQ(served.ask("DELETE", path).status, 404);
  EXPECT_EQ(served.ask("POST", path + "/cancel").status, 404);
  static_cast<void>(served.get(path + "/input_items", 404));
  // One that runs is not there again at its end.
  const Held held(served);
  const std::string other = fmt::format("{}/{}", kPath, held.id);
  EXPECT_EQ(served.ask("DELETE", other).status, 200);
  held.recorder->take_again();
  EXPECT_EQ(events_of(api_test::whole(*held.recorder).body).back().name, "response.completed");
  static_cast<void>(served.get(other, 404));
  // Nor is one that asked not to be kept.
  const Json passing = served.post(kPath, with(with(request(kMultiply), "max_output_tokens", 1), "store", false));
  EXPECT_EQ(passing["store"], false);
  static_cast<void>(served.get(fmt::format("{}/{}", kPath, passing["id"].get<std::string>()), 404));
}

TEST(Responses, AServerThatKeepsNoneSaysSo) {
  api::RouterOptions options;
  options.responses.most_responses = 0;
  Served served(options);
  const Json asked = with(request(kMultiply), "max_output_tokens", 1);
  const Json whole = served.post(kPath, asked);
  EXPECT_EQ(whole["store"], false);
  EXPECT_THAT(whole.dump(), Not(HasSubstr("keeps no responses"))) << "nobody asked";
  static_cast<void>(served.get(fmt::format("{}/{}", kPath, whole["id"].get<std::string>()), 404));
  EXPECT_THAT(served.post(kPath, with(asked, "store", true))["weft"].dump(), HasSubstr("keeps no responses"));
  for (const Event& event : stream(served, asked)) {
    if (!event.data.contains("response")) continue;
    EXPECT_EQ(event.data["response"]["store"], false) << event.name;
  }
}

TEST(Responses, PathsAndMethods) {
  Served served;
  EXPECT_EQ(served.ask("POST", "/v1/responses/resp_1", "{}").status, 405);
  EXPECT_EQ(*http::find_header(served.ask("POST", "/v1/responses/resp_1", "{}").headers, "Allow"), "GET, DELETE");
  EXPECT_EQ(served.ask("GET", "/v1/responses").status, 405);
  EXPECT_EQ(served.ask("GET", "/v1/responses/resp_1/cancel").status, 405);
  EXPECT_EQ(served.ask("GET", "/v1/responses/").status, 404);
  EXPECT_EQ(served.ask("GET", "/v1/responses//input_items").status, 404);
  EXPECT_THAT(served.get("/v1/responses/a/b", 404)["error"]["message"].get<std::string>(), HasSubstr("there is no /v1"));
  EXPECT_EQ(served.ask("GET", "/v1/models/k3-mini").status, 200);
  EXPECT_THAT(served.get("/v1/models/a/b", 404)["error"]["message"].get<std::string>(), HasSubstr("'a/b'"));
}

using api::ResponseItems;
using api::ResponsesStore;
using api::StoredResponse;

std::shared_ptr<StoredResponse> stored(const std::string& id, int64_t body, int64_t items) {
  auto made = std::make_shared<StoredResponse>();
  made->id = id;
  made->body = std::string(static_cast<size_t>(body), 'b');
  made->items = std::make_shared<ResponseItems>(ResponseItems{std::string(static_cast<size_t>(items), 'i'), ""});
  return made;
}

TEST(ResponsesStore, TheLeastRecentlyUsedLeaves) {
  ResponsesStore store({.most_responses = 3, .most_bytes = 1000});
  for (const char* id : {"a", "b", "c"}) store.add(stored(id, 1, 1));
  EXPECT_NE(store.find("a"), nullptr);
  store.add(stored("d", 1, 1));
  EXPECT_EQ(store.responses(), 3);
  EXPECT_EQ(store.find("b"), nullptr);
  EXPECT_NE(store.find("a"), nullptr);
  EXPECT_EQ(store.bytes(), 6);
}

TEST(ResponsesStore, BytesAreBoundedAndSharedOnesCountOnce) {
  ResponsesStore store({.most_responses = 100, .most_bytes = 100});
  const auto first = stored("a", 10, 20);
  store.add(first);
  const auto second = stored("b", 10, 20);
  second->history = {first->items};
  store.add(second);
  EXPECT_EQ(store.bytes(), 60);
  EXPECT_TRUE(store.remove("a"));
  EXPECT_EQ(store.bytes(), 50);  // b still needs its items
  store.add(stored("c", 30, 20));
  EXPECT_EQ(store.bytes(), 100);
  store.add(stored("d", 1, 0));
  EXPECT_EQ(store.find("b"), nullptr);
  EXPECT_EQ(store.bytes(), 51);
  store.add(stored("e", 101, 0));  // more than there is room for
  EXPECT_EQ(store.responses(), 0);
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponsesStore, RunningOnesStayAndReplacedOnesCountOnce) {
  ResponsesStore store({.most_responses = 1, .most_bytes = 1000});
  const auto running = stored("a", 1, 1);
  running->running = true;
  store.add(running);
  store.add(stored("b", 1, 1));
  ASSERT_NE(store.find("a"), nullptr);
  EXPECT_EQ(store.find("b"), nullptr);
  store.replace(stored("a", 5, 5));
  EXPECT_EQ(store.bytes(), 10);
  ASSERT_NE(store.find("a"), nullptr);
  EXPECT_FALSE(store.find("a")->running);
  store.replace(stored("z", 1, 1));  // was never there
  EXPECT_EQ(store.find("z"), nullptr);
  store.add(stored("c", 1, 1));
  EXPECT_EQ(store.find("a"), nullptr);
}

}  // namespace
}  // namespace weft::api_test
