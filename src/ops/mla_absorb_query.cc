#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/mla_weights.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql) {
  check_context(context, "mla_absorb_query");
  check_mla_shape("mla_absorb_query", shape);
  const int64_t rows = extent_of("mla_absorb_query", "q", q, 2, 0);
  check_tensor("mla_absorb_query", "q", q, {rows, shape.heads * (shape.nope + shape.rope)});
  if (alone_keys(shape, kv_b)) {
    check_weight("mla_absorb_query", "kv_b", kv_b, shape.heads * shape.latent, shape.nope);
  } else {
    check_weight("mla_absorb_query", "kv_b", kv_b, shape.heads * (shape.nope + shape.value), shape.latent);
  }
  check_tensor("mla_absorb_query", "ql", ql, {rows, shape.heads * shape.latent});
  const auto run = context.on_gpu()      ? cuda::mla_absorb_query
                   : context.reference() ? reference::mla_absorb_query
                                         : cpu::mla_absorb_query;
  run(context, shape, q, kv_b, ql);
}

}  // namespace weft::ops
