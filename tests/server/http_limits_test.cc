// What a server refuses, whom it sends away, and how it ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http_util.h"

#include "support/sanitizer.h"

namespace weft::http_test {
namespace {

using Clock = std::chrono::steady_clock;

class HttpLimits : public testing::TestWithParam<bool> {
 protected:
  void serve(const http::ServerOptions& options) {
    made_ = std::make_unique<Served>(GetParam(), options);
    made_->handler.most_body = 1000;
  }
  Served& served() {
    if (made_ == nullptr) serve(test_options());
    return *made_;
  }
  void made_most_body(int64_t bytes) { served().handler.most_body = bytes; }

 private:
  std::unique_ptr<Served> made_;
};

INSTANTIATE_TEST_SUITE_P(Streams, HttpLimits, testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Tls" : "Tcp"; });

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return 0;
}

TEST_P(HttpLimits, LargeHeadsAreRefused) {
  http::ServerOptions options = test_options();
  options.max_head = 8192;
  serve(options);
  EXPECT_EQ(served().client(get("/x", "X: " + std::string(8000, 'x') + "\r\n"))->read_answer().status, 200);
  EXPECT_EQ(served().client(get("/x", "X: " + std::string(9000, 'x') + "\r\n"))->read_answer().status, 431);
  EXPECT_EQ(served().client(get("/" + std::string(9000, 'x')))->read_answer().status, 431);
  // Without an end.
  const auto client = served().client();
  std::thread flood([&] {
    (void)client->try_send("GET /x HTTP/1.1\r\n");
    for (int i = 0; i < 1000 && client->try_send(std::string(100, 'x') + ": y\r\n"); ++i) {
    }
  });
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  flood.join();
  EXPECT_EQ(client->read_answer().status, 431);
}

TEST_P(HttpLimits, TheLimitOfAHeadIsExactHoweverItIsCut) {
  const std::string most = get("/x", "X: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n");
  std::string larger = most;
  larger.insert(larger.find("xxxx"), 1, 'x');
  http::ServerOptions options = test_options();
  options.max_head = static_cast<int64_t>(most.size());
  serve(options);
  for (const size_t piece : {most.size() + 1, size_t{1}, size_t{7}, most.size() - 1}) {
    for (const auto& [head, status] : {std::pair(most, 200), std::pair(larger, 431)}) {
      const auto client = served().client();
      for (size_t at = 0; at < head.size(); at += piece) {
        if (!client->try_send(head.substr(at, piece))) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(client->read_answer().status, status) << "pieces of " << piece << " bytes";
    }
  }
}

TEST_P(HttpLimits, LargeBodiesAreRefused) {
  EXPECT_EQ(served().client(post(std::string(1000, 'b')))->read_answer().status, 200);
  EXPECT_EQ(served().client(post(std::string(1001, 'b')))->read_answer().status, 413);
  EXPECT_EQ(served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n")->read_answer().status,
            413);
  const std::string chunked = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string chunk = "1f4\r\n" + std::string(500, 'c') + "\r\n";
  EXPECT_EQ(served().client(chunked + chunk + chunk + "0\r\n\r\n")->read_answer().status, 200);
  EXPECT_EQ(served().client(chunked + chunk + chunk + "1\r\nc\r\n0\r\n\r\n")->read_answer().status, 413);
  EXPECT_EQ(served().client(chunked + "ffffffffffff\r\n" + std::string(1001, 'c'))->read_answer().status, 413);
  const auto finished = served().handler.wait_finished(6);
  EXPECT_EQ(finished[1].status, 413);
}

TEST_P(HttpLimits, AClientThatSendsItsWholeLargeBodyFirstSeesTheRefusal) {
  const auto client = served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
  const std::string piece(1'000'000, 'b');
  for (int i = 0; i < 100; ++i) client->send(piece);
  const Answer answer = client->read_answer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_TRUE(answer.complete);
}

TEST_P(HttpLimits, ShortRequestsDoNotWaitBehindLongOnes) {
  made_most_body(1 << 20);
  Flag release;
  served().handler.on_handle = [&](const auto& exchange) {
    if (exchange->request().body.size() > 100'000) {
      EXPECT_TRUE(release.wait());
    }
    exchange->respond({});
  };
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 4; ++i) slow.push_back(served().client(post(std::string(200'000, 'b'))));
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  EXPECT_EQ(served().client(post("short"))->read_answer().status, 200);
  release.raise();
  for (const auto& client : slow) EXPECT_EQ(client->read_answer().status, 200);
}

TEST_P(HttpLimits, BodiesUnderWayAreBounded) {
  http::ServerOptions options = test_options();
  options.max_bodies = 1500;
  serve(options);
  std::shared_ptr<http::Exchange> kept;
  Flag came;
  served().handler.on_handle = [&](const auto& exchange) {
    if (exchange->request().body.size() < 900) return exchange->respond({});
    kept = exchange;
    came.raise();
  };
  const auto first = served().client(post(std::string(1000, 'b')));
  ASSERT_TRUE(came.wait());
  EXPECT_EQ(served().client(post(std::string(600, 'b')))->read_answer().status, 503);
  EXPECT_EQ(served().client(post(std::string(400, 'b')))->read_answer().status, 200);
  // What is announced and does not come takes nothing.
  const auto idle = served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  // The bytes of the one before are free once its handler has returned.
  EXPECT_TRUE(eventually([&] { return served().client(post(std::string(400, 'b')))->read_answer().status == 200; }));
  kept->respond({});
  kept.reset();
  EXPECT_EQ(first->read_answer().status, 200);
  EXPECT_TRUE(eventually([&] { return served().client(post(std::string(800, 'b')))->read_answer().status == 200; }));
}

TEST_P(HttpLimits, SlowHeadsEnd) {
  http::ServerOptions options = test_options();
  options.head_seconds = 0.3;
  options.idle_seconds = 1000;
  serve(options);
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 50; ++i) slow.push_back(served().client("GET /x HTTP/1.1\r\nHo"));
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  // A byte now and then does not help.
  const auto drip = served().client("GET /x HTTP/1.1\r\nX: ");
  for (int i = 0; i < 25; ++i) {
    (void)drip->try_send("x");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(drip->read_answer().status, 408);
  for (const auto& client : slow) {
    EXPECT_EQ(client->read_answer().status, 408);
    client->close();
  }
  drip->close();
  // Heads that never came whole are told of too, without a method.
  const auto finished = served().handler.wait_finished(52);
  EXPECT_EQ(finished.size(), 52U);
  EXPECT_EQ(std::ranges::count(finished, 200, [](const http::Finished& one) { return one.status; }), 1);
  EXPECT_EQ(std::ranges::count(finished, "", [](const http::Finished& one) { return one.method; }), 51);
}

TEST_P(HttpLimits, SlowBodiesEnd) {
  http::ServerOptions options = test_options();
  options.body_seconds = 0.2;
  options.body_rate = 1000;
  serve(options);
  const auto began = Clock::now();
  const auto none = served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(none->read_answer().status, 408);
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(200));
  // Bytes buy time: these 500 half a second.
  const auto again = Clock::now();
  const auto some = served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + std::string(500, 'b'));
  EXPECT_EQ(some->read_answer().status, 408);
  EXPECT_GE(Clock::now() - again, std::chrono::milliseconds(700));
  const auto finished = served().handler.wait_finished(2);
  EXPECT_EQ(finished[1].status, 408);
  EXPECT_EQ(finished[1].received, 500);
}

TEST_P(HttpLimits, IdleConnectionsAreClosed) {
  http::ServerOptions options = test_options();
  options.idle_seconds = 0.1;
  serve(options);
  const auto fresh = served().client();
  EXPECT_TRUE(fresh->ended());
  const auto used = served().client(get());
  EXPECT_EQ(used->read_answer().status, 200);
  EXPECT_TRUE(used->ended());
  // One with a request under way is not idle.
  served().handler.on_handle = [](const auto& exchange) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    exchange->respond({});
  };
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
}

TEST_P(HttpLimits, TheLongestIdleConnectionGivesItsPlace) {
  http::ServerOptions options = test_options();
  options.max_connections = 3;
  serve(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(served().client(get()));
    EXPECT_EQ(clients.back()->read_answer().status, 200);
  }
  // The first one is used again: now the second has been idle longest.
  ASSERT_TRUE(eventually([&] { return served().server().open_exchanges() == 0; }));
  clients[0]->send(get());
  EXPECT_EQ(clients[0]->read_answer().status, 200);
  ASSERT_TRUE(eventually([&] { return served().server().open_exchanges() == 0; }));
  const auto fourth = served().client(get());
  EXPECT_EQ(fourth->read_answer().status, 200);
  EXPECT_TRUE(clients[1]->ended());
  for (Client* const client : {clients[0].get(), clients[2].get()}) {
    client->send(get());
    EXPECT_EQ(client->read_answer().status, 200);
  }
  EXPECT_TRUE(eventually([&] { return served().server().connections() == 3; }));
}

TEST_P(HttpLimits, WithoutAnIdleConnectionAnotherIsRefused) {
  http::ServerOptions options = test_options();
  options.max_connections = 2;
  serve(options);
  std::vector<std::shared_ptr<http::Exchange>> kept;
  std::mutex mutex;
  Flag came;
  served().handler.on_handle = [&](const auto& exchange) {
    const std::lock_guard lock(mutex);
    kept.push_back(exchange);
    came.raise();
  };
  const auto first = served().client(get());
  const auto second = served().client(get());
  ASSERT_TRUE(came.wait(2));
  if (GetParam()) {
    EXPECT_THROW((void)served().client(), std::runtime_error);  // a handshake is too much work for a refusal
  } else {
    const auto third = served().client(get());
    const Answer answer = third->read_answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.body, "refused: too many connections");
    EXPECT_TRUE(third->ended());
  }
  // Far more than hear of it.
  std::vector<std::unique_ptr<Client>> more;
  for (int i = 0; i < 200 && !GetParam(); ++i) more.push_back(served().client());
  for (const auto& exchange : kept) exchange->respond({});
  EXPECT_EQ(first->read_answer().status, 200);
  EXPECT_EQ(second->read_answer().status, 200);
  more.clear();
  EXPECT_TRUE(eventually([&] { return served().server().open_exchanges() == 0; }));
  served().handler.on_handle = [](const auto& exchange) { exchange->respond({}); };
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  EXPECT_EQ(served().handler.wait_finished(3).size(), 3U);
}

TEST_P(HttpLimits, WithoutAFreeDescriptorTheLongestIdleConnectionGivesItsOwn) {
  if (testing_support::kAddressSanitizer) GTEST_SKIP() << "the sanitizer opens a pipe to look at an object's type";
  const auto idle = served().client(get());
  EXPECT_EQ(idle->read_answer().status, 200);
  ASSERT_TRUE(eventually([&] { return served().server().open_exchanges() == 0; }));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_cur, 1000);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int one = ::dup(idle->number()); one >= 0; one = ::dup(idle->number())) taken.push_back(one);
  ASSERT_FALSE(taken.empty());
  ::close(taken.back());
  taken.pop_back();
  std::unique_ptr<Client> another;
  EXPECT_NO_THROW({
    another = served().client(get());
    EXPECT_EQ(another->read_answer().status, 200);
  });
  for (const int one : taken) ::close(one);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(idle->ended());
}

TEST_P(HttpLimits, ConnectionsTakeNoThreads) {
  EXPECT_EQ(served().client(get())->read_answer().status, 200);
  const int before = threads_of_this_process();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(served().client(get()));
    EXPECT_EQ(clients.back()->read_answer().status, 200);
  }
  EXPECT_GT(before, 0);
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST_P(HttpLimits, ItEndsBehindTheAnswersThatAreUnderWay) {
  std::shared_ptr<http::Exchange> stream;
  std::shared_ptr<http::Exchange> posted;
  Flag came;
  served().handler.on_handle = [&](const auto& exchange) {
    (exchange->request().method == "GET" ? stream : posted) = exchange;
    came.raise();
  };
  const auto idle = served().client();
  const auto busy = served().client(get() + get("/next"));
  const auto in_body = served().client("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
  ASSERT_TRUE(came.wait());
  ASSERT_TRUE(eventually([&] { return served().server().open_exchanges() == 2; }));
  stream->start({}, {});
  EXPECT_EQ(busy->read_head().status, 200);
  http::Server& server = served().server();
  server.stop_accepting();
  EXPECT_TRUE(idle->ended());
  EXPECT_THROW((void)served().client(), std::runtime_error);
  EXPECT_FALSE(server.wait_until_idle(std::chrono::milliseconds(20)));
  in_body->send("dy");
  stream->write("rest");
  stream->finish();
  EXPECT_EQ(busy->read_until("0\r\n\r\n"), "4\r\nrest\r\n0\r\n\r\n");
  EXPECT_TRUE(busy->ended());  // without an answer to the next request
  ASSERT_TRUE(came.wait(2));
  posted->respond({});
  const Answer answer = in_body->read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(server.wait_until_idle(std::chrono::seconds(kPatience)));
  EXPECT_EQ(served().handler.finished_count(), 2U);
  busy->close();
  in_body->close();
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
  server.stop();
}

TEST_P(HttpLimits, StopEndsEverything) {
  std::vector<std::shared_ptr<http::Exchange>> kept;
  std::mutex mutex;
  Flag came;
  Flag gone;
  Flag blocked;
  served().handler.on_handle = [&](const auto& exchange) {
    exchange->on_gone([&] { gone.raise(); });
    if (exchange->request().path == "/block") {
      blocked.raise();
      EXPECT_TRUE(gone.wait(1));
      return;
    }
    exchange->start({.status = 200, .headers = {}, .body = "begun"}, {});
    const std::lock_guard lock(mutex);
    kept.push_back(exchange);
    came.raise();
  };
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(served().client(get()));
  ASSERT_TRUE(came.wait(10));
  const auto in_head = served().client("GET /");
  const auto fresh = served().client();
  const auto blocker = served().client(get("/block"));
  ASSERT_TRUE(blocked.wait());
  std::atomic<bool> writing = true;
  std::thread writer([&] {
    while (writing) {
      for (const auto& exchange : kept) {
        if (!exchange->full()) exchange->write("more");
      }
    }
  });
  served().server().stop();
  EXPECT_EQ(gone.raised(), 11);
  EXPECT_EQ(served().server().connections(), 0);
  EXPECT_EQ(served().server().open_exchanges(), 0);
  EXPECT_EQ(served().handler.finished_count(), 11U);
  for (const auto& exchange : kept) EXPECT_TRUE(exchange->gone());
  writing = false;
  writer.join();
  for (const auto& client : clients) EXPECT_FALSE(client->read_answer().complete);
  EXPECT_TRUE(fresh->ended());
  served().server().stop();
}

}  // namespace
}  // namespace weft::http_test
