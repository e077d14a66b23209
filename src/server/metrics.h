// What the server counts, in the exposition format of Prometheus (prompt_and_api.md 6.10). All members may be called from any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "text/output_parser.h"

namespace weft {

// What stands at the moment of a scrape.
struct LoadFigures {
  int64_t running = 0;
  int64_t waiting = 0;
  double state_share = 0.0;  // of the memory for sequence states
  int64_t connections = 0;
};

class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // `endpoint`: a path of the API, or "other".
  void count_request(std::string_view endpoint, int status, double seconds);
  void count_answer(const RequestReport& report);
  void count_recoveries(const ParserCounters& counters);
  // A generated token, and the seconds since the one before it; of the first one since the request was queued.
  void count_token(double seconds, bool first);

  [[nodiscard]] std::string text(const LoadFigures& load) const;
  // Tokens generated so far, those of requests that go on included.
  [[nodiscard]] int64_t generated_so_far() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
