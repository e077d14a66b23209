// The parameter table: the one place that names a family's tensors. inspect, check, plan, partial load, rank slices, synth,
// import and export all read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/kimi_config.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace weft {

// Who holds a tensor when layers are split into stages.
enum class Owner : uint8_t { first, layer, last };

// How a tensor is split over tensor-parallel ranks (K3 spec 6).
enum class Split : uint8_t { replicated, rows, cols, heads };

// How a tensor is stored.
enum class Storage : uint8_t {
  plain,   // one tensor of `dtype` (or another float dtype that widens to float32 exactly)
  packed,  // the pair NAME_packed / NAME_scale if both are present, else one plain tensor (K3 spec 2.4)
  prefix,  // one float tensor whose length may be padded with zeros (A_log, K3 spec 2.5)
};

// Roles, one per row of K3 spec 2.2, 2.3 and 7:
//   embed  final_norm  output_res.norm  output_res.proj  lm_head
//   input_norm  post_norm  attn_res.norm  attn_res.proj  mlp_res.norm  mlp_res.proj
//   kda.{q,k,v,o,b,f_a,f_b}_proj  kda.g_proj | kda.g_a_proj kda.g_b_proj  kda.{q,k,v}_conv  kda.a_log  kda.dt_bias  kda.o_norm
//   mla.q_a_proj mla.q_a_norm mla.q_b_proj | mla.q_proj  mla.kv_a_proj  mla.kv_a_norm  mla.kv_b_proj  mla.g_proj  mla.o_proj
//   mlp.{gate,up,down}_proj  moe.gate  moe.bias  moe.latent_{down,norm,up}  moe.shared.{gate,up,down}_proj
//   moe.expert.{w1,w2,w3}
struct ParamSpec {
  std::string name;           // canonical: no "language_model." prefix; routed experts hold "{}" in place of the expert's index
  std::string role;           // as listed above
  Shape shape;                // logical [out, in] or [n]
  DType dtype = DType::bf16;  // of the published checkpoint when stored plain
  Storage storage = Storage::plain;
  Split split = Split::replicated;
  Owner owner = Owner::layer;
  LayerIndex layer;     // where owner == layer
  int64_t copies = 1;   // experts: E tensors of this shape
  bool matrix = false;  // bound as a WeightView; else read as a float32 vector
};

// Every text tensor: first-owned, then layer by layer, then last-owned. With tied embeddings there is no lm_head row (the last
// stage reads the embedding). A tensor of the table that a checkpoint lacks is an error, and so is one it has beside the table.
[[nodiscard]] std::vector<ParamSpec> kimi_param_table(const KimiConfig& config);

// "...experts.{}.w1.weight" with the expert's index in place of "{}".
[[nodiscard]] std::string expert_name(const ParamSpec& spec, int64_t expert);

}  // namespace weft
