#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/grpc_transport.h"

namespace weft {

bool is_loopback(const std::string& address) {
  const ParsedAddress parsed = parse_address(address, true);
  return parsed.unix_socket || parsed.host == "localhost" || parsed.host == "::1" || parsed.host.starts_with("127.");
}

void TransportSecurity::require_usable(const std::string& address) const {
  if (tls() || !token_file.empty()) fail(ErrorKind::unsupported, "grpc", "TLS and tokens are not built yet");
  if (!tls() && !allow_insecure && !is_loopback(address))
    fail(ErrorKind::security, "grpc", "{} is not loopback: wanted TLS or permission for plaintext, found neither", address);
}

}  // namespace weft
