// Stands in for the CUDA operators in a build without CUDA. No device to call them with can be opened there.
#include "ops/cuda/cuda.h"

namespace weft::ops::cuda {
namespace {

[[noreturn]] void missing() { fail(ErrorKind::internal, "cuda", "wanted a build with CUDA, found a call without"); }

}  // namespace

void embed(Context&, std::span<const int32_t>, const WeightView&, MutableTensorView) { missing(); }
void linear(Context&, TensorView, const WeightView&, MutableTensorView, bool) { missing(); }
void rms_norm(Context&, TensorView, TensorView, float, MutableTensorView, NormRounding) { missing(); }
void gather_rows(Context&, TensorView, std::span<const int64_t>, MutableTensorView) { missing(); }
void add(Context&, TensorView, TensorView, MutableTensorView) { missing(); }
void split_groups(Context&, TensorView, std::span<const int64_t>, std::span<const MutableTensorView>) { missing(); }
void sigmoid_gate(Context&, TensorView, TensorView, MutableTensorView) { missing(); }
void gated_activation(Context&, const Activation&, TensorView, TensorView, MutableTensorView) { missing(); }
void residual_mix(Context&, std::span<const TensorView>, TensorView, float, MutableTensorView, std::span<float>) { missing(); }
void short_conv(Context&, TensorView, TensorView, std::span<const StateSegment>, MutableTensorView) { missing(); }
void kda_gate(Context&, TensorView, TensorView, TensorView, std::optional<float>, MutableTensorView) { missing(); }
void delta_rule(Context&, const DeltaShape&, TensorView, TensorView, TensorView, TensorView, TensorView,
                std::span<const StateSegment>, MutableTensorView) {
  missing();
}
void gated_rms_norm(Context&, TensorView, TensorView, float, TensorView, MutableTensorView, NormGate) { missing(); }
void rotate(Context&, const HeadShape&, int64_t, TensorView, TensorView, MutableTensorView) { missing(); }
void mla_absorb_query(Context&, const MlaShape&, TensorView, const WeightView&, MutableTensorView) { missing(); }
void mla_append(Context&, const MlaShape&, TensorView, TensorView, std::span<const PagedSegment>) { missing(); }
void mla_attention(Context&, const MlaShape&, TensorView, TensorView, std::span<const PagedSegment>, MutableTensorView) {
  missing();
}
void mla_project_value(Context&, const MlaShape&, TensorView, const WeightView&, MutableTensorView) { missing(); }
void gqa_append(Context&, const GqaShape&, TensorView, TensorView, std::span<const PagedSegment>) { missing(); }
void gqa_attention(Context&, const GqaShape&, TensorView, std::span<const PagedSegment>, MutableTensorView) { missing(); }
void route(Context&, const RouterRule&, TensorView, TensorView, MutableTensorView, MutableTensorView, std::span<float>) {
  missing();
}
void moe(Context&, const Activation&, TensorView, TensorView, TensorView, const ExpertTable&, MutableTensorView) { missing(); }
void first_not_finite(Context&, TensorView, int64_t, std::span<uint64_t>) { missing(); }
void sample(Context&, TensorView, std::span<const SampleRow>, std::span<Sampled>) { missing(); }

}  // namespace weft::ops::cuda
