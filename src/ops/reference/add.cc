#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void add(Context& context, TensorView a, TensorView b, MutableTensorView out) {
  const float* as = a.as<float>().data();
  const float* bs = b.as<float>().data();
  float* to = out.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t count = a.elements();
  context.pool->parallel_for(count, task_grain(context, count, 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = round_if(rounds, as[i] + bs[i]);
  });
}

}  // namespace weft::ops::reference
