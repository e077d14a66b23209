#include "text/call_writer.h"

#include <algorithm>
#include <utility>

#include "text/json_value.h"

namespace weft {

void ArgumentWriter::open_argument(std::string_view key, std::string_view type, std::string& out) {
  out += has_argument_ ? ", " : "{";
  append_json_string(out, key);
  out += ": ";
  has_argument_ = true;
  streamed_ = type.empty() || type == "string";
  if (streamed_) out += '"';
}

void ArgumentWriter::open_json_block() {
  has_json_block_ = true;
  streamed_ = false;
}

void ArgumentWriter::text(std::string_view part, std::string& out) {
  if (streamed_) {
    append_json_escaped(out, part);
  } else {
    body_ += part;
  }
}

void ArgumentWriter::close(std::string& out) {
  if (streamed_) {
    out += '"';
    streamed_ = false;
    return;
  }
  const std::string body = std::exchange(body_, {});
  if (has_json_block_) {
    out += body;
    return;
  }
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  std::string_view trimmed = body;
  trimmed.remove_prefix(std::min(trimmed.find_first_not_of(kSpace), trimmed.size()));
  trimmed.remove_suffix(trimmed.size() - (trimmed.find_last_not_of(kSpace) + 1));
  // One level less than a reader takes, since the value becomes a member.
  if (try_parse_json_value(trimmed, {.duplicate_keys = true, .max_depth = kMaxJsonDepth - 1})) {
    out += trimmed;
  } else {
    append_json_string(out, body);
  }
}

void ArgumentWriter::finish(std::string& out) const {
  if (has_json_block_) return;
  out += has_argument_ ? "}" : "{}";
}

}  // namespace weft
