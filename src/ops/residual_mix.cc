#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities) {
  check_context(context, "residual_mix");
  if (sources.empty()) fail(ErrorKind::internal, "residual_mix", "wanted at least one source, found none");
  const int64_t rows = extent_of("residual_mix", "source", sources[0], 2, 0);
  const int64_t size = extent_of("residual_mix", "source", sources[0], 2, 1);
  for (const TensorView& source : sources) check_tensor("residual_mix", "source", source, {rows, size});
  check_tensor("residual_mix", "w", w, {size});
  check_tensor("residual_mix", "out", out, {rows, size});
  const size_t wanted = static_cast<size_t>(rows) * sources.size();
  if (!probabilities.empty() && probabilities.size() != wanted) {
    fail(ErrorKind::internal, "residual_mix", "probabilities: wanted {} values, found {}", wanted, probabilities.size());
  }
  const auto run = context.on_gpu() ? cuda::residual_mix : context.reference() ? reference::residual_mix : cpu::residual_mix;
  run(context, sources, w, eps, out, probabilities);
}

}  // namespace weft::ops
