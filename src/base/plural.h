#pragma once

#include <string>
#include <string_view>

#include "base/units.h"

namespace weft {

// "1 layer", "1,024 layers"
[[nodiscard]] inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

}  // namespace weft
