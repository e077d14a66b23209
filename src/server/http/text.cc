#include "server/http/text.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace weft::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (lower(c) >= 'a' && lower(c) <= 'f') return lower(c) - 'a' + 10;
  return -1;
}

bool is_token(std::string_view name) {
  const auto good = [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), good);
}

bool is_own(std::string_view name) {
  constexpr std::array<std::string_view, 4> kOwn = {"content-length", "transfer-encoding", "connection", "date"};
  return std::any_of(kOwn.begin(), kOwn.end(), [&](std::string_view own) { return same_word(own, name); });
}

std::string_view reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 406: return "Not Acceptable";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "";  // the reason may be empty
  }
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* find_header(const std::vector<Header>& headers, std::string_view name) {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const Header& h) { return same_word(h.name, name); });
  return found == headers.end() ? nullptr : &found->value;
}

std::optional<Target> parse_target(std::string_view target) {
  bool absolute = false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (absolute || !same_word(target.substr(0, scheme.size()), scheme)) continue;
    absolute = true;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
  }
  Target result;
  const size_t question = std::min(target.find('?'), target.size());
  if (question < target.size()) result.query = target.substr(question + 1);
  target = target.substr(0, question);
  if (absolute && target.empty()) target = "/";
  if (target != "*" && !target.starts_with('/')) return std::nullopt;
  result.path.reserve(target.size());
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      result.path += target[i];
      continue;
    }
    if (target.size() - i < 3) return std::nullopt;
    const int high = hex_value(target[i + 1]);
    const int low = hex_value(target[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    result.path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

std::string http_date(std::time_t time) {
  constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts = {};
  gmtime_r(&time, &parts);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays.at(static_cast<size_t>(parts.tm_wday)), parts.tm_mday,
                     kMonths.at(static_cast<size_t>(parts.tm_mon)), parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                     parts.tm_sec);
}

std::string answer_head(const Response& response, const AnswerHead& head) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status, reason(response.status), http_date(head.now));
  for (const Header& header : response.headers) {
    if (!is_token(header.name) || is_own(header.name)) continue;
    text += header.name;
    text += ": ";
    const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c; };
    std::transform(header.value.begin(), header.value.end(), std::back_inserter(text), plain);
    text += "\r\n";
  }
  if (head.framing == Framing::length) text += fmt::format("Content-Length: {}\r\n", head.length);
  if (head.framing == Framing::chunked) text += "Transfer-Encoding: chunked\r\n";
  if (!head.keep_alive) text += "Connection: close\r\n";
  if (head.keep_alive && head.http_1_0) text += "Connection: keep-alive\r\n";
  return text + "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out += bytes;
  out += "\r\n";
}

}  // namespace weft::http
