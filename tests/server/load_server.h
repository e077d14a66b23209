// `weft serve` as a process that a load test watches: its memory, and what its metrics say.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/child_process.h"

namespace weft::load_test {

// Ends with this object.
class LoadServer {
 public:
  // `program serve ARGUMENTS --port 0 --quiet`. Waits until it is ready; throws with what it said when it is not.
  LoadServer(const std::string& program, const std::vector<std::string>& arguments);
  ~LoadServer();
  LoadServer(const LoadServer&) = delete;
  LoadServer& operator=(const LoadServer&) = delete;

  [[nodiscard]] uint16_t port() const { return port_; }
  // The server first, then the stages that it started.
  [[nodiscard]] std::vector<int> processes() const;
  [[nodiscard]] std::string said() const;  // on standard error
  // SIGTERM; the exit code.
  int end();

 private:
  void read_words();

  server_test::Pipe err_;
  std::unique_ptr<server_test::ChildProcess> process_;
  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  std::string said_;
  bool over_ = false;
  uint16_t port_ = 0;
  std::thread reader_;
};

// Seconds of processor time that these processes have used.
[[nodiscard]] double processor_seconds(const std::vector<int>& processes);

// Resident bytes of processes over time.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::vector<int> processes) : processes_(std::move(processes)), bytes_(processes_.size()) {}

  void look();

  // Of all looks but the first `skip`: medians of the first and of the last quarter, in bytes.
  struct Trend {
    double first = 0;
    double last = 0;
    double most = 0;
    [[nodiscard]] double growth() const { return first > 0 ? last / first - 1 : 0; }
  };
  [[nodiscard]] size_t processes() const { return processes_.size(); }
  [[nodiscard]] size_t looks() const { return bytes_.empty() ? 0 : bytes_[0].size(); }
  [[nodiscard]] Trend trend(size_t process, size_t skip) const;

 private:
  std::vector<int> processes_;
  std::vector<std::vector<double>> bytes_;  // of each process, one for each look
};

// GET; the body. Throws for another status than 200.
[[nodiscard]] std::string get_page(uint16_t port, const std::string& path);

// "weft_requests_running" or "weft_requests_total{endpoint=\"/health\",status=\"200\"}" -> value
using Metrics = std::map<std::string, double>;
[[nodiscard]] Metrics read_metrics(uint16_t port);

// Waits until no request runs, none waits and no connection but the one that asks is open. False after `seconds`.
[[nodiscard]] bool wait_until_idle(uint16_t port, double seconds);

// Statuses of 500 and more, and answers that failed, that the metrics count: one line each.
[[nodiscard]] std::vector<std::string> failures_in(const Metrics& metrics);

}  // namespace weft::load_test
