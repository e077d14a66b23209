// Ten thousand connections that wait, and others that are served meanwhile.
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "server/http_util.h"

namespace weft::http_test {
namespace {

constexpr int64_t kWanted = 10'000;
constexpr int64_t kLeast = 2'000;
constexpr int64_t kOtherFiles = 200;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMostMemory = 128.0;
#elif defined(__has_feature)
constexpr double kMostMemory = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ? 128.0 : 16.0;
#else
constexpr double kMostMemory = 16.0;  // KiB of both ends
#endif

int64_t number_of_this_process(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  return -1;
}

// Both ends of a connection are files of this process.
int64_t connections_that_fit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<int64_t>(kWanted, (static_cast<int64_t>(limit.rlim_cur) - kOtherFiles) / 2);
}

TEST(HttpMany, IdleConnectionsTakeLittleAndDisturbNobody) {
  const int64_t count = connections_that_fit();
  ASSERT_GE(count, kLeast) << "the hard limit of open files is too low";
  http::ServerOptions options = test_options();
  options.idle_seconds = 10'000;
  Served served(false, options);
  {
    const auto client = served.client(get());
    EXPECT_EQ(client->read_answer().status, 200);
  }
  const int64_t threads = number_of_this_process("Threads");
  const int64_t memory = number_of_this_process("VmRSS");  // KiB
  std::vector<std::unique_ptr<Client>> idle;
  for (int64_t i = 0; i < count; ++i) {
    idle.push_back(served.client());
    // Every other one has had a request, with a body that grows its buffers.
    if (i % 2 == 0) continue;
    idle.back()->send(post(std::string(100'000, 'b')));
    ASSERT_EQ(idle.back()->read_answer().status, 200);
  }
  ASSERT_TRUE(eventually([&] { return served.server().connections() >= count; }));
  const auto per_connection = static_cast<double>(number_of_this_process("VmRSS") - memory) / static_cast<double>(count);
  RecordProperty("connections", std::to_string(count));
  RecordProperty("KiB per connection, both ends", std::to_string(per_connection));
  printf("%ld idle connections, %.1f KiB each (both ends in this process)\n", static_cast<long>(count), per_connection);
  EXPECT_LT(per_connection, kMostMemory);
  EXPECT_EQ(number_of_this_process("Threads"), threads);
  for (int i = 0; i < 200; ++i) {
    const auto client = served.client(get());
    EXPECT_EQ(client->read_answer().status, 200);
  }
  for (size_t i = 0; i < idle.size(); i += 97) {
    idle[i]->send(get());
    EXPECT_EQ(idle[i]->read_answer().status, 200);
  }
  served.server().stop_accepting();
  EXPECT_TRUE(eventually([&] { return served.server().connections() == 0; }));
  for (const auto& client : idle) ASSERT_TRUE(client->ended());
}

}  // namespace
}  // namespace weft::http_test
