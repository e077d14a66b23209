// Answers that are written piece by piece, clients that leave and clients that do not read.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http_util.h"

namespace weft::http_test {
namespace {

using testing::ElementsAre;
using Clock = std::chrono::steady_clock;

// Keeps the exchanges that it gets, for the test to answer.
class HttpStream : public testing::TestWithParam<bool> {
 protected:
  HttpStream() {
    served_.handler.on_handle = [this](const auto& exchange) {
      exchange->on_gone([this] { gone_.raise(); });
      exchange->on_room([this] { room_.raise(); });
      {
        const std::lock_guard lock(mutex_);
        exchanges_.push_back(exchange);
      }
      came_.raise();
    };
  }

  // The exchange of the n-th request; the test holds it alone.
  std::shared_ptr<http::Exchange> exchange(int number = 0) {
    if (!came_.wait(number + 1)) throw std::runtime_error("test: wanted a request");
    const std::lock_guard lock(mutex_);
    return std::exchange(exchanges_[static_cast<size_t>(number)], nullptr);
  }

  // Declared before the server, which ends first.
  Flag came_;
  Flag gone_;
  Flag room_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<http::Exchange>> exchanges_;
  Served served_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Streams, HttpStream, testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Tls" : "Tcp"; });

TEST_P(HttpStream, PiecesAreSentAtOnce) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  exchange->start({.status = 200, .headers = {{"Content-Type", "text/event-stream; charset=utf-8"}}}, {});
  const Answer head = client->read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(head.header("Content-Length"), "");
  for (const std::string piece : {"data: 1\n\n", "data: 22\n\n", "data: 333\n\n"}) {
    exchange->write(piece);
    EXPECT_EQ(client->read_chunk(), piece);
  }
  exchange->write("");
  exchange->finish();
  EXPECT_EQ(client->read_chunk(), "");
  EXPECT_TRUE(client->last_chunk());
  exchange->write("late");
  exchange->finish();
  EXPECT_FALSE(exchange->gone());
  client->send(get());
  this->exchange(1)->respond({.status = 200, .headers = {}, .body = "next"});
  EXPECT_EQ(client->read_answer().body, "next");
  const auto finished = served_.handler.wait_finished(2);
  EXPECT_EQ(finished[0].status, 200);
  EXPECT_EQ(finished[0].sent, 30);
  EXPECT_EQ(gone_.raised(), 0);
}

TEST_P(HttpStream, WhatWaitsIsSentInOneChunk) {
  // The thread that moves bytes is busy while the handler writes.
  Flag blocked;
  Flag written;
  served_.handler.on_admit = [&](const http::Request& head) -> std::optional<http::Response> {
    if (head.path != "/block") return std::nullopt;
    blocked.raise();
    EXPECT_TRUE(written.wait());
    return http::Response{};
  };
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  const auto blocker = served_.client(get("/block"));
  ASSERT_TRUE(blocked.wait());
  exchange->start({.status = 200, .headers = {}, .body = "a"}, {});
  for (const char* piece : {"b", "c", "d"}) exchange->write(piece);
  exchange->finish();
  written.raise();
  EXPECT_THAT(client->read_answer().chunks, ElementsAre("abcd"));
}

TEST_P(HttpStream, Http10GetsTheBodyUpToTheEnd) {
  const auto client = served_.client("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto exchange = this->exchange();
  exchange->start({.status = 200, .headers = {}, .body = "one "}, {});
  exchange->write("two");
  exchange->finish();
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.header("Transfer-Encoding"), "");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_EQ(answer.body, "one two");
}

TEST_P(HttpStream, SilenceIsFilledWithComments) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  const auto began = Clock::now();
  exchange->start({}, {.keep_alive = ": keep-alive\n\n", .keep_alive_seconds = 0.05});
  EXPECT_EQ(client->read_head().status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client->read_chunk(), ": keep-alive\n\n");
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(150));
  exchange->write("data");
  std::string chunk = client->read_chunk();
  while (chunk == ": keep-alive\n\n") chunk = client->read_chunk();
  EXPECT_EQ(chunk, "data");
  exchange->finish();
  while (!client->read_chunk().empty()) {
  }
  EXPECT_TRUE(client->last_chunk());
}

TEST_P(HttpStream, AClientThatLeavesIsNoticedAtOnce) {
  enum class Way { close, reset, end_writing };
  int number = 0;
  // Before any answer, and in the middle of one.
  for (const bool started : {false, true}) {
    for (const Way way : {Way::close, Way::reset, Way::end_writing}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(way)) + (started ? " started" : ""));
      const auto client = served_.client(get());
      const auto exchange = this->exchange(number);
      if (started) {
        exchange->start({}, {});
        exchange->write("data");
        EXPECT_EQ(client->read_head().status, 200);
      }
      EXPECT_FALSE(exchange->gone());
      const auto left = Clock::now();
      if (way == Way::close) client->close();
      if (way == Way::reset) client->reset();
      if (way == Way::end_writing) client->end_writing();
      ++number;
      ASSERT_TRUE(gone_.wait(number));
      EXPECT_LT(Clock::now() - left, std::chrono::seconds(5));  // 0.1 s on a machine that does nothing else
      EXPECT_TRUE(exchange->gone());
      EXPECT_FALSE(exchange->full());
      exchange->write("late");
      exchange->finish();
      Flag at_once;
      exchange->on_gone([&] { at_once.raise(); });
      EXPECT_EQ(at_once.raised(), 1);
      EXPECT_EQ(served_.handler.wait_finished(static_cast<size_t>(number)).back().status, 499);
    }
  }
  EXPECT_EQ(gone_.raised(), 6);
  EXPECT_TRUE(eventually([&] { return served_.server().connections() == 0; }));
}

TEST_P(HttpStream, AClientThatLeavesInItsBodyIsNoRequest) {
  auto client = served_.client("POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n12345");
  EXPECT_TRUE(eventually([&] { return served_.server().open_exchanges() == 1; }));
  client->close();
  const auto finished = served_.handler.wait_finished(1);
  EXPECT_EQ(finished[0].status, 499);
  EXPECT_EQ(finished[0].received, 5);
  client = served_.client("GET /half");
  EXPECT_TRUE(eventually([&] { return served_.server().connections() == 1; }));
  client->end_writing();
  EXPECT_TRUE(client->ended());
  EXPECT_EQ(came_.raised(), 0);
  EXPECT_EQ(served_.handler.finished_count(), 1U);
}

TEST_P(HttpStream, AClientThatLeavesBeforeItsTurnIsNotHandled) {
  // Both threads for work are busy with other requests.
  Flag release;
  Flag busy;
  served_.handler.on_handle = [&](const auto& exchange) {
    EXPECT_NE(exchange->request().path, "/queued");
    busy.raise();
    EXPECT_TRUE(release.wait());
    exchange->respond({});
  };
  const auto first = served_.client(get());
  const auto second = served_.client(get());
  ASSERT_TRUE(busy.wait(2));
  const auto queued = served_.client(get("/queued"));
  ASSERT_TRUE(eventually([&] { return served_.server().open_exchanges() == 3; }));
  queued->close();
  EXPECT_EQ(served_.handler.wait_finished(1)[0].status, 499);
  release.raise();
  EXPECT_EQ(first->read_answer().status, 200);
  EXPECT_EQ(second->read_answer().status, 200);
}

TEST_P(HttpStream, AStreamThatIsLetGoEndsWithoutItsLastChunk) {
  const auto client = served_.client(get());
  auto exchange = this->exchange();
  exchange->start({}, {});
  exchange->write("half");
  exchange.reset();
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.body, "half");
  EXPECT_FALSE(answer.complete);
  EXPECT_EQ(served_.handler.wait_finished(1)[0].status, 500);
  EXPECT_EQ(gone_.raised(), 0);
}

TEST_P(HttpStream, AHandlerThatThrowsInAStreamEndsIt) {
  served_.handler.on_handle = [](const auto& exchange) {
    exchange->start({.status = 200, .headers = {}, .body = "half"}, {});
    throw std::runtime_error("in the middle");
  };
  const Answer answer = served_.client(get())->read_answer();
  EXPECT_EQ(answer.body, "half");
  EXPECT_FALSE(answer.complete);
}

TEST_P(HttpStream, ASlowReaderFillsTheExchangeAndMakesRoom) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  exchange->start({}, {.keep_alive = "", .most_waiting = 100'000});
  std::string all;
  const auto fill = [&] {
    while (!exchange->full()) {
      const std::string piece(10'000, static_cast<char>('a' + all.size() / 10'000 % 26));
      exchange->write(piece);
      all += piece;
    }
  };
  fill();
  EXPECT_EQ(client->read_head().status, 200);
  std::string seen;
  for (int round = 1; round <= 3; ++round) {
    // Whoever reads all of it makes room.
    while (room_.raised() < round && seen.size() < all.size()) seen += client->read_chunk();
    ASSERT_TRUE(room_.wait(round));
    fill();
  }
  exchange->finish();
  for (std::string chunk = client->read_chunk(); !chunk.empty(); chunk = client->read_chunk()) seen += chunk;
  EXPECT_TRUE(seen == all);
  EXPECT_TRUE(client->last_chunk());
  EXPECT_EQ(served_.handler.wait_finished(1)[0].sent, static_cast<int64_t>(all.size()));
  EXPECT_EQ(gone_.raised(), 0);
}

TEST_P(HttpStream, ARoomCallbackMayWrite) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  http::Exchange* const writer = exchange.get();
  int left = 200;
  const auto fill = [&left, writer] {
    while (!writer->full() && left > 0) {
      writer->write(std::string(50'000, 'r'));
      if (--left == 0) writer->finish();
    }
  };
  exchange->on_room(fill);
  exchange->start({}, {.keep_alive = "", .most_waiting = 100'000});
  exchange->write(std::string(200'000, 'r'));  // the rest is written by the callback
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.body.size(), 200U * 50'000 + 200'000);
  EXPECT_TRUE(answer.complete);
}

TEST_P(HttpStream, AReaderThatStopsIsGone) {
  // A stream that is full, one that is finished, a whole answer.
  for (int way = 0; way < 2; ++way) {
    const auto client = served_.client(get());
    const auto exchange = this->exchange(way);
    exchange->start({}, {.keep_alive = "", .most_waiting = way == 0 ? 1'000'000 : 100'000'000, .stalled_seconds = 0.2});
    std::string bytes;
    bytes.resize(30'000'000, 's');
    exchange->write(bytes);
    EXPECT_EQ(exchange->full(), way == 0);
    if (way == 1) exchange->finish();
    ASSERT_TRUE(gone_.wait(way + 1));
    EXPECT_TRUE(exchange->gone());
    EXPECT_EQ(served_.handler.wait_finished(static_cast<size_t>(way) + 1).back().status, 499);
    EXPECT_EQ(room_.raised(), 0);
  }
}

TEST_P(HttpStream, AReaderThatIsSlowButReadsStays) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  exchange->start({}, {.keep_alive = "", .most_waiting = 1000, .stalled_seconds = 1.0});
  std::string body;
  body.resize(20'000'000, 's');
  exchange->write(body);
  exchange->finish();
  EXPECT_EQ(client->read_head().status, 200);
  size_t seen = 0;
  const auto began = Clock::now();
  for (std::string chunk = client->read_chunk(); !chunk.empty(); chunk = client->read_chunk()) {
    seen += chunk.size();
    // Slower than the limit for all of it, never without a byte for so long.
    if (Clock::now() - began < std::chrono::milliseconds(1500)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(seen, body.size());
  EXPECT_EQ(gone_.raised(), 0);
}

// A client that sends without waiting, which a TLS client of the test cannot.
class HttpStreamTcp : public HttpStream {};
INSTANTIATE_TEST_SUITE_P(Streams, HttpStreamTcp, testing::Values(false), [](const auto&) { return "Tcp"; });

TEST_P(HttpStreamTcp, BytesBeyondTheBoundWait) {
  // While an answer is under way, what the client sends is not read without an end.
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  constexpr size_t kFar = 20'000'000;  // more than the system's own buffers hold
  const std::string piece(100'000, 'p');
  size_t sent = 0;
  auto progress = Clock::now();
  while (sent < kFar && Clock::now() - progress < std::chrono::milliseconds(300)) {
    const auto now = ::send(client->number(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (now > 0) {
      sent += static_cast<size_t>(now);
      progress = Clock::now();
    }
  }
  EXPECT_LT(sent, kFar);
  EXPECT_FALSE(exchange->gone());
  exchange->respond({.status = 200, .headers = {}, .body = "x"});
  EXPECT_EQ(client->read_answer().body, "x");
  EXPECT_EQ(client->read_answer().status, 431);  // what came is no request
}

TEST_P(HttpStream, TheExchangeMayOutliveTheServer) {
  std::shared_ptr<http::Exchange> exchange;
  {
    Served served(GetParam());
    Flag came;
    served.handler.on_handle = [&](const auto& one) {
      exchange = one;
      came.raise();
    };
    const auto client = served.client(post("kept"));
    ASSERT_TRUE(came.wait());
  }
  EXPECT_TRUE(exchange->gone());
  EXPECT_EQ(exchange->request().body, "kept");
  exchange->start({}, {});
  exchange->write("x");
  exchange->finish();
  Flag gone;
  exchange->on_gone([&] { gone.raise(); });
  EXPECT_EQ(gone.raised(), 1);
}

TEST_P(HttpStream, CallbacksAreLetGoWithTheAnswer) {
  const auto held = std::make_shared<int>(1);
  const auto client = served_.client(get());
  {
    const auto exchange = this->exchange();
    exchange->on_gone([held, exchange] {});  // a circle, until the answer is complete
    exchange->on_room([held, exchange] {});
    exchange->respond({});
  }
  EXPECT_EQ(client->read_answer().status, 200);
  EXPECT_TRUE(eventually([&] { return held.use_count() == 1; }));
  client->send(get());
  {
    const auto exchange = this->exchange(1);
    exchange->on_gone([held, exchange] { throw std::runtime_error("on_gone"); });
    exchange->on_room([held, exchange] {});
  }
  client->close();
  EXPECT_TRUE(eventually([&] { return held.use_count() == 1; }));
}

TEST_P(HttpStream, WritersOfManyThreads) {
  const auto client = served_.client(get());
  const auto exchange = this->exchange();
  exchange->start({}, {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        exchange->write("12345678\n");
        (void)exchange->full();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  exchange->finish();
  const Answer answer = client->read_answer();
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.body.size(), 4U * 500 * 9);
  for (size_t at = 0; at < answer.body.size(); at += 9) ASSERT_EQ(answer.body.substr(at, 9), "12345678\n");
}

}  // namespace
}  // namespace weft::http_test
