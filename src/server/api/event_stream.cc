#include "server/api/event_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace weft::api {
namespace {

constexpr size_t kLongestWarning = 300;  // bytes
constexpr size_t kMostWarnings = 8;

// Header values are ASCII.
std::string header_text(std::string_view text) {
  std::string made;
  for (const char c : text.substr(0, kLongestWarning)) made += c >= ' ' && c <= '~' ? c : '?';
  return made;
}

}  // namespace

void add_warnings(http::Response& response, const std::vector<std::string>& notes) {
  for (size_t i = 0; i < std::min(notes.size(), kMostWarnings); ++i)
    response.headers.push_back({"X-Weft-Warning", header_text(notes[i])});
}

void start_events(http::Exchange& exchange, const std::vector<std::string>& notes) {
  http::Response head{.status = 200,
                      .headers = {{"Content-Type", "text/event-stream; charset=utf-8"},
                                  {"Cache-Control", "no-cache"},
                                  {"X-Accel-Buffering", "no"}},
                      .body = {}};
  add_warnings(head, notes);
  http::StreamOptions options;
  options.keep_alive = ": keep-alive\n\n";
  exchange.start(std::move(head), options);
}

void finish_events(http::Exchange& exchange) {
  exchange.write("data: [DONE]\n\n");
  exchange.finish();
}

void fail_events(http::Exchange& exchange, const ApiError& error) {
  exchange.write(fmt::format("data: {}\n\n", json_text(error_json(error))));
  finish_events(exchange);
}

}  // namespace weft::api
