#include "base/json.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"

namespace weft {

namespace {

// nlohmann's message without its own error number and the line it counted.
std::string_view reason_of(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  const auto skip_past = [&](std::string_view mark) {
    const size_t at = text.find(mark);
    if (at != std::string_view::npos) text.remove_prefix(at + mark.size());
  };
  if (text.starts_with("[json.exception.")) skip_past("] ");
  if (text.starts_with("parse error")) skip_past(": ");
  if (text.starts_with("syntax error while parsing ")) skip_past(" - ");
  return text;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view place, ErrorKind kind) {
  std::vector<std::set<std::string>> open_keys;  // one set for each open object or array
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) fail(kind, place, "wanted JSON nested at most {} deep, found more", kMaxJsonDepth);
        open_keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end: open_keys.pop_back(); break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (static_cast<int64_t>(open_keys.back().size()) >= kMaxJsonKeys) {
          fail(kind, place, "wanted at most {} keys in one object, found more", kMaxJsonKeys);
        }
        if (!open_keys.back().insert(key).second)
          fail(kind, place, "wanted each key once, found '{}' twice in one object", key);
        break;
      }
      case Json::parse_event_t::value: break;
    }
    return true;
  };
  try {
    return Json::parse(text, callback);
  } catch (const nlohmann::json::parse_error& error) {
    // The library counts the byte that it stopped at from 1.
    fail(kind, place, "wanted JSON, found at byte {}: {}", error.byte - std::min<size_t>(error.byte, 1), reason_of(error));
  } catch (const nlohmann::json::exception& error) {
    fail(kind, place, "wanted JSON, found: {}", reason_of(error));
  }
}

Json read_json_file(const std::filesystem::path& path, ErrorKind kind, int64_t max_bytes) {
  return parse_json(read_text_file(path, kind, max_bytes), path.string(), kind);
}

}  // namespace weft
