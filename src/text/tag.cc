#include "text/tag.h"

#include <algorithm>

#include "base/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

// &quot; first, then &amp;: the opposite order of escaping.
std::string unescape(std::string_view value) {
  const auto replace = [](std::string_view text, std::string_view from, char to) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text.substr(i, from.size()) == from) {
        out += to;
        i += from.size();
      } else {
        out += text[i++];
      }
    }
    return out;
  };
  return replace(replace(value, "&quot;", '"'), "&amp;", '&');
}

}  // namespace

const std::string* Tag::find(std::string_view key) const {
  for (auto attribute = attributes.rbegin(); attribute != attributes.rend(); ++attribute) {
    if (attribute->first == key) return &attribute->second;
  }
  return nullptr;
}

Tag parse_tag(std::string_view header) {
  const std::string text = to_valid_utf8(header);
  std::string_view rest = text;
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  const size_t name_end = std::min(rest.find_first_of(kSpace), rest.size());
  Tag tag;
  tag.name = rest.substr(0, name_end);
  rest.remove_prefix(name_end);
  while (true) {
    // A key is a run without white space, '=' and '"' that stands directly before '="'.
    const size_t equals = rest.find("=\"");
    if (equals == rest.npos) break;
    const size_t before = rest.substr(0, equals).find_last_of(" \t\n\r\f\v=\"");
    const std::string_view key = before == rest.npos ? rest.substr(0, equals) : rest.substr(before + 1, equals - before - 1);
    const size_t value_begin = equals + 2;
    const size_t value_end = rest.find('"', value_begin);
    if (value_end == rest.npos) break;
    if (!key.empty()) tag.attributes.emplace_back(key, unescape(rest.substr(value_begin, value_end - value_begin)));
    rest.remove_prefix(value_end + 1);
  }
  return tag;
}

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace weft
