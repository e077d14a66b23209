// Which hosts are this one, as far as their spelling says.
#pragma once

#include <string>

namespace weft {

// A name or a numeric address without a port, an IPv6 address in brackets or not: 127.0.0.0/8, ::1, localhost. No name is
// looked up, so "127.example.com" is none.
[[nodiscard]] bool is_loopback_host(const std::string& host);

}  // namespace weft
