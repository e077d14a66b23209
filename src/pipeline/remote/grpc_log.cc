#include "pipeline/remote/grpc_log.h"

#include <chrono>
#include <mutex>
#include <string_view>
#include <utility>

#include <grpc/support/log.h>

#include "base/guard.h"
#include "base/log.h"
#include "base/plural.h"
#include "base/utf8.h"

namespace weft {
namespace {

constexpr int kPerSecond = 5;

thread_local GrpcLogCapture* capture = nullptr;

// A server says so of every client whose name for it is not in its certificate: an address, say. The client decides about
// names.
bool is_noise(std::string_view message) { return message.starts_with("No match found for server name"); }

void on_grpc_log(gpr_log_func_args* arguments) {
  (void)guard([&] {
    if (arguments->severity != GPR_LOG_SEVERITY_ERROR || is_noise(arguments->message)) return;
    if (capture) {
      capture->add(arguments->message);
    } else {
      warn_sparingly("gRPC: " + printable(arguments->message));
    }
  });
}

}  // namespace

void route_grpc_log() {
  static const bool once = [] {
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
    gpr_set_log_function(on_grpc_log);
    return true;
  }();
  (void)once;
}

GrpcLogCapture::GrpcLogCapture() { capture = this; }
GrpcLogCapture::~GrpcLogCapture() { capture = nullptr; }

void GrpcLogCapture::add(const char* message) {
  if (!text_.empty()) text_ += "; ";
  text_ += printable(message);
}

void warn_sparingly(const std::string& text) {
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point second;
  static int said = 0;
  static int64_t unsaid = 0;
  int64_t missed = 0;
  {
    const std::lock_guard lock(mutex);
    const auto now = std::chrono::steady_clock::now();
    if (now - second >= std::chrono::seconds(1)) {
      second = now;
      said = 0;
    }
    if (++said > kPerSecond) {
      ++unsaid;
      return;
    }
    std::swap(missed, unsaid);
  }
  if (missed > 0) log::warning("{} like these are left out", counted(missed, "message"));
  log::warning("{}", text);
}

}  // namespace weft
