#include "pipeline/remote/grpc_names.h"

#include <fmt/format.h>
#include <grpcpp/version_info.h>

#include "pipeline/remote/grpc_transport.h"

namespace weft {
namespace {

constexpr size_t kLongest = 2000;  // bytes; all trailers together must stay below 8 KiB, and some bytes become three

}  // namespace

grpc::Status refusal(grpc::StatusCode code, const std::string& message) {
  if (message.size() <= kLongest) return {code, message};
  return {code, fmt::format("{}... ({} bytes more)", message.substr(0, kLongest), message.size() - kLongest)};
}

std::string grpc_version() { return GRPC_CPP_VERSION_STRING; }

}  // namespace weft
