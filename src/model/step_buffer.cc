#include "model/step_buffer.h"

namespace weft {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kMinBytes = 1LL << 16;

}  // namespace

void StepBuffer::begin(int64_t bytes, int64_t tables) {
  const int64_t wanted = bytes + tables * kAlignment;
  if (wanted > capacity_) {
    capacity_ = std::max({wanted, 2 * capacity_, kMinBytes});
    memory_ = device_.take(ByteCount(capacity_));
    here_.resize(static_cast<size_t>(capacity_));
  }
  used_ = 0;
}

int64_t StepBuffer::advance(int64_t bytes) {
  const int64_t at = used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ > capacity_) fail(ErrorKind::internal, "step", "wanted tables of at most {} bytes, found {}", capacity_, used_);
  return at;
}

void StepBuffer::send() { device_.upload(memory_, here_.data(), used_); }

}  // namespace weft
