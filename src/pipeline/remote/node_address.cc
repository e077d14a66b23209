#include "pipeline/remote/node_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <optional>

#include <sys/un.h>

#include "base/error.h"
#include "base/loopback.h"
#include "base/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr size_t kLongestHost = 253;  // of a DNS name

[[noreturn]] void refuse(std::string_view text, std::string_view reason) {
  fail(ErrorKind::bad_input, "address", "wanted host:port, [v6]:port or unix:/path, found '{}': {}",
       printable(text.substr(0, 200)), reason);
}

// An IPv6 address as the system writes it.
std::optional<std::string> numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::inet_pton(AF_INET6, host.c_str(), bytes.data()) != 1) return std::nullopt;
  if (::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size()) == nullptr) return std::nullopt;
  return std::string(text.data());
}

bool letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

// "fe80::1%eth0" without its zone.
std::string without_zone(const std::string& host) { return host.substr(0, host.find('%')); }

}  // namespace

NodeEndpoint parse_endpoint(std::string_view text) {
  NodeEndpoint end;
  if (text.starts_with(kUnix)) {
    end.path = text.substr(kUnix.size());
    if (!end.path.starts_with('/')) refuse(text, "the path of the socket does not begin with '/'");
    if (end.path.find('\0') != std::string::npos) refuse(text, "the path of the socket has a zero byte");
    if (end.path.size() >= sizeof(sockaddr_un::sun_path)) refuse(text, "the path of the socket is longer than 107 bytes");
    return end;
  }
  const size_t colon = text.rfind(':');
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos || colon != close + 1) refuse(text, "no port after the brackets");
    end.host = text.substr(1, close - 1);
    const size_t percent = end.host.find('%');
    const std::string zone = percent == std::string::npos ? "" : end.host.substr(percent + 1);
    const bool good_zone = percent == std::string::npos || (!zone.empty() && std::ranges::all_of(zone, [](char c) {
                             return letter_or_digit(c) || c == '.' || c == '-' || c == '_';
                           }));
    if (!numeric(without_zone(end.host)) || !good_zone) refuse(text, "no IPv6 address between the brackets");
  } else {
    if (colon == std::string_view::npos) refuse(text, "no port");
    end.host = text.substr(0, colon);
    if (end.host.empty()) refuse(text, "no host");
    if (end.host.find(':') != std::string::npos) refuse(text, "an IPv6 address stands in brackets");
    const bool good =
        std::ranges::all_of(end.host, [](char c) { return letter_or_digit(c) || c == '.' || c == '-' || c == '_'; });
    if (!good || end.host.size() > kLongestHost) refuse(text, "no name of a host before the port");
  }
  const std::string_view digits = text.substr(colon + 1);
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), end.port);
  if (error != std::errc() || at != digits.data() + digits.size() || end.port < 1 || end.port > 65535)
    refuse(text, "the port is no number from 1 to 65535");
  return end;
}

bool NodeEndpoint::loopback() const {
  if (!path.empty()) return true;
  return is_loopback_host(host);
}

std::string NodeEndpoint::canonical() const {
  if (!path.empty()) return std::string(kUnix) + path;
  if (const std::optional<std::string> v6 = numeric(without_zone(host)))
    return fmt::format("[{}{}]:{}", *v6, host.substr(without_zone(host).size()), port);
  return fmt::format("{}:{}", lower(host), port);
}

}  // namespace weft
