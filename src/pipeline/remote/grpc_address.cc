#include "pipeline/remote/grpc_address.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <sys/un.h>

#include "base/error.h"
#include "base/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kUnix = "unix:";

[[noreturn]] void refuse(std::string_view address, std::string_view found) {
  fail(ErrorKind::bad_input, "address", "'{}': wanted host:port, [v6]:port or unix:/path, found {}", printable(address), found);
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

}  // namespace

std::string ParsedAddress::with_port(int other) const {
  if (unix_socket) return std::string(kUnix) + host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", other);
}

std::string ParsedAddress::target() const { return unix_socket ? text() : "dns:///" + text(); }

ParsedAddress parse_address(std::string_view address, bool listening) {
  ParsedAddress parsed;
  if (address.starts_with(kUnix)) {
    parsed.unix_socket = true;
    parsed.host = address.substr(kUnix.size());
    if (parsed.host.empty() || parsed.host.find('\0') != std::string::npos) refuse(address, "no path");
    if (parsed.host.size() >= sizeof(sockaddr_un::sun_path))
      refuse(address, fmt::format("a path of {} bytes, of which a socket can have {}", parsed.host.size(),
                                  sizeof(sockaddr_un::sun_path) - 1));
    return parsed;
  }
  std::string_view port;
  if (address.starts_with('[')) {
    const size_t end = address.find("]:");
    if (end == std::string_view::npos) refuse(address, "no port after the bracket");
    parsed.host = address.substr(1, end - 1);
    port = address.substr(end + 2);
    const bool good = parsed.host.find(':') != std::string::npos &&
                      std::ranges::all_of(parsed.host, [](char c) { return is_host_character(c) || c == ':' || c == '%'; });
    if (!good) refuse(address, "no IPv6 address in the brackets");
  } else {
    const size_t colon = address.rfind(':');
    if (colon == std::string_view::npos) refuse(address, "no port");
    parsed.host = address.substr(0, colon);
    port = address.substr(colon + 1);
    if (parsed.host.find(':') != std::string::npos) refuse(address, "an IPv6 address without brackets");
    if (parsed.host.empty() || !std::ranges::all_of(parsed.host, is_host_character)) refuse(address, "no host");
  }
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
  const bool number = !port.empty() && error == std::errc() && rest == port.data() + port.size();
  if (!number || parsed.port < (listening ? 0 : 1) || parsed.port > 65535)
    refuse(address, fmt::format("port '{}'", printable(port)));
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
