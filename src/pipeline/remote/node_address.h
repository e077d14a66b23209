// Where a node listens: "host:port", "[v6]:port" or "unix:/path".
//
//     const NodeEndpoint end = parse_endpoint("[::1]:19001");  // throws bad_input with what is wrong
//     end.loopback();                                          // true
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

struct NodeEndpoint {
  std::string host;  // a name or a numeric address without brackets; empty for a Unix socket
  int64_t port = 0;  // 1..65535; 0 for a Unix socket
  std::string path;  // of a Unix socket

  // 127.0.0.0/8, ::1, localhost, or a Unix socket. No name is looked up.
  [[nodiscard]] bool loopback() const;
  // Equal for two spellings of one address: letters in lower case, numeric addresses as the system writes them.
  [[nodiscard]] std::string canonical() const;
};

// Throws bad_input, place "address", with the text and what is wrong with it. No name is looked up.
[[nodiscard]] NodeEndpoint parse_endpoint(std::string_view text);

}  // namespace weft
