#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The candidate with the fewest edits to `word`, or nothing when none is near (at most a third of the word's letters, and 1).
[[nodiscard]] std::string closest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft
