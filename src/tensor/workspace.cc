#include "tensor/workspace.h"

#include <algorithm>

namespace weft {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kMinChunkBytes = 1LL << 20;

}  // namespace

MutableTensorView Workspace::take(const Shape& shape, DType dtype) {
  const int64_t bytes = (shape.elements() * size_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const int64_t size = std::max({bytes, kMinChunkBytes, chunks_.empty() ? planned_.value : 0});
    chunks_.push_back({device_->take(ByteCount(size)), size});
    used_ = 0;
  }
  MutableTensorView view{dtype, shape, chunks_[chunk_].memory + used_};
  used_ += bytes;
  int64_t in_use = used_;
  for (size_t i = 0; i < chunk_; ++i) in_use += chunks_[i].bytes;
  most_used_ = std::max(most_used_, in_use);
  return view;
}

ByteCount Workspace::bytes_allocated() const {
  ByteCount sum;
  for (const Chunk& chunk : chunks_) sum += ByteCount(chunk.bytes);
  return sum;
}

}  // namespace weft
