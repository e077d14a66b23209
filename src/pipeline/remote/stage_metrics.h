// A stage's figures for Prometheus, over HTTP (docs/distributed.md, "Metrics").
//
//     StageMetrics metrics("127.0.0.1", 9464, worker, false);
//     metrics.address();   // "127.0.0.1:9464": http://127.0.0.1:9464/metrics
//
// Whoever reaches the address may read them: there is neither TLS nor a password.
#pragma once

#include <memory>
#include <string>

namespace weft {

class Worker;

class StageMetrics {
 public:
  // Listens; port 0 takes a free one. `host`: an IPv4 address, or an IPv6 address without brackets. `insecure`: the stage's own
  // address takes plaintext from other hosts. The worker outlives the metrics. Throws bad_input for a host that is no address,
  // unavailable naming the address when it cannot be bound.
  StageMetrics(const std::string& host, int port, Worker& worker, bool insecure);
  ~StageMetrics();
  StageMetrics(const StageMetrics&) = delete;
  StageMetrics& operator=(const StageMetrics&) = delete;

  [[nodiscard]] const std::string& address() const;  // with the port that was chosen

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
