// The fast operators of the CPU. An operator that is not here runs its reference on both back ends.
#pragma once

#include "ops/ops.h"

namespace weft::ops::cpu {

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32);
void kda_recurrence(Context& context, TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta_logits,
                    std::span<const StateSegment> segments, MutableTensorView o);
void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql);
void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat);
void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o);
void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         std::span<const ExpertView> experts, MutableTensorView out);

}  // namespace weft::ops::cpu
