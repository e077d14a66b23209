// The CUDA operators: float32 storage and sums in both profiles, values rounded where the profile says so. Operands were
// checked by the entries as far as the host can see them; ids and tables in device memory are the caller's promise. Nothing
// waits for the device. A NaN among router logits gives NaN outputs.
#pragma once

#include "ops/first_not_finite.h"
#include "ops/ops.h"
#include "ops/sample.h"

namespace weft::ops::cuda {

void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out);
void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32);
void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y, NormRounding rounding);
void gather_rows(Context& context, TensorView x, std::span<const int64_t> rows, MutableTensorView out);
void add(Context& context, TensorView a, TensorView b, MutableTensorView out);
void split_groups(Context& context, TensorView x, std::span<const int64_t> widths, std::span<const MutableTensorView> parts);
void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y);
void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y);
void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities);
void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y);
void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g);
void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o);
void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind);
void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y);
void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql);
void mla_append(Context& context, const MlaShape& shape, TensorView c, TensorView k_r, std::span<const PagedSegment> segments);
void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat);
void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o);
void gqa_append(Context& context, const GqaShape& shape, TensorView k, TensorView v, std::span<const PagedSegment> segments);
void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out);
void route(Context& context, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins);
void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         const ExpertTable& experts, MutableTensorView out);
void first_not_finite(Context& context, TensorView x, int64_t place, std::span<uint64_t> first);
void sample(Context& context, TensorView logits, std::span<const SampleRow> rows, std::span<Sampled> out);

}  // namespace weft::ops::cuda
