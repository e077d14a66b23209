// What is particular to TLS.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/http_util.h"

namespace weft::http_test {
namespace {

TEST(HttpTls, VersionsAndProtocols) {
  Served served(true);
  EXPECT_TRUE(served.server().url().starts_with("https://127.0.0.1:"));
  const uint16_t port = served.server().port();
  const TlsClient newest(port);
  EXPECT_EQ(newest.version(), "TLSv1.3");
  EXPECT_EQ(newest.protocol(), "http/1.1");
  const TlsClient older(port, {.protocols = "\x02h2\x08http/1.1", .most_version = TLS1_2_VERSION, .host = ""});
  EXPECT_EQ(older.version(), "TLSv1.2");
  EXPECT_EQ(older.protocol(), "http/1.1");
  TlsClient silent(port, {.protocols = "", .most_version = TLS1_3_VERSION, .host = ""});
  EXPECT_EQ(silent.protocol(), "");
  silent.send(get());
  EXPECT_EQ(silent.read_answer().status, 200);
  EXPECT_THROW(TlsClient(port, {.protocols = "", .most_version = TLS1_1_VERSION, .host = ""}), std::runtime_error);
  EXPECT_THROW(TlsClient(port, {.protocols = "\x02h2", .most_version = TLS1_3_VERSION, .host = ""}), std::runtime_error);
}

TEST(HttpTls, AFailedHandshakeHarmsNobody) {
  http::ServerOptions options = test_options();
  options.head_seconds = 0.3;
  Served served(true, options);
  const auto good = served.client();
  std::vector<std::unique_ptr<Client>> bad;
  for (int i = 0; i < 20; ++i) {
    bad.push_back(std::make_unique<Client>(served.server().port()));
    if (i % 3 == 0) bad.back()->send(get());           // no TLS
    if (i % 3 == 1) bad.back()->send("\x16\x03\x01");  // the begin of a handshake, and no more
  }
  good->send(get());
  EXPECT_EQ(good->read_answer().status, 200);
  for (const auto& client : bad) (void)client->read_all();  // ends: refused, or out of time
  EXPECT_TRUE(eventually([&] { return served.server().connections() == 1; }));
  EXPECT_EQ(served.handler.wait_finished(1).size(), 1U);
}

TEST(HttpTls, TheEndIsToldAsItShouldBe) {
  Served served(true);
  TlsClient client(served.server().port());
  client.send(get("/x", "Connection: close\r\n"));
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(client.ended_by_server());

  // A stream that is cut is not.
  served.handler.on_handle = [](const auto& exchange) { exchange->start({.status = 200, .headers = {}, .body = "half"}, {}); };
  TlsClient other(served.server().port());
  other.send("GET /x HTTP/1.0\r\n\r\n");
  EXPECT_EQ(other.read_answer().body, "half");
  EXPECT_FALSE(other.ended_by_server());
}

TEST(HttpTls, TheEndOfTlsIsTheEndOfTheClient) {
  Served served(true);
  Flag came;
  Flag gone;
  std::shared_ptr<http::Exchange> kept;
  served.handler.on_handle = [&](const auto& exchange) {
    exchange->on_gone([&] { gone.raise(); });
    kept = exchange;
    came.raise();
  };
  TlsClient client(served.server().port());
  client.send(get());
  ASSERT_TRUE(came.wait());
  client.end_tls();  // the connection itself stays open
  EXPECT_TRUE(gone.wait());
  EXPECT_EQ(served.handler.wait_finished(1)[0].status, 499);
}

}  // namespace
}  // namespace weft::http_test
