#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/mla_weights.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o) {
  check_context(context, "mla_project_value");
  check_mla_shape("mla_project_value", shape);
  const int64_t rows = extent_of("mla_project_value", "lat", lat, 2, 0);
  check_tensor("mla_project_value", "lat", lat, {rows, shape.heads * shape.latent});
  const int64_t head_rows = (alone_values(shape, kv_b) ? 0 : shape.nope) + shape.value;
  check_weight("mla_project_value", "kv_b", kv_b, shape.heads * head_rows, shape.latent);
  check_tensor("mla_project_value", "o", o, {rows, shape.heads * shape.value});
  const auto run = context.on_gpu()      ? cuda::mla_project_value
                   : context.reference() ? reference::mla_project_value
                                         : cpu::mla_project_value;
  run(context, shape, lat, kv_b, o);
}

}  // namespace weft::ops
