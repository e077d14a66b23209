// What gRPC itself has to say, in Weft's log: gRPC tells some reasons only there.
#pragma once

#include <string>

namespace weft {

// From the first call on, errors of gRPC are warnings of Weft, a few per second at most with a count of the others. Neither its
// verbosity nor its format follows the environment.
void route_grpc_log();

// Keeps what gRPC says on this thread as long as it lives.
class GrpcLogCapture {
 public:
  GrpcLogCapture();
  ~GrpcLogCapture();
  GrpcLogCapture(const GrpcLogCapture&) = delete;
  GrpcLogCapture& operator=(const GrpcLogCapture&) = delete;

  [[nodiscard]] const std::string& text() const { return text_; }
  void add(const char* message);

 private:
  std::string text_;
};

// A warning, unless there were many in this second; those are counted and told of later.
void warn_sparingly(const std::string& text);

}  // namespace weft
