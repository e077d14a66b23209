#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

std::vector<size_t> borders_of(std::string_view text) {
  std::vector<size_t> borders(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = borders[i - 1];
    while (length > 0 && text[i] != text[length]) length = borders[length - 1];
    borders[i] = length + (text[i] == text[length] ? 1 : 0);
  }
  return borders;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) fail(ErrorKind::bad_input, "stop", "wanted strings of at least one byte, found an empty one");
    Stop& stop = stops_.emplace_back();
    stop.borders = borders_of(text);
    stop.text = std::move(text);
  }
}

bool StopStrings::feed(std::string_view text, std::string& shown) {
  if (matched_) return true;
  if (stops_.empty()) {
    shown += text;
    return false;
  }
  for (const char byte : text) {
    held_ += byte;
    const Stop* complete = nullptr;
    size_t longest = 0;
    for (Stop& stop : stops_) {
      while (stop.state > 0 && stop.text[stop.state] != byte) stop.state = stop.borders[stop.state - 1];
      if (stop.text[stop.state] == byte) ++stop.state;
      if (stop.state == stop.text.size()) {
        if (complete == nullptr || stop.text.size() > complete->text.size()) complete = &stop;
      } else {
        longest = std::max(longest, stop.state);
      }
    }
    if (complete != nullptr) {
      shown.append(held_, 0, held_.size() - complete->text.size());
      held_.clear();
      matched_ = complete->text;
      return true;
    }
    shown.append(held_, 0, held_.size() - longest);
    held_.erase(0, held_.size() - longest);
  }
  return false;
}

void StopStrings::flush(std::string& shown) {
  shown += held_;
  held_.clear();
  for (Stop& stop : stops_) stop.state = 0;
}

}  // namespace weft
