// The API without a network, around a model of any kind.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/engine_fixture.h"
#include "engine/executors.h"
#include "engine/grammar_fixture.h"
#include "server/api/router.h"

#include "recorder.h"

namespace weft::server_test {

// What a client makes of a stream of chat chunks.
struct Streamed {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<std::string> finishes;
  std::vector<Json> chunks;
  int done = 0;  // [DONE]
  int errors = 0;
  bool clean = true;  // all lines were of the form that they should have
};

inline Streamed read_stream(const std::string& body) {
  Streamed made;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) {
      made.clean = false;
      break;
    }
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event == ": keep-alive") continue;
    if (!event.starts_with("data: ") || made.done > 0 || event.find('\n') != std::string::npos) {
      made.clean = false;
      continue;
    }
    if (event == "data: [DONE]") {
      ++made.done;
      continue;
    }
    made.chunks.push_back(parse_json(event.substr(6), "chunk"));
    const Json& chunk = made.chunks.back();
    if (chunk.contains("error")) {
      ++made.errors;
      continue;
    }
    for (const Json& choice : chunk.at("choices")) {
      const Json& delta = choice.at("delta");
      for (const auto& [key, value] : delta.items()) made.clean = made.clean && !value.is_null();
      if (delta.contains("reasoning_content")) made.reasoning += delta["reasoning_content"].get<std::string>();
      if (delta.contains("content")) made.content += delta["content"].get<std::string>();
      if (delta.contains("tool_calls")) {
        for (const Json& call : delta["tool_calls"]) {
          const auto index = call.at("index").get<size_t>();
          if (made.calls.size() <= index) made.calls.resize(index + 1);
          if (call.contains("id")) made.calls[index].id = call["id"];
          const Json& function = call.at("function");
          if (function.contains("name")) made.calls[index].name = function["name"];
          made.calls[index].arguments += function.at("arguments").get<std::string>();
        }
      }
      if (!choice.at("finish_reason").is_null()) made.finishes.push_back(choice["finish_reason"]);
    }
  }
  return made;
}

class Api {
 public:
  // Of a model that is somebody else's.
  explicit Api(const Model& model, EngineOptions options = {}, api::ServiceOptions service_options = {},
               const api::RouterOptions& router_options = {}) {
    if (options.max_context == 0) options.max_context = model.max_context();
    if (options.state_memory.value == 0) options.state_memory = ByteCount(256 << 20);
    if (service_options.names.empty()) service_options.names = {"test-model"};
    service_options.build = "0.1.0 test";
    engine = std::make_unique<EngineThread>(model.executor(), options);
    service = std::make_unique<api::Service>(model, *engine, metrics, service_options);
    status = std::make_unique<StatusReport>(model, *engine, metrics, StatusOptions{"0.1.0 test", "test-model", {}, {}});
    router = std::make_unique<api::Router>(router_options, metrics);
    router->open(*service, *status);
  }
  ~Api() { engine->stop(); }
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // As the HTTP server does it, but waits for nothing.
  std::shared_ptr<Recorder> send(std::string method, std::string path, std::string body = "",
                                 std::vector<http::Header> headers = {{"Content-Type", "application/json"}}) {
    http::Request request;
    request.method = std::move(method);
    request.path = request.target = std::move(path);
    request.headers = std::move(headers);
    const std::optional<http::Response> refusal = router->admit(request);
    request.body = std::move(body);
    auto recorder = std::make_shared<Recorder>(std::move(request));
    if (refusal) {
      recorder->respond(*refusal);
    } else {
      router->handle(recorder);
    }
    return recorder;
  }
  std::shared_ptr<Recorder> ask(const std::string& path, const Json& body) {
    auto recorder = send("POST", path, body.dump());
    EXPECT_TRUE(recorder->wait_until_over()) << path;
    return recorder;
  }
  Json json(const std::string& path, const Json& body, int status_wanted = 200) {
    const auto recorder = ask(path, body);
    EXPECT_EQ(recorder->status(), status_wanted) << recorder->body();
    return parse_json(recorder->body(), "answer");
  }
  Streamed stream(Json body, const std::string& path = "/v1/chat/completions") {
    body["stream"] = true;
    const auto recorder = ask(path, body);
    EXPECT_EQ(recorder->status(), 200) << recorder->body();
    EXPECT_TRUE(recorder->streamed());
    return read_stream(recorder->body());
  }

  // Until the engine holds no request; false after a minute.
  [[nodiscard]] bool idle() const {
    for (int i = 0; i < 6000; ++i) {
      const EngineThread::Figures figures = engine->figures();
      if (figures.running == 0 && figures.queued == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  ServerMetrics metrics;
  std::unique_ptr<EngineThread> engine;
  std::unique_ptr<api::Service> service;
  std::unique_ptr<StatusReport> status;
  std::unique_ptr<api::Router> router;
};

inline Json chat_body(const std::string& text) {
  return {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0}};
}

// A model that writes a script, whatever it is asked.
struct Scripted {
  explicit Scripted(const std::string& text)
      : executor(new engine_test::ScriptedExecutor(engine_test::format().tokenizer().vocab_size(), engine_test::ids_of(text))),
        model(ChatFormat::load(engine_test::mini_dir()), std::unique_ptr<Executor>(executor), 65536, {}),
        api(model, options()) {}
  // In ChatML.
  Scripted(const std::string& text, bool thinking) : Scripted(text, engine_test::make_qwen_format(thinking)) {}

  engine_test::ScriptedExecutor* executor;
  Model model;
  Api api;

 private:
  Scripted(const std::string& text, ChatFormat format)
      : executor(new engine_test::ScriptedExecutor(format.tokenizer().vocab_size(), format.tokenizer().encode(text, true))),
        model(std::move(format), std::unique_ptr<Executor>(executor), 65536, {}),
        api(model, options()) {}
  static EngineOptions options() {
    EngineOptions made;
    made.state_memory = ByteCount(1000);
    return made;
  }
};

}  // namespace weft::server_test
