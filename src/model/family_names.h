#pragma once

#include <string>
#include <vector>

namespace weft {

// Values of `model_type` that this program runs (parse_model_config), sorted.
[[nodiscard]] std::vector<std::string> family_names();

}  // namespace weft
