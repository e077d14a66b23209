#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void route(Context& context, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins) {
  check_context(context, "route");
  const int64_t rows = extent_of("route", "logits", logits, 2, 0);
  const int64_t experts = extent_of("route", "logits", logits, 2, 1);
  const int64_t chosen = rule.experts_per_token;
  if (chosen < 1 || chosen > experts) {
    fail(ErrorKind::internal, "route", "wanted experts per token in [1, {}], found {}", experts, chosen);
  }
  check_tensor("route", "logits", logits, {rows, experts});
  if (rule.score == RouterRule::Score::sigmoid) {
    check_tensor("route", "bias", bias, {experts});
  } else if (bias.data != nullptr) {
    fail(ErrorKind::internal, "route", "bias: wanted none beside a softmax, found {}", bias.shape);
  }
  check_tensor("route", "ids", ids, {rows, chosen}, DType::i32);
  check_tensor("route", "weights", weights, {rows, chosen});
  if (!margins.empty() && margins.size() != static_cast<size_t>(rows)) {
    fail(ErrorKind::internal, "route", "margins: wanted {} values, found {}", rows, margins.size());
  }
  const auto run = context.on_gpu() ? cuda::route : context.reference() ? reference::route : cpu::route;
  run(context, rule, logits, bias, ids, weights, margins);
}

}  // namespace weft::ops
