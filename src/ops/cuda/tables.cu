#include <vector>

#include "ops/cuda/common.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {

bool on_host(const void* pointer) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, pointer), "table");
  return attributes.type != cudaMemoryTypeDevice;
}

const std::byte* device_bytes(Context& context, const void* pointer, int64_t bytes) {
  const auto* data = static_cast<const std::byte*>(pointer);
  if (bytes == 0 || !on_host(pointer)) return data;
  const MutableTensorView copy = context.workspace->take({bytes}, DType::u8);
  context.device->upload(copy.data, data, bytes);
  return copy.data;
}

std::span<const PagedSegment> device_segments(Context& context, std::span<const PagedSegment> segments) {
  if (segments.empty() || !on_host(segments.data())) return segments;
  std::vector<PagedSegment> moved(segments.begin(), segments.end());
  for (PagedSegment& segment : moved) segment.pages = device_table(context, segment.pages);
  return device_table(context, std::span<const PagedSegment>(moved));
}

}  // namespace weft::ops::cuda
