#include "pipeline/remote/grpc_address.h"

#include <charconv>

#include <fmt/format.h>

#include "base/utf8.h"
#include "pipeline/remote/node_address.h"

namespace weft {
namespace {

constexpr std::string_view kUnix = "unix:";

}  // namespace

std::string ParsedAddress::with_port(int other) const {
  if (unix_socket) return std::string(kUnix) + host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", other);
}

std::string ParsedAddress::target() const { return unix_socket ? text() : "dns:///" + text(); }

ParsedAddress parse_address(std::string_view address, bool listening) {
  // A port of 0 is none that a node can have, but one to listen on.
  const bool free_port = listening && !address.starts_with(kUnix) && address.ends_with(":0");
  const NodeEndpoint end =
      parse_endpoint(free_port ? std::string(address.substr(0, address.size() - 1)) + "1" : std::string(address));
  ParsedAddress parsed;
  parsed.unix_socket = !end.path.empty();
  parsed.host = parsed.unix_socket ? end.path : end.host;
  parsed.port = free_port ? 0 : static_cast<int>(end.port);
  return parsed;
}

std::string readable_peer(std::string_view peer) {
  for (const std::string_view scheme : {"ipv4:", "ipv6:"})
    if (peer.starts_with(scheme)) peer.remove_prefix(scheme.size());
  std::string text;
  for (size_t i = 0; i < peer.size(); ++i) {
    int code = 0;
    if (peer[i] == '%' && i + 2 < peer.size() &&
        std::from_chars(peer.data() + i + 1, peer.data() + i + 3, code, 16).ptr == peer.data() + i + 3) {
      text += static_cast<char>(code);
      i += 2;
    } else {
      text += peer[i];
    }
  }
  return printable(text);
}

}  // namespace weft
