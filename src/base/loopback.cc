#include "base/loopback.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <string_view>

#include <netinet/in.h>

namespace weft {

bool is_loopback_host(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    in6_addr inner{};
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &inner) == 1 && IN6_IS_ADDR_LOOPBACK(&inner);
  }
  std::array<unsigned char, sizeof(in_addr)> v4{};  // the first byte of the address first
  if (::inet_pton(AF_INET, host.c_str(), v4.data()) == 1) return v4[0] == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  constexpr std::string_view kName = "localhost";
  return std::ranges::equal(host, kName, [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

}  // namespace weft
