// The text of HTTP/1.1 that Weft writes itself: heads of answers, chunks; and what a request's target says.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace weft::http {

struct Target {
  std::string path;   // percent escapes decoded
  std::string query;  // behind '?', as it was sent
};

// Of "/a%20b?c", of "http://host/a%20b?c", of "*". Nothing for another form, and for an escape that is none or means a zero
// byte.
[[nodiscard]] std::optional<Target> parse_target(std::string_view target);

// How the end of a body is told.
enum class Framing { none, length, chunked, close };  // none: there is no body

struct AnswerHead {
  Framing framing = Framing::length;
  int64_t length = 0;
  bool keep_alive = true;
  bool http_1_0 = false;
  std::time_t now = 0;
};

// Status line and headers up to the empty line. Headers that are the server's own are left out, as are those whose names are no
// tokens; control characters in values become spaces.
[[nodiscard]] std::string answer_head(const Response& response, const AnswerHead& head);

// 1xx, 204 and 304 have no body.
[[nodiscard]] bool has_body(int status);

[[nodiscard]] std::string http_date(std::time_t time);  // "Sun, 06 Nov 1994 08:49:37 GMT"

// `bytes` (not empty) as a chunk.
void append_chunk(std::string& out, std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

[[nodiscard]] bool same_word(std::string_view a, std::string_view b);  // ASCII letters in whatever case

}  // namespace weft::http
