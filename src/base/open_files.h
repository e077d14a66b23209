// The system's limit of open files of this process.
#pragma once

#include <cstdint>
#include <optional>

namespace weft {

// Raises the soft limit to `wanted`, or as far as the hard one allows; never lowers it. Absent: as far as that. Returns the
// limit that holds now.
int64_t raise_open_file_limit(std::optional<int64_t> wanted = std::nullopt);

}  // namespace weft
