#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr int64_t kUnlimited = 1LL << 60;  // v1 writes the largest whole number of pages

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "MemAvailable:   21212312 kB"; total memory where the kernel does not say.
int64_t system_available() {
  const std::string text = content_of("/proc/meminfo");
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = text.find(kKey);
  if (at != std::string::npos) return std::strtoll(text.c_str() + at + kKey.size(), nullptr, 10) * 1024;
  return ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
}

// The least of `limit` and the limits of the group `folder` and those above it, up to `root`.
void take_limits(std::filesystem::path folder, const std::filesystem::path& root, const char* file,
                 std::optional<int64_t>& limit) {
  for (;; folder = folder.parent_path()) {
    const int64_t value = std::strtoll(content_of(folder / file).c_str(), nullptr, 10);  // "max" and no file: 0
    if (value > 0 && value < kUnlimited) limit = std::min(limit.value_or(value), value);
    if (folder == root || folder == folder.parent_path()) return;
  }
}

}  // namespace

std::optional<int64_t> group_memory_limit(std::string_view membership, const std::filesystem::path& root) {
  std::optional<int64_t> limit;
  while (!membership.empty()) {
    const std::string_view line = membership.substr(0, membership.find('\n'));
    membership.remove_prefix(std::min(membership.size(), line.size() + 1));
    // "4:memory:/path" (v1, controllers separated by commas) or "0::/path" (v2).
    const size_t first = line.find(':');
    const size_t second = line.find(":/", first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string_view path = line.substr(second + 2);
    if (controllers == ",,") {
      take_limits(path.empty() ? root : root / path, root, "memory.max", limit);
    } else if (controllers.find(",memory,") != std::string::npos) {
      const std::filesystem::path top = root / "memory";
      take_limits(path.empty() ? top : top / path, top, "memory.limit_in_bytes", limit);
    }
  }
  return limit;
}

int64_t available_memory() {
  const int64_t available = system_available();
  const std::optional<int64_t> limit = group_memory_limit(content_of("/proc/self/cgroup"), "/sys/fs/cgroup");
  return std::min(available, limit.value_or(available));
}

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  std::string key;
  int64_t kibibytes = 0;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    words >> key >> kibibytes;
    if (!words) continue;
    if (key == "VmRSS:") memory.resident = kibibytes * 1024;
    if (key == "VmHWM:") memory.peak = kibibytes * 1024;
  }
  return memory;
}

}  // namespace weft
