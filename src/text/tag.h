// The header of an XTML tag, between its opening marker and its separator (prompt_and_api.md 3.3).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

struct Tag {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;  // values unescaped

  // The last attribute of that name, or nullptr.
  [[nodiscard]] const std::string* find(std::string_view key) const;
};

// Never fails: what is no attribute is passed over. White space around the tag name is accepted.
[[nodiscard]] Tag parse_tag(std::string_view header);

// A value as it stands between the quotes of an attribute (2.1).
[[nodiscard]] std::string escape_attribute(std::string_view value);

}  // namespace weft
