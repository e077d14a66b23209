// The end of a server, however it comes.
#include "server/serving.h"

#include <memory>
#include <stdexcept>

#include <gmock/gmock.h>

#include "engine/engine_fixture.h"

#include "http_client.h"

namespace weft::server_test {
namespace {

using http_test::Client;
using ::testing::HasSubstr;

struct Opened {
  Opened() : router({}, metrics), server(options(), router) {}

  static http::ServerOptions options() {
    http::ServerOptions made;
    made.port = 0;
    return made;
  }
  std::unique_ptr<Serving> serve() {
    api::ServiceOptions service;
    service.names = {"test-model"};
    return std::make_unique<Serving>(engine_test::mini(), router, server, metrics, engine_test::engine_options(), service,
                                     StatusOptions{"", "test-model", {}, {}});
  }
  // A stream that ends with its context, whose first text has come.
  std::unique_ptr<Client> begin_endless() {
    const std::string body = R"({"model": "test-model", "stream": true, "ignore_eos": true,
                                 "messages": [{"role": "user", "content": "Hello"}]})";
    auto client = std::make_unique<Client>(server.port());
    client->send(
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    "Content-Length: {}\r\n\r\n{}",
                    body.size(), body));
    EXPECT_THAT(client->read_until("reasoning_content"), HasSubstr("200"));
    return client;
  }
  [[nodiscard]] bool listens() const {
    try {
      const Client client(server.port());
      return true;
    } catch (const std::runtime_error&) {
      return false;
    }
  }

  ServerMetrics metrics;
  api::Router router;
  http::Server server;
};

TEST(Serving, AnExceptionEndsTheServerBeforeWhatItUses) {
  Opened opened;
  std::unique_ptr<Client> client;
  try {
    const std::unique_ptr<Serving> serving = opened.serve();
    client = opened.begin_endless();
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(opened.listens());
  EXPECT_EQ(opened.server.open_exchanges(), 0);
  EXPECT_THAT(client->read_until("[DONE]"), HasSubstr("\"code\":\"draining\"")) << "its client hears of it";
}

TEST(Serving, RequestsUnderWayGoOnWhileItDrains) {
  Opened opened;
  const std::unique_ptr<Serving> serving = opened.serve();
  const std::unique_ptr<Client> running = opened.begin_endless();
  serving->drain();
  Client late(opened.server.port());
  late.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(late.read_answer().body, HasSubstr("draining"));
  EXPECT_THAT(running->read_until("reasoning_content"), HasSubstr("data: "));
}

}  // namespace
}  // namespace weft::server_test
