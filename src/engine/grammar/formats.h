// The values of `format` that are carried out, as regular expressions.
#pragma once

#include <optional>
#include <string_view>

namespace weft::grammar {

// Nothing for a format that is not known. Each expression describes usual members of the format and nothing else: days exist in
// their month, e-mail addresses and hosts are plain ones.
[[nodiscard]] std::optional<std::string_view> format_pattern(std::string_view format);

}  // namespace weft::grammar
