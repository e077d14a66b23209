// Parts of mapped files, brought into memory at the speed of the disk.
//
// A page fault reads one page, or the pages around it, while the thread waits; this asks for large pieces, several at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace weft {

struct MappedReadOptions {
  int64_t max_request = 8LL << 20;  // bytes
  int in_flight = 4;
};

using MappedPart = std::span<const std::byte>;  // of a file mapping

// Parts that touch or overlap become one; a request is at most `max_request` bytes. Sorted by address.
[[nodiscard]] std::vector<MappedPart> plan_mapped_requests(std::vector<MappedPart> parts,
                                                           const MappedReadOptions& options = {});

// Returns when the pages of all parts are in memory and mapped. Pages beside the parts are not read. `on_progress`, if given,
// is told after each request how many bytes are done, from one thread at a time; what it throws is thrown here.
void read_mapped(std::vector<MappedPart> parts, const MappedReadOptions& options = {},
                 const std::function<void(int64_t done)>& on_progress = {});

}  // namespace weft
