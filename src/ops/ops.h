// The operators. Model code calls nothing else.
//
// Contract of all of them:
// - Operands are float32 tensors unless said otherwise; outputs are owned by the caller and do not overlap inputs. Tensors and
//   weights lie where the context computes: in host memory or, with Backend::cuda, in the memory of its device (weights aligned
//   to 16 bytes), where ids, rows, segments and block tables may lie too (docs/cuda.md).
// - A row's result depends on that row (and its sequence's state) only: never on the other rows of the call, the number of
//   threads or how rows were split into calls. This carries the bit promise (ARCHITECTURE.md, "Numbers").
// - On a GPU nothing waits: an operator is work in the device's queue.
// - With Profile::bf16 outputs are rounded at the points named in brackets (ids of K3 spec 3.0).
// - Shapes are checked; a mismatch is an internal error naming the operator.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops/context.h"
#include "ops/weight.h"
#include "tensor/tensor.h"

namespace weft::ops {

// out[t] = table[ids[t]].  ids in [0, V); table [V, D]; out [T, D]. [Rounded: it starts the residual stream, which is bf16 (K3
// spec 3.0); a table of BF16 is so already]
void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out);

// y = x W^T.  x [T, in]; W [out, in] in any format; y [T, out]. Sums in float32. [R1, unless `keep_f32`: R10 router, R12 head]
void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32 = false);

// y = weight * x / sqrt(mean(x^2) + eps).  x, y [T, D]; weight [D]. [R2: the normalised value, then the product; `once`, for
// Qwen3-Next (spec 3.1; the caller adds 1 to a zero-centred weight in float32): the product only]
enum class NormRounding : uint8_t { twice, once };
void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y,
              NormRounding rounding = NormRounding::twice);

// out[i] = x[rows[i]].  x [T, D]; rows in [0, T); out [R, D].
void gather_rows(Context& context, TensorView x, std::span<const int64_t> rows, MutableTensorView out);

// out = a + b; out may be a. [R4]
void add(Context& context, TensorView a, TensorView b, MutableTensorView out);

// Takes interleaved projections apart (Qwen3-Next spec 2.2).  x [T, G*(sum of widths)]: a row is G groups, a group one slab of
// each width in order; parts[i] [T, G*widths[i]] receives slab i of every group. One to four parts.
inline constexpr size_t kMaxSplitParts = 4;
void split_groups(Context& context, TensorView x, std::span<const int64_t> widths, std::span<const MutableTensorView> parts);

// y = x * sigmoid(gate).  x, y [T, D]; gate [T, D], or [T, 1]: one factor for a row. [R8: the sigmoid rounded, then the
// product]
void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y);

// SiTU (K3 spec 3.6) or SwiGLU, elementwise on [T, F]. [R9]
struct Activation {
  enum class Kind : uint8_t { situ, silu } kind = Kind::situ;
  float beta = 1.0F;                 // situ: bound of the gate branch
  std::optional<float> linear_beta;  // situ: bound of the up branch; absent: up is used unchanged
};
void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y);

// Attention-Residual mix (K3 spec 3.2): softmax over sources of <source / rms(source), w>, then the weighted sum of the raw
// sources.  sources: K+1 tensors [T, D]; w [D] = norm.weight * proj.weight; out [T, D]. One source: a copy. [R3]
// `probabilities`, if not empty, receives [T, K+1].
void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities = {});

// Rows [first_row, first_row + row_count) continue one sequence: the recurrent state is read from `in` (null: zeros) and
// written to `out` (may equal `in`). A segment may read what the one before it wrote.
struct StateSegment {
  int64_t first_row = 0;
  int64_t row_count = 0;
  const float* in = nullptr;
  float* out = nullptr;
};

// Depthwise causal convolution of Kc taps, then SiLU (K3 spec 3.4).  x, y [T, P]; taps [P, Kc], tap Kc-1 is the current token.
// State: the last Kc-1 rows of x, oldest first, [Kc-1, P]. [R5]
void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y);

// Log-decay g of KDA (K3 spec 3.4).  z [T, H*d]; a_log [H]; dt_bias [H*d]; g [T, H*d]. lower_bound given: lb * sigmoid(e^A
// (z+dt)); absent: -e^A softplus(z+dt). Float32 in both profiles [R6].
void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g);

// Sizes of one layer of linear attention: KDA (as many value heads as key heads, a decay for each channel of a key) or gated
// DeltaNet (a decay for each value head).
struct DeltaShape {
  int64_t key_heads = 0;    // Hk
  int64_t value_heads = 0;  // Hv, a multiple of Hk: value head h uses key head h / (Hv/Hk) for q and k
  int64_t key_size = 0;     // dk
  int64_t value_size = 0;   // dv
  bool decay_per_channel = true;
};

// The gated delta rule, token-recurrent form (K3 spec 3.4, Qwen3-Next spec 3.3).  q, k [T, Hk*dk]; v, o [T, Hv*dv]; g, the
// log-decay, [T, Hv*dk] per channel or [T, Hv]; beta_logits [T, Hv] (sigmoid inside). q and k are normalised inside (epsilon
// 1e-6 on the sum of squares, q scaled by dk^-1/2). State [Hv, dk, dv]. [R6: o rounded]
void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o);

// y = o / sqrt(mean(o^2) + eps) * weight * f(gate), per head; f: the sigmoid (K3) or SiLU (Qwen3-Next spec 3.1).  o, gate, y
// [T, H*d]; weight [d]. [R7]
enum class NormGate : uint8_t { sigmoid, silu };
void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind = NormGate::sigmoid);

// Rotary positions on the first `rotary` channels of each head (Qwen3-Next spec 3.5): channel i < rotary/2 and its partner
// i + rotary/2 turn by the row's angle i; other channels are copied.  x, y [T, H*size], y may be x; table [T, rotary]: cosines
// of the rotary/2 angles, then sines (ops/rotary_table.h). [once]
struct HeadShape {
  int64_t heads = 0;
  int64_t size = 0;
};
void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y);

// Sizes of one MLA layer (K3 spec 3.5).
struct MlaShape {
  int64_t heads = 0;
  int64_t nope = 0;    // dn
  int64_t rope = 0;    // dr
  int64_t value = 0;   // dv
  int64_t latent = 0;  // rc
};

// Query side of the absorbed form: ql[t, h] = WK[h]^T q[t, h, :dn].  q [T, H*(dn+dr)]; kv_b [H*(dn+dv), rc], in each head WK
// then WV, or WK^T of all heads alone, [H*rc, dn]; ql [T, H*rc]. Kept float32 in both profiles.
void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql);

// What attention keeps of one sequence, in pages of kPageTokens positions, a row for each: MLA [rc + dr] values (latent, then
// k_r), grouped-query attention [2*Hkv*size] (k, then v).
inline constexpr int64_t kPageTokens = 64;
struct PagedSegment {
  int64_t first_row = 0;
  int64_t row_count = 0;
  int64_t start = 0;              // position of the first row in its sequence
  std::span<float* const> pages;  // page i holds positions [64 i, 64 i + 64); covers start + row_count positions
};

// Writes c [T, rc] and k_r [T, dr] of each row to its position's page row.
void mla_append(Context& context, const MlaShape& shape, TensorView c, TensorView k_r, std::span<const PagedSegment> segments);

// Absorbed causal attention over the pages: scores (dn+dr)^-1/2 (<ql, c_s> + <q_r, k_r,s>), softmax in fixed blocks of 256
// positions merged in order, lat = sum_s a_s c_s.  q [T, H*(dn+dr)]; ql, lat [T, H*rc].
void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat);

// Value side: o[t, h] = WV[h] lat[t, h].  kv_b [H*(dn+dv), rc] or WV of all heads alone, [H*dv, rc]; o [T, H*dv]. [R8: rounded]
void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o);

// Sizes of one layer of grouped-query attention: query head h uses key/value head h / (H/Hkv).
struct GqaShape {
  int64_t heads = 0;     // H, a multiple of Hkv
  int64_t kv_heads = 0;  // Hkv
  int64_t size = 0;
};

// Writes k, v [T, Hkv*size] of each row to its position's page row.
void gqa_append(Context& context, const GqaShape& shape, TensorView k, TensorView v, std::span<const PagedSegment> segments);

// Causal attention over the pages (Qwen3-Next spec 3.4): scores size^-1/2 <q, k_s>, softmax in fixed blocks of 256 positions
// merged in order, out = sum_s a_s v_s.  q, out [T, H*size]. [out rounded]
void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out);

// Routers. sigmoid (K3 spec 3.7): selection by sigmoid(logit) + bias, weights from the unbiased scores, renormalised if k > 1.
// softmax (Qwen3-Next spec 3.6): selection by logit, weights from the softmax over all experts. Ties: the smaller index.
struct RouterRule {
  int64_t experts_per_token = 0;
  bool renormalize = true;
  float scale = 1.0F;
  enum class Score : uint8_t { sigmoid, softmax } score = Score::sigmoid;
};
// logits [T, E]; bias [E], for softmax none (TensorView()); ids [T, k] i32, ascending per row; weights [T, k]. Float32 in both
// profiles [R10]. `margins`, if not empty, receives [T]: the selection score (softmax: the logit) of the last chosen minus that
// of the best not chosen (infinity if k = E).
void route(Context& context, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins = {});

// out[t] = sum over the row's experts, ascending, of weight * w2 act(w1 z, w3 z).  z, out [T, Z]; ids, weights [T, k].
// On the host only entries named in ids are read; on a GPU all are of one shape and format. [R1 for w1, w3, w2; R9; R11]
void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         const ExpertTable& experts, MutableTensorView out);

}  // namespace weft::ops
