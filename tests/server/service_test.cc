// Routes, keys, health, ends: the API around its answers (prompt_and_api.md 6.1, 6.7 to 6.10; case C14).
#include <set>

#include <gmock/gmock.h>

#include "server/http/server.h"

#include "api_fixture.h"
#include "http_client.h"
#include "http_util.h"

namespace weft::server_test {
namespace {

using http::Header;
using ::testing::HasSubstr;
using ::testing::Not;

const Header kJsonType{"Content-Type", "application/json"};

TEST(Routes, UnknownPathsMethodsAndTypes) {
  Api api(engine_test::mini());
  EXPECT_EQ(api.send("GET", "/nothing")->status(), 404);
  const auto wrong = api.send("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_EQ(*http::find_header(wrong->head().headers, "Allow"), "POST");
  EXPECT_EQ(api.send("POST", "/tokenize", "{}", {{"Content-Type", "text/plain"}})->status(), 415);
  EXPECT_EQ(api.send("POST", "/tokenize", "{}", {})->status(), 415);
  EXPECT_EQ(
      api.send("POST", "/tokenize", "{\"content\":\"x\"}", {{"content-type", "Application/JSON; charset=utf-8"}})->status(),
      200);
  EXPECT_EQ(api.send("POST", "/v1/embeddings", "{}")->status(), 501);
  for (const char* body : {"", "{", "[]", "\"x\"", "{\"a\":1,\"a\":2}", "{\"model\":\"\xff\"}"}) {
    const auto bad = api.send("POST", "/v1/chat/completions", body);
    EXPECT_EQ(bad->status(), 400) << body;
    EXPECT_EQ(parse_json(bad->body(), "answer")["error"]["code"], "invalid_json") << body;
  }
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_EQ(api.send("POST", "/v1/chat/completions", "{\"messages\":" + deep + "}")->status(), 400);
}

TEST(Routes, ACodedBodyIsRefused) {
  Api api(engine_test::mini());
  const auto ask = [&](const std::vector<std::string>& codings) {
    std::vector<Header> headers{kJsonType};
    for (const std::string& coding : codings) headers.push_back({"content-encoding", coding});
    return api.send("POST", "/tokenize", R"({"content":"x"})", std::move(headers));
  };
  const std::vector<std::vector<std::string>> coded{
      {"gzip"}, {"GZip"}, {"identity, gzip"}, {" ,\tgzip , identity"}, {"identity", "gzip"}, {"gzip;q=1"}};
  for (const std::vector<std::string>& codings : coded) {
    const auto refused = ask(codings);
    ASSERT_EQ(refused->status(), 415) << codings[0];
    EXPECT_THAT(refused->body(), ::testing::ContainsRegex("Content-Encoding: wanted none, found (gzip|GZip)")) << codings[0];
    EXPECT_EQ(*http::find_header(refused->head().headers, "Accept-Encoding"), "identity");
  }
  const std::vector<std::vector<std::string>> plain{{}, {"identity"}, {"Identity"}, {""}, {" , "}, {"identity", "identity"}};
  for (const std::vector<std::string>& codings : plain) EXPECT_EQ(ask(codings)->status(), 200);
}

TEST(Routes, EachAnswerNamesItsRequest) {
  Api api(engine_test::mini());
  const auto first = api.send("GET", "/health");
  const auto second = api.send("GET", "/health");
  const std::string* id = http::find_header(first->head().headers, "x-request-id");
  ASSERT_NE(id, nullptr);
  EXPECT_NE(*id, *http::find_header(second->head().headers, "x-request-id"));
  EXPECT_THAT(first->noted(), HasSubstr(*id)) << "the log line has it too";
}

TEST(Routes, EachRefusalNamesItsRequest) {
  ServerMetrics metrics;
  api::RouterOptions options;
  options.keys = {"k"};
  options.cors_origins = {"*"};
  api::Router router(options, metrics);
  std::vector<http::Response> refusals;
  const auto ask = [&](const std::string& method, const std::string& path, std::vector<Header> headers) {
    http::Request request;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    refusals.push_back(router.admit(request).value_or(http::Response{}));
    return refusals.back().status;
  };
  const Header key{"x-api-key", "k"};
  EXPECT_EQ(ask("GET", "/v1/models", {}), 401);
  EXPECT_EQ(ask("GET", "/nothing", {key}), 404);
  EXPECT_EQ(ask("GET", "/tokenize", {key}), 405);
  EXPECT_EQ(ask("POST", "/tokenize", {key}), 415);
  EXPECT_EQ(ask("GET", "/v1/models", {key}), 503);
  EXPECT_EQ(ask("OPTIONS", "/tokenize", {{"Origin", "https://a.example"}, {"Access-Control-Request-Method", "POST"}}), 204);
  for (const int status : {400, 408, 411, 413, 417, 431, 500, 503}) refusals.push_back(router.refuse(status, "why"));
  std::set<std::string> ids;
  for (const http::Response& refusal : refusals) {
    const std::string* id = http::find_header(refusal.headers, "X-Request-Id");
    ASSERT_NE(id, nullptr) << refusal.status;
    EXPECT_THAT(*id, ::testing::StartsWith("req_"));
    EXPECT_THAT(refusal.note, HasSubstr(*id)) << "the log line has it too";
    ids.insert(*id);
  }
  EXPECT_EQ(ids.size(), refusals.size());
}

TEST(Routes, ABodyOfAGetIsIgnored) {
  Api api(engine_test::mini());
  http::ServerOptions options;
  options.port = 0;
  http::Server server(options, *api.router);
  const auto ask = [&](const std::string& method, const std::string& path, size_t bytes) {
    http_test::Client client(server.port());
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                            method, path, bytes, std::string(bytes, '{')));
    return client.read_answer();
  };
  EXPECT_EQ(ask("GET", "/v1/models", 2).status, 200);
  EXPECT_EQ(ask("GET", "/health", 65536).status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/responses/none", 2).status, 404);
  const http_test::Answer refused = ask("GET", "/health", 65537);
  EXPECT_EQ(refused.status, 413);
  EXPECT_THAT(refused.body, HasSubstr("at most 65536 bytes"));
}

TEST(Routes, ModelsAndVersion) {
  api::ServiceOptions names;
  names.names = {"org/model", "other"};
  Api api(engine_test::mini(), {}, names);
  const Json list = parse_json(api.send("GET", "/v1/models")->body(), "answer");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][0]["id"], "org/model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(parse_json(api.send("GET", "/v1/models/org/model")->body(), "answer")["object"], "model");
  const auto missing = api.send("GET", "/v1/models/nobody");
  EXPECT_EQ(missing->status(), 404);
  EXPECT_EQ(parse_json(missing->body(), "answer")["error"]["code"], "model_not_found");
  EXPECT_TRUE(parse_json(api.send("GET", "/version")->body(), "answer").contains("version"));
}

TEST(Routes, Keys) {
  api::RouterOptions keys;
  keys.keys = {"first-key", "second-key"};
  Api api(engine_test::mini(), {}, {}, keys);
  EXPECT_EQ(api.send("GET", "/health")->status(), 200);
  EXPECT_EQ(api.send("GET", "/v1/health")->status(), 200);
  const auto missing = api.send("GET", "/v1/models");
  const auto wrong = api.send("GET", "/v1/models", "", {{"Authorization", "Bearer nope"}});
  EXPECT_EQ(missing->status(), 401);
  EXPECT_EQ(missing->body(), wrong->body());
  EXPECT_EQ(parse_json(wrong->body(), "answer")["error"]["code"], "invalid_api_key");
  EXPECT_EQ(api.send("GET", "/nothing")->status(), 401) << "paths are nobody's business";
  EXPECT_EQ(api.send("GET", "/metrics")->status(), 401);
  for (const Header& good : {Header{"Authorization", "Bearer second-key"}, Header{"authorization", "bearer first-key"},
                             Header{"X-API-Key", "first-key"}}) {
    EXPECT_EQ(api.send("GET", "/v1/models", "", {good})->status(), 200) << good.name;
  }
  for (const std::string value : {"Bearer", "Bearer ", "first-key", "Basic first-key", "Bearer first-key2"}) {
    EXPECT_EQ(api.send("GET", "/v1/models", "", {{"Authorization", value}})->status(), 401) << value;
  }
}

TEST(Routes, Cors) {
  api::RouterOptions options;
  options.keys = {"k"};
  options.cors_origins = {"https://a.example"};
  Api api(engine_test::mini(), {}, {}, options);
  const auto preflight = api.send("OPTIONS", "/v1/chat/completions", "",
                                  {{"Origin", "https://a.example"}, {"Access-Control-Request-Method", "POST"}});
  EXPECT_EQ(preflight->status(), 204) << "before the key";
  EXPECT_EQ(*http::find_header(preflight->head().headers, "access-control-allow-origin"), "https://a.example");
  EXPECT_THAT(*http::find_header(preflight->head().headers, "access-control-allow-headers"), HasSubstr("Authorization"));
  const auto other = api.send("OPTIONS", "/v1/chat/completions", "",
                              {{"Origin", "https://b.example"}, {"Access-Control-Request-Method", "POST"}});
  EXPECT_EQ(other->status(), 401);
  EXPECT_EQ(http::find_header(other->head().headers, "access-control-allow-origin"), nullptr);
  const auto asked = api.send("GET", "/v1/models", "", {{"Origin", "https://a.example"}, {"x-api-key", "k"}});
  EXPECT_EQ(asked->status(), 200);
  EXPECT_EQ(*http::find_header(asked->head().headers, "access-control-allow-origin"), "https://a.example");
  const std::string* exposed = http::find_header(asked->head().headers, "access-control-expose-headers");
  ASSERT_NE(exposed, nullptr);
  EXPECT_THAT(*exposed, HasSubstr("X-Request-Id"));
  const auto refused = api.send("GET", "/v1/models", "", {{"Origin", "https://a.example"}});
  EXPECT_EQ(refused->status(), 401);
  exposed = http::find_header(refused->head().headers, "access-control-expose-headers");
  ASSERT_NE(exposed, nullptr);
  EXPECT_THAT(*exposed, HasSubstr("X-Request-Id"));
  Api none(engine_test::mini());
  EXPECT_EQ(http::find_header(none.send("GET", "/v1/models", "", {{"Origin", "https://a.example"}})->head().headers,
                              "access-control-allow-origin"),
            nullptr);
}

TEST(Text, ThereAndBack) {
  Api api(engine_test::mini());
  const Json tokens = api.json("/tokenize", {{"content", "Hello <|open|>"}});
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(api.json("/detokenize", {{"tokens", tokens["tokens"]}})["content"], "Hello <|open|>");
  const Json special = api.json("/tokenize", {{"content", "Hello <|open|>"}, {"parse_special", true}});
  EXPECT_LT(special["count"].get<int64_t>(), tokens["count"].get<int64_t>());
  const Json pieces = api.json("/tokenize", {{"content", "\xF0\x9F\x98\x80"}, {"with_pieces", true}});
  for (const Json& token : pieces["tokens"]) EXPECT_TRUE(token["piece"].is_string() || token["piece"].is_array());
  Json chat = chat_body("Hi");
  const Json prompt = api.json("/apply-template", chat);
  EXPECT_THAT(prompt["prompt"].get<std::string>(), HasSubstr("<|open|>message"));
  const Json of_chat = api.json("/tokenize", chat);
  EXPECT_EQ(api.json("/detokenize", {{"tokens", of_chat["tokens"]}})["content"], prompt["prompt"]);
  EXPECT_EQ(api.json("/detokenize", {{"tokens", {-1}}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(api.json("/tokenize", Json::object(), 400)["error"]["param"], "content");
  EXPECT_EQ(api.json("/tokenize", {{"content", "x"}, {"add_special", true}}, 400)["error"]["param"], "add_special");
}

TEST(Service, MetricsParseAndCount) {
  Api api(engine_test::mini());
  static_cast<void>(api.json("/v1/chat/completions", chat_body("What is 17 * 23? Answer with the number only.")));
  api.router->finished({"POST", "/v1/chat/completions", "", 200, 1, 1, "", 0.1});
  api.router->finished({"GET", "/etc/passwd", "", 404, 0, 1, "", 0.1});
  const std::string text = api.send("GET", "/metrics")->body();
  for (const char* part :
       {"weft_requests_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 1", "weft_requests_total{endpoint=\"other\"",
        "weft_prompt_tokens_total 100", "weft_time_to_first_token_seconds_count 1", "weft_answers_total{end=\"stop\"} 1",
        "weft_kv_usage_ratio"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("passwd"))) << "labels are the server's own";
}

TEST(Service, TheStatusHasTheLimitThatIsKnown) {
  Api api(engine_test::mini());
  const Json unknown = parse_json(api.send("GET", "/status")->body(), "answer")["limit"];
  const Json& bytes = unknown["bytes_per_token"];
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(unknown.size(), 1U) << "no member without a value: " << unknown;
  constexpr double kBandwidth = 1e9;
  const StatusReport status(engine_test::mini(), *api.engine, api.metrics, {"", "test-model", {}, kBandwidth});
  const Json known = status.json()["limit"];
  EXPECT_EQ(known["bytes_per_token"], bytes);
  EXPECT_EQ(known["bytes_per_second"], kBandwidth);
  EXPECT_EQ(known["tokens_per_second"], kBandwidth / bytes.get<double>());
  EXPECT_EQ(known["share"], 0.0);
}

TEST(Service, WhileLoadingAndWhileDraining) {
  ServerMetrics metrics;
  api::Router router({}, metrics);
  http::Request request;
  request.method = "GET";
  request.path = "/health";
  auto health = std::make_shared<Recorder>(request);
  router.handle(health);
  EXPECT_EQ(health->status(), 503);
  EXPECT_EQ(parse_json(health->body(), "answer")["error"]["code"], "loading");
  request.path = "/v1/models";
  EXPECT_EQ(router.admit(request)->status, 503);

  Api api(engine_test::mini());
  api.service->drain();
  EXPECT_EQ(api.send("GET", "/health")->status(), 503);
  const auto refused = api.send("POST", "/v1/chat/completions", chat_body("Hi").dump());
  EXPECT_EQ(refused->status(), 503);
  EXPECT_EQ(parse_json(refused->body(), "answer")["error"]["code"], "draining");
}

// A stream that goes on until the context is full.
Json endless() {
  Json body = chat_body("Hello");
  body["stream"] = true;
  body["ignore_eos"] = true;
  return body;
}

// One whose first text has come.
std::shared_ptr<Recorder> begin_endless(Api& api, const Json& body = endless()) {
  auto recorder = api.send("POST", "/v1/chat/completions", body.dump());
  EXPECT_TRUE(recorder->wait_for([](const std::string& text) { return text.find("reasoning") != std::string::npos; }));
  return recorder;
}

TEST(Service, AFullQueueIs429) {
  EngineOptions options;
  options.max_running = 1;
  options.max_queue = 2;
  Api api(engine_test::mini(), options);
  Json body = endless();
  const auto running = begin_endless(api);
  const auto waiting = api.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(waiting->wait_for([](const std::string& text) { return text.find("assistant") != std::string::npos; }))
      << "the first chunk comes while it waits";
  // Several choices are queued whole or not at all.
  body["n"] = 2;
  const auto refused = api.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(refused->wait_until_over());
  EXPECT_EQ(refused->status(), 429);
  EXPECT_EQ(parse_json(refused->body(), "answer")["error"]["code"], "queue_full");
  EXPECT_EQ(*http::find_header(refused->head().headers, "retry-after"), "1");
  waiting->leave();
  running->leave();
  EXPECT_TRUE(api.idle());
  // More than the queue could ever hold.
  body["n"] = 4;
  const auto many = api.send("POST", "/v1/chat/completions", body.dump());
  ASSERT_TRUE(many->wait_until_over());
  EXPECT_EQ(many->status(), 400);
  EXPECT_EQ(parse_json(many->body(), "answer")["error"]["param"], "n");
  EXPECT_TRUE(api.idle());
}

TEST(Service, OneThatWaitsTooLongIsAnError) {
  EngineOptions options;
  options.max_running = 1;
  options.queue_seconds = 0.05;
  Api api(engine_test::mini(), options);
  Json body = endless();
  const auto running = begin_endless(api);
  const auto waited = api.ask("/v1/chat/completions", chat_body("Hello"));
  EXPECT_EQ(waited->status(), 503) << waited->body();
  EXPECT_EQ(parse_json(waited->body(), "answer")["error"]["code"], "timeout");
  running->leave();
  EXPECT_TRUE(api.idle());
}

TEST(Service, AClientThatLeavesFreesItsRequest) {
  for (const bool streamed : {false, true}) {
    Api api(engine_test::mini());
    Json body = chat_body("Hello");
    body["stream"] = streamed;
    body["ignore_eos"] = true;
    const auto recorder = api.send("POST", "/v1/chat/completions", body.dump());
    if (streamed) {
      ASSERT_TRUE(recorder->wait_for([](const std::string& text) { return text.find("reasoning") != std::string::npos; }));
    }
    recorder->leave();
    EXPECT_TRUE(api.idle());
    const std::string after = recorder->body();
    EXPECT_THAT(after, Not(HasSubstr("[DONE]")));
    // And one that was gone before it was heard of.
    const auto gone = std::make_shared<Recorder>([&] {
      http::Request request;
      request.method = "POST";
      request.path = "/v1/chat/completions";
      request.body = body.dump();
      return request;
    }());
    gone->leave();
    api.router->handle(gone);
    EXPECT_TRUE(api.idle());
  }
}

TEST(Service, ASlowReaderRestsAlone) {
  Api api(engine_test::mini());
  Json body = endless();
  body["max_tokens"] = 200;
  const auto slow = begin_endless(api, body);
  slow->stop_taking();
  // Another one is answered meanwhile.
  EXPECT_EQ(api.json("/v1/chat/completions",
                     chat_body("What is 17 * 23? Answer with the number only."))["choices"][0]["message"]["content"],
            "391");
  EXPECT_THAT(slow->body(), Not(HasSubstr("[DONE]")));
  slow->take_again();
  ASSERT_TRUE(slow->wait_until_over());
  EXPECT_THAT(slow->body(), HasSubstr("[DONE]"));
}

// An executor that fails outside of any step: a worker that is dead.
class DyingExecutor : public engine_test::ScriptedExecutor {
 public:
  using ScriptedExecutor::ScriptedExecutor;
  Completion next() override {
    Completion completion = ScriptedExecutor::next();
    if (dead) fail(ErrorKind::internal, "worker", "killed on purpose");
    return completion;
  }
  std::atomic<bool> dead = false;
};

TEST(Cases, C14TwoPromptsAtOnceAndADeadWorker) {
  {
    Api api(engine_test::mini());
    const auto shorter = api.send("POST", "/v1/completions", R"({"model":"default","prompt":"a b c d e","max_tokens":5})");
    std::string text = "word";
    for (int i = 0; i < 49; ++i) text += " word";
    const auto longer =
        api.send("POST", "/v1/completions", Json{{"model", "default"}, {"prompt", text}, {"max_tokens", 5}}.dump());
    ASSERT_TRUE(shorter->wait_until_over());
    ASSERT_TRUE(longer->wait_until_over());
    EXPECT_EQ(shorter->status(), 200);
    EXPECT_EQ(longer->status(), 200);
  }
  const std::string text(2000, 'x');
  auto* executor = new DyingExecutor(engine_test::format().tokenizer().vocab_size(), engine_test::ids_of(text));
  const Model model(ChatFormat::load(engine_test::mini_dir()), std::unique_ptr<Executor>(executor), 65536, {});
  EngineOptions options;
  options.state_memory = ByteCount(1000);
  Api api(model, options);
  EXPECT_EQ(api.send("GET", "/health")->status(), 200);
  Json body = chat_body("Hi");
  body["stream"] = true;
  const auto under_way = api.send("POST", "/v1/chat/completions", body.dump());
  executor->dead = true;
  ASSERT_TRUE(under_way->wait_until_over()) << "nobody waits for ever";
  if (under_way->streamed()) {
    const Streamed stream = read_stream(under_way->body());
    EXPECT_TRUE(stream.errors == 1 || !stream.finishes.empty());
    EXPECT_EQ(stream.done, 1);
    EXPECT_THAT(under_way->body(), Not(HasSubstr("killed"))) << "details are in the log";
  }
  const auto after = api.ask("/v1/chat/completions", chat_body("Hi"));
  EXPECT_EQ(after->status(), 500);
  // Told by the engine's thread behind the step, of which the client knows already.
  const auto health = [&](int status) {
    return http_test::eventually([&] { return api.send("GET", "/health")->status() == status; });
  };
  EXPECT_TRUE(health(503));
  executor->dead = false;
  executor->then(engine_test::ids_of("x<|end_of_msg|>"));
  static_cast<void>(api.ask("/v1/chat/completions", chat_body("Hi")));
  EXPECT_TRUE(health(200)) << "a worker that works again";
}

TEST(Service, TheEndOfTheEngineIsToldToEveryClient) {
  Api api(engine_test::mini());
  Json body = chat_body("Hello");
  body["ignore_eos"] = true;
  const auto whole = api.send("POST", "/v1/chat/completions", body.dump());
  const auto streamed = begin_endless(api);
  api.engine->stop();
  ASSERT_TRUE(whole->wait_until_over());
  ASSERT_TRUE(streamed->wait_until_over());
  EXPECT_EQ(whole->status(), 503);
  const Streamed stream = read_stream(streamed->body());
  EXPECT_EQ(stream.errors, 1);
  EXPECT_EQ(stream.done, 1);
  EXPECT_TRUE(stream.finishes.empty());
  EXPECT_EQ(api.ask("/v1/chat/completions", chat_body("Hi"))->status(), 503);
}

}  // namespace
}  // namespace weft::server_test
