#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace weft {

// Bytes that this process may fill: what the system has available without swapping, or the limit of a memory control group (v1
// or v2) of this process where that is less.
[[nodiscard]] int64_t available_memory();

// The smallest memory limit of the groups that `membership` (/proc/self/cgroup) names and of their ancestors, looked up below
// `root` (/sys/fs/cgroup); nothing when none of them is limited.
[[nodiscard]] std::optional<int64_t> group_memory_limit(std::string_view membership, const std::filesystem::path& root);

// What this process has in memory, mapped files that were read included. Bytes; zero where the system does not tell.
struct ProcessMemory {
  int64_t resident = 0;
  int64_t peak = 0;
};
[[nodiscard]] ProcessMemory process_memory();

}  // namespace weft
