// Addresses of nodes, and what gRPC calls them: "host:port", "[v6]:port", "unix:/path".
#pragma once

#include <string>
#include <string_view>

namespace weft {

struct ParsedAddress {
  bool unix_socket = false;
  std::string host;  // without brackets; the path of a Unix socket
  int port = 0;

  [[nodiscard]] std::string text() const { return with_port(port); }
  [[nodiscard]] std::string with_port(int other) const;
  [[nodiscard]] std::string target() const;  // for a channel: never read as another scheme of names
};

// Throws bad_input naming the address and what is wrong with it. Port 0 (a free one) only where `listening`.
[[nodiscard]] ParsedAddress parse_address(std::string_view address, bool listening);

// "ipv4:10.0.0.3:4411" as "10.0.0.3:4411", "ipv6:%5B::1%5D:80" as "[::1]:80".
[[nodiscard]] std::string readable_peer(std::string_view peer);

}  // namespace weft
