// Tables of an operator (ids, rows, segments, block tables, experts) may lie in device memory, as those of a stage do, or on
// the host, as those of tests do. What lies on the host is copied to the workspace first; recorded steps must not need that.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace weft::ops::cuda {

[[nodiscard]] bool on_host(const void* pointer);
// `bytes` bytes in device memory: `pointer` itself, or a copy in the workspace's current scope.
[[nodiscard]] const std::byte* device_bytes(Context& context, const void* pointer, int64_t bytes);

template <class T>
[[nodiscard]] std::span<const T> device_table(Context& context, std::span<const T> table) {
  const std::byte* data = device_bytes(context, table.data(), static_cast<int64_t>(table.size_bytes()));
  return {reinterpret_cast<const T*>(data), table.size()};
}
// With the block tables of host segments.
[[nodiscard]] std::span<const PagedSegment> device_segments(Context& context, std::span<const PagedSegment> segments);

}  // namespace weft::ops::cuda
