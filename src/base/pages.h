// Pages: what the system keeps of a file in memory, and how a mapping's pages come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace weft {

[[nodiscard]] int64_t page_bytes();

// For each page of the file whether the page cache holds it (mincore).
[[nodiscard]] std::vector<bool> cached_pages(const std::filesystem::path& path);

// Writes the file's changed pages back and drops all of them from the page cache. Throws unavailable when some stay, which is
// so while anybody has them mapped.
void evict_pages(const std::filesystem::path& path);

// Of a mapping: a touched page is read alone, without its neighbours. What is wanted in one piece comes by bring_in().
void read_pages_singly(std::span<const std::byte> mapping);

// Reads the pages of a part of a file mapping that are not in memory, in large requests, and maps them. Best effort: a page
// that cannot be read shows its fault when it is touched.
void bring_in(std::span<const std::byte> part);

// Takes the pages that lie wholly inside a part of a file mapping from this process. Their content comes again when touched.
void give_back(std::span<const std::byte> part);

}  // namespace weft
