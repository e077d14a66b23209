// The known name that a wrong one was meant to be:
//
//     closest("pipline_stage", {"hybrid", "pipeline_stage"});  // "pipeline_stage"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The candidate with the fewest edits to `word`, or nothing when none is near (at most a third of the word's letters, and 1).
[[nodiscard]] std::string closest(std::string_view word, const std::vector<std::string>& candidates);

// "; the closest known one is X", or nothing when none is near.
[[nodiscard]] std::string closest_hint(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft
