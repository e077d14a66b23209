#include <string>

#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {
namespace {

void check_experts(TensorView ids, std::span<const ExpertView> experts, int64_t size) {
  const int64_t chosen = ids.shape[1];
  const std::span<const int32_t> all = ids.as<int32_t>();
  int64_t middle = -1;  // M, of the first expert named
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / chosen;
    const int32_t id = all[i];
    if (id < 0 || static_cast<size_t>(id) >= experts.size()) {
      fail(ErrorKind::internal, "moe", "row {}: wanted an expert in [0, {}), found {}", row, experts.size(), id);
    }
    if (static_cast<int64_t>(i) % chosen != 0 && id <= all[i - 1]) {
      fail(ErrorKind::internal, "moe", "row {}: wanted ascending experts, found {} after {}", row, id, all[i - 1]);
    }
    const ExpertView& expert = experts[static_cast<size_t>(id)];
    if (middle < 0) middle = expert.w1.out;
    const auto check = [&](const char* part, const WeightView& weight, int64_t out, int64_t in) {
      if (weight.out == out && weight.in == in && weight.data != nullptr) return;  // names are built for messages only
      check_weight("moe", "expert " + std::to_string(id) + " " + part, weight, out, in);
    };
    check("w1", expert.w1, middle, size);
    check("w3", expert.w3, middle, size);
    check("w2", expert.w2, size, middle);
    for (const WeightView* weight : {&expert.w1, &expert.w2, &expert.w3}) {
      check_weight("moe", "expert", *weight, weight->out, weight->in);
    }
  }
}

}  // namespace

void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         const ExpertTable& experts, MutableTensorView out) {
  check_context(context, "moe");
  const int64_t rows = extent_of("moe", "z", z, 2, 0);
  const int64_t size = extent_of("moe", "z", z, 2, 1);
  const int64_t chosen = extent_of("moe", "ids", ids, 2, 1);
  check_tensor("moe", "z", z, {rows, size});
  check_tensor("moe", "ids", ids, {rows, chosen}, DType::i32);
  check_tensor("moe", "weights", weights, {rows, chosen});
  check_tensor("moe", "out", out, {rows, size});
  if (context.on_gpu()) return cuda::moe(context, activation, z, ids, weights, experts, out);
  check_experts(ids, experts.views, size);
  const auto run = context.reference() ? reference::moe : cpu::moe;
  run(context, activation, z, ids, weights, experts.views, out);
}

}  // namespace weft::ops
