// The parameter table: the one place that names a family's tensors. inspect, check, plan, partial load, rank slices, synth,
// import and export all read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
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

// Roles. Kimi, one per row of K3 spec 2.2, 2.3 and 7:
//   embed  final_norm  output_res.norm  output_res.proj  lm_head
//   input_norm  post_norm  attn_res.norm  attn_res.proj  mlp_res.norm  mlp_res.proj
//   kda.{q,k,v,o,b,f_a,f_b}_proj  kda.g_proj | kda.g_a_proj kda.g_b_proj  kda.{q,k,v}_conv  kda.a_log  kda.dt_bias  kda.o_norm
//   mla.q_a_proj mla.q_a_norm mla.q_b_proj | mla.q_proj  mla.kv_a_proj  mla.kv_a_norm  mla.kv_b_proj  mla.g_proj  mla.o_proj
//   mlp.{gate,up,down}_proj  moe.gate  moe.bias  moe.latent_{down,norm,up}  moe.shared.{gate,up,down}_proj
//   moe.expert.{w1,w2,w3}
// Qwen (Qwen3-Next spec 2.1 and 11.2), with embed, final_norm, lm_head, input_norm, post_norm, mlp.* and moe.expert.* as above:
//   gdn.in_proj_qkvz gdn.in_proj_ba | gdn.in_proj_{qkv,z,b,a}  gdn.conv  gdn.a_log  gdn.dt_bias  gdn.norm  gdn.out_proj
//   gqa.{q,k,v,o}_proj  gqa.{q,k}_norm  moe.gate  moe.shared.{gate,up,down}_proj  moe.shared_gate
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

// A table holds every text tensor: first-owned, then layer by layer, then last-owned. With tied embeddings there is no lm_head
// row (the last stage reads the embedding). A tensor of the table that a checkpoint lacks is an error, and so is one it has
// beside the table.

// A tensor in which a conversion keeps several rows of the table.
struct JoinedTensor {
  std::string name;               // canonical
  bool planes = false;            // the leading axis is the expert
  std::vector<std::string> rows;  // of the table, one below the other in each plane
};

// "...experts.{}.w1.weight" with the expert's index in place of "{}".
[[nodiscard]] std::string expert_name(const ParamSpec& spec, int64_t expert);

// What the families' tables are written with: at() says where the rows that follow belong.
class ParamTableBuilder {
 protected:
  void at(Owner owner, std::string prefix, LayerIndex layer) {
    owner_ = owner;
    prefix_ = std::move(prefix);
    layer_ = layer;
  }
  ParamSpec& add(std::string_view name, std::string_view role, const Shape& shape, DType dtype, Storage storage, Split split);
  void plain(std::string_view name, std::string_view role, const Shape& shape, Split split = Split::replicated) {
    add(name, role, shape, DType::bf16, Storage::plain, split);
  }
  // F32 in the published files, BF16 in files of the transformers library (K3 spec 7).
  void wide(std::string_view name, std::string_view role, const Shape& shape, Split split = Split::replicated) {
    add(name, role, shape, DType::f32, Storage::plain, split);
  }
  void linear(std::string_view name, std::string_view role, const Shape& shape, Split split = Split::replicated) {
    add(name, role, shape, DType::bf16, Storage::packed, split).matrix = true;
  }
  void plain_matrix(std::string_view name, std::string_view role, const Shape& shape, Split split = Split::replicated) {
    add(name, role, shape, DType::bf16, Storage::plain, split).matrix = true;
  }
  void experts(std::string_view name, std::string_view role, int64_t count, const Shape& shape, Split split);
  [[nodiscard]] std::vector<ParamSpec> take() { return std::move(table_); }

 private:
  std::vector<ParamSpec> table_;
  Owner owner_ = Owner::first;
  std::string prefix_;
  LayerIndex layer_;
};

}  // namespace weft
