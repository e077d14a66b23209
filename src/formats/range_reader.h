// Many byte ranges of many files, read in parallel.
//
// Neighbouring ranges of one file become one request when the gap between them is at most `merge_gap`; a request is at most
// `max_request` bytes. No byte is read twice in one call, even where ranges overlap. Extra memory: one buffer of `max_request`
// bytes for each request in flight that serves several ranges (mx_formats 2.2 and 2.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/file.h"

namespace weft {

struct RangeRead {
  const ReadFile* file = nullptr;
  int64_t offset = 0;                // in the file
  std::span<std::byte> destination;  // its size is the length to read
};

struct RangeReadOptions {
  int64_t merge_gap = 64LL << 10;
  int64_t max_request = 8LL << 20;
  int in_flight = 4;
};

struct RangeReadStats {
  int64_t requests = 0;
  int64_t bytes_read = 0;    // gaps included
  int64_t bytes_wanted = 0;  // the union of the ranges
};

// What read_ranges would ask of a file, for plans and tests. Sorted; `begin` and `end` are bytes of the file.
struct RangeRequest {
  const ReadFile* file = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};
[[nodiscard]] std::vector<RangeRequest> plan_requests(std::span<const RangeRead> ranges, const RangeReadOptions& options = {});

// Fills every destination. Throws what ReadFile::read_at throws, after all threads have ended; destinations are unspecified
// then.
RangeReadStats read_ranges(std::span<const RangeRead> ranges, const RangeReadOptions& options = {});

}  // namespace weft
