// The API around a model, without HTTP: requests go to the router, answers come from recorders.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/engine_fixture.h"
#include "engine/executors.h"
#include "server/api/router.h"
#include "server/recorder.h"

namespace weft::api_test {

using server_test::Recorder;

struct Event {
  std::string name;
  Json data;
};

// Of a stream with "event:" lines.
inline std::vector<Event> events_of(const std::string& body) {
  std::vector<Event> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) throw std::runtime_error("an event without an end: " + body.substr(at));
    const std::string one = body.substr(at, end - at);
    at = end + 2;
    const size_t line = one.find("\ndata: ");
    if (!one.starts_with("event: ") || line == std::string::npos) throw std::runtime_error("no event: " + one);
    events.push_back({one.substr(7, line - 7), Json::parse(one.substr(line + 7))});
  }
  return events;
}

// The head with the whole body.
inline http::Response whole(Recorder& recorder) {
  EXPECT_TRUE(recorder.wait_until_over());
  http::Response response = recorder.head();
  response.body = recorder.body();
  return response;
}

class Served {
 public:
  explicit Served(const Model& model, const EngineOptions& options, api::RouterOptions router_options = {})
      : engine_(model.executor(), options),
        service_(model, engine_, metrics_, {.names = {"k3-mini"}, .build = "test 0", .defaults = {}, .default_max_tokens = {}}),
        status_(model, engine_, metrics_, {}),
        router_(std::move(router_options), metrics_) {
    router_.open(service_, status_);
  }
  // k3-mini, loaded once.
  explicit Served(api::RouterOptions router_options = {})
      : Served(engine_test::mini(), engine_test::engine_options(), std::move(router_options)) {}

  // Starts a request.
  std::shared_ptr<Recorder> begin(const std::string& method, const std::string& target, const std::string& body = "",
                                  std::function<bool(const std::string&)> stop_taking = {}) {
    http::Request request;
    request.method = method;
    request.target = target;
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
    request.body = body;
    if (method == "POST" && !body.empty()) request.headers.push_back({"Content-Type", "application/json"});
    const auto recorder = std::make_shared<Recorder>(std::move(request));
    recorder->stop_taking_when(std::move(stop_taking));
    if (std::optional<http::Response> refused = router_.admit(recorder->request())) {
      recorder->respond(std::move(*refused));
    } else {
      router_.handle(recorder);
    }
    return recorder;
  }
  http::Response ask(const std::string& method, const std::string& target, const std::string& body = "") {
    return whole(*begin(method, target, body));
  }
  Json post(const std::string& target, const Json& body, int status = 200) {
    const http::Response response = ask("POST", target, body.dump());
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body);
  }
  Json get(const std::string& target, int status = 200) {
    const http::Response response = ask("GET", target);
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body);
  }

 private:
  ServerMetrics metrics_;
  EngineThread engine_;
  api::Service service_;
  StatusReport status_;
  api::Router router_;
};

// The API around an executor that writes what it is told, in which control tokens are spelled out.
class Scripted {
 public:
  explicit Scripted(const std::string& text, api::RouterOptions router_options = {})
      : executor_(
            new engine_test::ScriptedExecutor(engine_test::format().tokenizer().vocab_size() + 100, engine_test::ids_of(text))),
        model_(ChatFormat::load(engine_test::mini_dir()), std::unique_ptr<Executor>(executor_), 4096, {}),
        served_(model_, options(model_), std::move(router_options)) {}

  Served& operator*() { return served_; }
  Served* operator->() { return &served_; }

 private:
  static EngineOptions options(const Model& model) {
    EngineOptions made = engine_test::engine_options(model);
    made.state_memory = ByteCount(1000);
    return made;
  }

  engine_test::ScriptedExecutor* executor_;  // the model's
  Model model_;
  Served served_;
};

}  // namespace weft::api_test
