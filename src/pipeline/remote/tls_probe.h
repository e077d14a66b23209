// A TLS handshake for its reasons alone: gRPC says that a connection failed, and seldom why.
#pragma once

#include <chrono>
#include <string>

#include "pipeline/remote/grpc_transport.h"

namespace weft {

struct TlsVerdict {
  bool connected = false;  // there was a connection
  bool speaks_tls = false;
  std::string refused;  // why one of the two ends refused the other; empty when both were content
};

// Connects to `address` as a client with the files of `security`, or without a certificate when it has none, and waits for the
// first bytes after the handshake: a server that refuses a client's certificate says so only then. Looks at no names. Where
// nothing is decided by `deadline`, nothing is refused. Throws security as read_tls_files() does, except for dates.
[[nodiscard]] TlsVerdict probe_tls(const std::string& address, const TransportSecurity& security,
                                   std::chrono::steady_clock::time_point deadline);

}  // namespace weft
