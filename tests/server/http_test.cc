// Requests and whole answers over TCP and TLS.
#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/http_util.h"

namespace weft::http_test {
namespace {

using testing::HasSubstr;

class Http : public testing::TestWithParam<bool> {
 protected:
  Served served_{GetParam()};
  TestHandler& handler_ = served_.handler;
};

INSTANTIATE_TEST_SUITE_P(Streams, Http, testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Tls" : "Tcp"; });

TEST_P(Http, AnswersARequestAndKeepsTheConnection) {
  http::Request seen;
  handler_.on_handle = [&](const auto& exchange) {
    seen = exchange->request();
    exchange->respond({.status = 404, .headers = {{"Content-Type", "text/plain"}}, .body = "none"});
  };
  const auto client = served_.client(get("/a%20b/%C3%BC?q=%20x", "X-One: 1\r\nx-one: 2\r\n"));
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.body, "none");
  EXPECT_EQ(answer.header("content-type"), "text/plain");
  EXPECT_EQ(answer.header("Content-Length"), "4");
  EXPECT_EQ(answer.header("Connection"), "");
  EXPECT_THAT(answer.header("Date"), testing::MatchesRegex("..., .. ... .... ..:..:.. GMT"));
  handler_.wait_finished(1);
  EXPECT_EQ(seen.method, "GET");
  EXPECT_EQ(seen.target, "/a%20b/%C3%BC?q=%20x");
  EXPECT_EQ(seen.path, "/a b/\xC3\xBC");
  EXPECT_EQ(seen.query, "q=%20x");
  EXPECT_EQ(*seen.header("X-ONE"), "1");
  EXPECT_EQ(seen.headers.size(), 3U);
  EXPECT_TRUE(seen.peer.starts_with("127.0.0.1:"));
  EXPECT_EQ(seen.header("absent"), nullptr);

  client->send(post("body"));
  EXPECT_EQ(client->read_answer().status, 404);
  EXPECT_EQ(served_.server().connections(), 1);
  const auto finished = handler_.wait_finished(2);
  EXPECT_EQ(seen.body, "body");
  EXPECT_EQ(finished[1].method, "POST");
  EXPECT_EQ(finished[1].path, "/x");
  EXPECT_EQ(finished[1].status, 404);
  EXPECT_EQ(finished[1].received, 4);
  EXPECT_EQ(finished[1].sent, 4);
  EXPECT_EQ(finished[1].peer, seen.peer);
  EXPECT_GT(finished[1].seconds, 0.0);
  EXPECT_TRUE(eventually([&] { return served_.server().open_exchanges() == 0; }));
}

TEST_P(Http, ABodyMayComeInChunksAndOneByteAtATime) {
  handler_.on_handle = [](const auto& exchange) {
    exchange->respond({.status = 200, .headers = {}, .body = exchange->request().body});
  };
  const std::string request =
      "\r\nPOST /x HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;a=b\r\nhello\r\n11\r\n, this is chunked\r\n0\r\nTrailer: x\r\n\r\n";
  const auto client = served_.client();
  for (const char c : request) client->send({&c, 1});
  EXPECT_EQ(client->read_answer().body, "hello, this is chunked");
  client->send(request + request);
  EXPECT_EQ(client->read_answer().body, "hello, this is chunked");
  EXPECT_EQ(client->read_answer().body, "hello, this is chunked");
}

TEST_P(Http, ALargeBodyAndALargeAnswerPass) {
  handler_.most_body = 64 << 20;
  handler_.on_handle = [](const auto& exchange) {
    exchange->respond({.status = 200, .headers = {}, .body = exchange->request().body});
  };
  std::string body(8 << 20, '\0');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
  const auto client = served_.client(post(body));
  const Answer answer = client->read_answer();
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.body == body);
  EXPECT_EQ(handler_.wait_finished(1)[0].sent, 8 << 20);
}

TEST_P(Http, RequestsInOnePieceAreAnsweredInOrder) {
  std::string all;
  for (int i = 0; i < 50; ++i) all += i % 2 == 0 ? get("/" + std::to_string(i)) : post(std::string(100, 'x'));
  const auto client = served_.client(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client->read_answer().body, i % 2 == 0 ? "GET /" + std::to_string(i) : "POST /x");
  }
}

TEST_P(Http, ARequestThatComesDuringAnAnswerWaitsForIt) {
  std::shared_ptr<http::Exchange> first;
  Flag came;
  handler_.on_handle = [&](const auto& exchange) {
    if (exchange->request().path != "/first") return exchange->respond({.status = 200, .headers = {}, .body = "second"});
    first = exchange;
    came.raise();
  };
  const auto client = served_.client(get("/first"));
  ASSERT_TRUE(came.wait());
  client->send(get("/second"));
  first->start({}, {});
  first->write("first");
  first->finish();
  EXPECT_EQ(client->read_answer().body, "first");
  EXPECT_EQ(client->read_answer().body, "second");
}

TEST_P(Http, HeadHasNoBody) {
  handler_.on_handle = [](const auto& exchange) {
    if (exchange->request().path == "/whole") return exchange->respond({.status = 200, .headers = {}, .body = "12345"});
    exchange->start({.status = 200, .headers = {}, .body = "123"}, {});
    exchange->write("45");
    exchange->finish();
  };
  const auto client = served_.client("HEAD /whole HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(client->read_answer(true).header("Content-Length"), "5");
  client->send("HEAD /stream HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(client->read_answer(true).status, 200);
  client->send(get("/whole"));
  EXPECT_EQ(client->read_answer().body, "12345");
  EXPECT_EQ(handler_.wait_finished(2)[1].sent, 0);
}

TEST_P(Http, SomeStatusesHaveNoBody) {
  handler_.on_handle = [](const auto& exchange) { exchange->respond({.status = 204, .headers = {}, .body = "ignored"}); };
  const auto client = served_.client(get());
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.header("Content-Length"), "");
  handler_.on_handle = [](const auto& exchange) { exchange->respond({.status = 200, .headers = {}, .body = "x"}); };
  client->send(get());
  EXPECT_EQ(client->read_answer().body, "x");
}

TEST_P(Http, Http10ClosesUnlessAskedNotTo) {
  const auto client = served_.client("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Answer kept = client->read_answer();
  EXPECT_EQ(kept.header("Connection"), "keep-alive");
  client->send("GET /x HTTP/1.0\r\n\r\n");
  const Answer last = client->read_answer();
  EXPECT_EQ(last.body, "GET /x");
  EXPECT_EQ(last.header("Connection"), "close");
  EXPECT_TRUE(client->ended());
}

TEST_P(Http, ConnectionCloseIsHeard) {
  const auto client = served_.client(get("/x", "Connection: close\r\n"));
  EXPECT_EQ(client->read_answer().header("Connection"), "close");
  EXPECT_TRUE(client->ended());
}

TEST_P(Http, HeadersOfTheServerAndBrokenOnesAreNotTheHandlers) {
  handler_.on_handle = [](const auto& exchange) {
    exchange->respond({.status = 200,
                       .headers = {{"content-length", "999"}, {"Bad Name", "x"}, {"X-Two", "a\r\nInjected: b"}, {"", "y"}},
                       .body = "x"});
  };
  const Answer answer = served_.client(get())->read_answer();
  EXPECT_EQ(answer.header("Content-Length"), "1");
  EXPECT_EQ(answer.header("X-Two"), "a  Injected: b");
  EXPECT_EQ(answer.header("Injected"), "");
  EXPECT_EQ(answer.headers.size(), 3U);  // with Date
}

TEST_P(Http, ExpectationsAreMet) {
  const auto client = served_.client("POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client->read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client->send("abc");
  EXPECT_EQ(client->read_answer().status, 200);
  EXPECT_EQ(served_.client(post("abc", "Expect: a miracle\r\n"))->read_answer().status, 417);
  // No invitation for a body that will be refused.
  handler_.most_body = 2;
  const auto refused = served_.client("POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(refused->read_answer().status, 413);
}

TEST_P(Http, WhatIsNoRequestIsRefused) {
  struct Case {
    std::string request;
    int status;
  };
  const std::vector<Case> cases = {
      {"rubbish\r\n\r\n", 400},
      {"GET /x HTTP/2.0\r\nHost: a\r\n\r\n", 400},
      {"GET /x HTTP/1.1\r\n\r\n", 400},                        // no host
      {"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},  // two
      {"GET /x HTTP/1.1\r\nHost : a\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"POST /x HTTP/1.1\r\nHost: a\r\n\r\n", 411},
      {"POST /x HTTP/1.0\r\n\r\n", 411},
      {"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400},
      {"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(200'000, 'e'), 400},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.request.substr(0, 100));
    const auto client = served_.client();
    (void)client->try_send(one.request);
    const Answer answer = client->read_answer();
    EXPECT_EQ(answer.status, one.status);
    EXPECT_THAT(answer.body, HasSubstr("refused: "));
    EXPECT_EQ(answer.header("X-Refused"), "yes");
    EXPECT_EQ(answer.header("Connection"), "close");
    client->end_writing();
    EXPECT_TRUE(client->ended());
  }
  EXPECT_EQ(served_.client(get())->read_answer().status, 200);
}

TEST_P(Http, ARefusalOfTheHandlerComesBeforeTheBody) {
  handler_.on_admit = [](const http::Request& head) -> std::optional<http::Response> {
    EXPECT_TRUE(head.body.empty());
    if (head.path == "/open") return std::nullopt;
    return http::Response{.status = 401, .headers = {{"X-Why", "key"}}, .body = "no", .note = "request 7"};
  };
  // Without a body the connection lives on.
  const auto client = served_.client(get() + get("/open"));
  EXPECT_EQ(client->read_answer().status, 401);
  EXPECT_EQ(client->read_answer().status, 200);
  // The body never comes.
  const auto other = served_.client("POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n");
  const Answer answer = other->read_answer();
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.header("Connection"), "close");
  const auto finished = handler_.wait_finished(3);
  EXPECT_EQ(finished[0].status, 401);
  EXPECT_EQ(finished[0].note, "request 7");
  EXPECT_EQ(finished[1].status, 200);
  EXPECT_EQ(finished[2].status, 401);
  EXPECT_EQ(finished[2].sent, 2);
}

TEST_P(Http, ExceptionsOfTheHandlerStayWithTheirRequest) {
  handler_.on_admit = [](const http::Request& head) -> std::optional<http::Response> {
    if (head.path == "/admit") throw std::runtime_error("admit");
    return std::nullopt;
  };
  handler_.on_handle = [](const auto& exchange) {
    if (exchange->request().path == "/error") fail(ErrorKind::bad_input, "test", "wanted");
    if (exchange->request().path == "/number") throw 7;
    exchange->respond({.status = 200, .headers = {}, .body = "fine"});
    if (exchange->request().path == "/late") throw std::runtime_error("late");
  };
  const auto client = served_.client(get("/error") + get("/number") + get("/late") + get("/fine"));
  for (const int status : {500, 500, 200, 200}) {
    const Answer answer = client->read_answer();
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.body, status == 500 ? "refused: internal error" : "fine");
  }
  EXPECT_EQ(served_.client(get("/admit"))->read_answer().status, 500);
  const auto finished = handler_.wait_finished(5);
  EXPECT_EQ(finished[0].status, 500);
  handler_.on_refuse = [] { throw std::runtime_error("refuse"); };
  const Answer plain = served_.client(get("/error"))->read_answer();
  EXPECT_EQ(plain.status, 500);
  EXPECT_EQ(plain.body, "internal error\n");
}

TEST_P(Http, AnExchangeThatIsLetGoAnswers500) {
  std::shared_ptr<http::Exchange> kept;
  Flag came;
  handler_.on_handle = [&](const auto& exchange) {
    if (exchange->request().path == "/at-once") return;
    kept = exchange;
    came.raise();
  };
  const auto client = served_.client(get("/at-once") + get("/later"));
  EXPECT_EQ(client->read_answer().status, 500);
  ASSERT_TRUE(came.wait());
  EXPECT_EQ(served_.server().open_exchanges(), 1);
  kept.reset();
  EXPECT_EQ(client->read_answer().status, 500);
  EXPECT_EQ(handler_.wait_finished(2)[1].status, 500);
}

TEST_P(Http, OnlyTheFirstAnswerCounts) {
  handler_.on_handle = [](const auto& exchange) {
    exchange->write("early");
    exchange->respond({.status = 200, .headers = {}, .body = "one"});
    exchange->respond({.status = 404, .headers = {}, .body = "two"});
    exchange->start({.status = 404, .headers = {}, .body = "three"}, {});
    exchange->write("four");
    exchange->finish();
  };
  const auto client = served_.client(get() + get());
  EXPECT_EQ(client->read_answer().body, "one");
  EXPECT_EQ(client->read_answer().body, "one");
}

TEST_P(Http, ManyClientsAtOnce) {
  handler_.on_handle = [](const auto& exchange) {
    if (exchange->request().path == "/stream") {
      exchange->start({}, {});
      for (int i = 0; i < 20; ++i) exchange->write("piece " + std::to_string(i) + "\n");
      return exchange->finish();
    }
    exchange->respond({.status = 200, .headers = {}, .body = exchange->request().body});
  };
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  (void)served_.server();
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto client = served_.client();
        for (int k = 0; k < 3; ++k) {
          const std::string body(static_cast<size_t>(1 + (t * 1000 + i * 37 + k) % 5000), 'b');
          client->send(post(body) + get("/stream"));
          if (client->read_answer().body == body) ++good;
          if (client->read_answer().complete) ++good;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4 * 20 * 3 * 2);
  EXPECT_EQ(handler_.wait_finished(480).size(), 480U);
}

TEST(HttpServer, NamesAndAddressesOfTheHost) {
  TestHandler handler;
  http::ServerOptions options = test_options();
  options.host = "localhost";
  {
    const http::Server server(options, handler);
    EXPECT_EQ(server.url(), "http://localhost:" + std::to_string(server.port()));
    Client client(server.port());
    client.send(get());
    EXPECT_EQ(client.read_answer().status, 200);
  }
  for (const char* host : {"::1", "[::1]"}) {
    options.host = host;
    std::unique_ptr<http::Server> server;
    try {
      server = std::make_unique<http::Server>(options, handler);
    } catch (const Error& error) {
      GTEST_SKIP() << "no IPv6 here: " << error.what();
    }
    EXPECT_EQ(server->url(), "http://[::1]:" + std::to_string(server->port()));
    Client client(server->port(), {.host = "::1"});
    client.send(get());
    EXPECT_EQ(client.read_answer().status, 200);
    EXPECT_TRUE(handler.wait_finished(2)[1].peer.starts_with("[::1]:"));
  }
}

TEST(HttpServer, WhatItCannotServeIsNamed) {
  TestHandler handler;
  const http::Server server(test_options(), handler);
  const auto error_of = [&](const http::ServerOptions& options) {
    try {
      const http::Server another(options, handler);
    } catch (const Error& error) {
      return std::string(to_string(error.kind())) + " " + error.what();
    }
    return std::string("none");
  };
  http::ServerOptions options = test_options();
  options.port = server.port();
  EXPECT_EQ(error_of(options),
            "unavailable [http] wanted to listen at 127.0.0.1:" + std::to_string(server.port()) + ", found: address in use");
  options = test_options();
  options.host = "no-such-host.invalid";
  EXPECT_THAT(error_of(options), HasSubstr("bad_input [http] host 'no-such-host.invalid': wanted an address"));
  options.host = "192.0.2.1";  // of nobody
  EXPECT_THAT(error_of(options), HasSubstr("unavailable [http] wanted to listen at 192.0.2.1:0, found: "));
  options = test_options();
  options.io_threads = 0;
  EXPECT_THAT(error_of(options), HasSubstr("bad_input"));
  options = test_options();
  options.tls_key = "only.key";
  EXPECT_THAT(error_of(options), HasSubstr("bad_input [http] TLS: wanted a certificate and its key, found only the key"));
  options.tls_certificate = "no-such-file.pem";
  EXPECT_THAT(error_of(options), HasSubstr("bad_input [http] TLS: wanted certificates (PEM) in no-such-file.pem"));
  options.tls_certificate = TestCertificate::shared().certificate();
  options.tls_key = TestCertificate::shared().certificate();
  EXPECT_THAT(error_of(options), HasSubstr("bad_input [http] TLS: wanted the key of "));
}

}  // namespace
}  // namespace weft::http_test
