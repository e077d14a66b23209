#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y) {
  check_context(context, "short_conv");
  const int64_t rows = extent_of("short_conv", "x", x, 2, 0);
  const int64_t channels = extent_of("short_conv", "taps", taps, 2, 0);
  const int64_t kernel = extent_of("short_conv", "taps", taps, 2, 1);
  if (kernel < 1) fail(ErrorKind::internal, "short_conv", "taps: wanted at least one tap, found {}", taps.shape);
  check_tensor("short_conv", "x", x, {rows, channels});
  check_tensor("short_conv", "taps", taps, {channels, kernel});
  check_tensor("short_conv", "y", y, {rows, channels});
  if (!context.on_gpu()) check_segments("short_conv", segments, rows);
  const auto run = context.on_gpu() ? cuda::short_conv : context.reference() ? reference::short_conv : cpu::short_conv;
  run(context, x, taps, segments, y);
}

}  // namespace weft::ops
