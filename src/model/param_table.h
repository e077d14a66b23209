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

struct ParamSpec {
  std::string name;           // canonical: no "language_model." prefix; routed experts hold "{}" in place of the expert's index
  std::string role;           // e.g. "kda.q_proj", "moe.expert.w1": what binding asks for
  Shape shape;                // logical [out, in] or [n]
  DType dtype = DType::bf16;  // of the published checkpoint
  Storage storage = Storage::plain;
  Split split = Split::replicated;
  Owner owner = Owner::layer;
  LayerIndex layer;    // where owner == layer
  int64_t copies = 1;  // experts: E tensors of this shape
};

[[nodiscard]] std::vector<ParamSpec> kimi_param_table(const KimiConfig& config);

}  // namespace weft
