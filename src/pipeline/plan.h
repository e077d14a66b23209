// Where the layers of a model go: stages, their bytes, what crosses between them, and whether it all fits (distributed.md 3).
//
//     PlanOptions options;
//     options.stages = 3;
//     options.node_memory = {parse_memory("512GiB")};
//     const Plan plan = make_plan(plan_model(checkpoint), options);  // throws plan_impossible naming each stage's shortfall
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "ops/context.h"

namespace weft {

// Sizes of a model, layer by layer. All in bytes.
struct PlanModel {
  struct Layer {
    std::string kind;           // "KDA dense", "MLA MoE", ...
    int64_t weights = 0;        // exact, as mapped
    int64_t experts = 0;        // of those, routed experts
    int64_t expert = 0;         // of those, one expert
    int64_t read = 0;           // of the weights, what one decoded token reads (MoE: experts_per_token of the experts)
    int64_t state_f32 = 0;      // per sequence, kept float32 in both profiles (KDA state)
    int64_t state_values = 0;   // per sequence, elements: convolution rows
    int64_t token_values = 0;   // per token, elements likewise: latents, keys and values
    int64_t width = 0;          // widest activation row, elements
    int64_t planes_before = 1;  // of the boundary on this layer's left: K + 1
    int64_t gpu_weights = 0;    // in the memory of a GPU (model/gpu_memory.h)
    std::vector<int64_t> shards;
  };
  std::vector<Layer> layers;
  int64_t experts_per_token = 0;
  int64_t tensors = 0;
  int64_t hidden_size = 0;
  int64_t embedding = 0;       // on the first stage; tied: also on the last
  int64_t embedding_read = 0;  // one row
  int64_t head = 0;            // final norm, output mix and head, on the last stage
  int64_t head_vectors = 0;    // of those, final norm and output mix
  int64_t gpu_embedding = 0;   // as gpu_weights
  int64_t gpu_head = 0;
  std::function<int64_t(LayerRange layers, int64_t rows)> gpu_workspace;  // bytes
  bool tied = false;
  bool estimated = false;  // from the configuration alone, not from headers
  std::vector<int64_t> first_shards;
  std::vector<int64_t> last_shards;
  std::vector<std::string> shard_names;

  [[nodiscard]] int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
};

[[nodiscard]] PlanModel plan_model(const Checkpoint& checkpoint);
// Before a download: published storage (experts MXFP4 where quantization_config is stated). Marked `estimated`.
[[nodiscard]] PlanModel plan_model(const std::shared_ptr<const ModelConfig>& config);

// What the best split minimises (distributed.md 3.4).
enum class PlanBalance : uint8_t {
  memory,   // the largest used/budget
  compute,  // the largest time of a stage: bytes that one token reads / bandwidth
  latency,  // the sum of those times and of the hops between stages
};
[[nodiscard]] std::string_view to_string(PlanBalance balance);
[[nodiscard]] PlanBalance parse_balance(std::string_view text);  // bad_input else

// Between neighbouring stages. What crosses grows with the planes of Kimi K3's boundary.
struct PlanLink {
  double latency = 100e-6;  // seconds
  double bandwidth = 1e9;   // bytes/s

  friend bool operator==(const PlanLink&, const PlanLink&) = default;
};

struct PlanOptions {
  std::optional<int64_t> stages;        // --pp-size
  std::string layers;                   // --pp-layers: "0-3,4-7" (inclusive) or "4+4" (counts); empty: the best split
  std::vector<int64_t> node_memory;     // bytes, one for all stages or one each; empty: no limit
  std::optional<int64_t> memory;        // bytes of one process that runs all stages; not beside node_memory
  double reserve_fraction = 0.08;       // of the memory kept free, 0 <= x < 0.5
  int64_t sequences = 4;                // that the plan leaves room for
  TokenCount tokens{32768};             // of each of those
  int64_t prefill_chunk = 512;          // rows of the largest micro-batch
  std::optional<ops::Profile> profile;  // absent: exact below 1 GiB of weights, else bf16
  std::optional<double> bandwidth;      // bytes/s of each node's memory
  std::vector<double> node_bandwidth;   // the same of each stage's node, 0: as `bandwidth`; empty: all as that
  PlanBalance balance = PlanBalance::memory;
  std::optional<PlanLink> link;       // absent: stages of one host, between which a hop takes no time
  std::vector<std::string> nodes;     // what runs each stage, for the report; empty: not known
  std::vector<std::string> warnings;  // what these options assume; the plan repeats them
  bool gpu = false;                   // weights and workspace as a GPU holds them
};

struct PlanStage {
  LayerRange layers;
  std::string node;                                    // of PlanOptions::nodes
  std::vector<std::pair<std::string, int64_t>> kinds;  // layers of each kind, in order of appearance
  std::vector<std::string> shards;                     // files that the stage opens
  int64_t weights = 0;                                 // bytes, as mapped
  int64_t experts = 0;                                 // of those, routed experts
  int64_t experts_kept = 0;                            // of those, what stays in memory; less than all: the rest is read again
  int64_t vectors = 0;                      // of the weights, final norm and output mix (ruling R2 counts without them)
  int64_t state_fixed = 0;                  // bytes per sequence
  int64_t state_per_token = 0;              // bytes per token and sequence
  int64_t state = 0;                        // bytes reserved for all sequences
  int64_t workspace = 0;                    // bytes: activations, receive and send buffers
  int64_t read_per_token = 0;               // weight bytes that one decoded token reads
  int64_t boundary_planes = 0;              // of the right boundary; 0 for the last stage
  int64_t boundary_width = 0;               // elements per token
  int64_t boundary_bytes = 0;               // per token
  std::optional<int64_t> budget;            // bytes of the node after the reserve
  std::optional<double> seconds_per_token;  // read_per_token / bandwidth
  std::optional<double> hop_seconds;        // of one token over the right boundary, with PlanOptions::link

  // "525,231,052,288 of weights: 525,231,009,280 of layers and head, 43,008 of final norm and output mix"
  [[nodiscard]] std::string weights_text() const;
  [[nodiscard]] int64_t used() const { return weights - experts + experts_kept + state + workspace; }
  [[nodiscard]] int64_t shortfall() const { return budget && used() > *budget ? used() - *budget : 0; }
};

struct Plan {
  std::vector<PlanStage> stages;
  int64_t layer_count = 0;
  int64_t weights = 0;
  int64_t read_per_token = 0;
  std::optional<int64_t> process;  // with PlanOptions::memory: bytes of the program and its tables, beside the stages
  std::optional<int64_t> budget;   // with PlanOptions::memory: that without the reserve
  double imbalance = 1.0;          // largest used() / smallest
  PlanBalance balance = PlanBalance::memory;
  ops::Profile profile = ops::Profile::exact;
  bool estimated = false;
  std::optional<double> tokens_per_second;  // one sequence: 1 / sum of the stages' seconds and of the hops
  // Share of the stages' time that is idle: while one sequence is decoded, and with enough sequences that the slowest stage
  // never waits. From seconds, or from bytes where a bandwidth is not known.
  double bubble_alone = 0.0;
  double bubble_full = 0.0;
  std::vector<std::string> warnings;

  // What the stages and the process need together.
  [[nodiscard]] int64_t used() const;
  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// With `memory` and a model that is larger, everything but routed experts gets its place, and these what is left: at least
// those that one step of prefill_chunk rows can name in a layer, else P09. The rest of them is read from the files when it is
// named.
//
// The split into S stages that minimises what `balance` says among those that fit; among equals the smallest sum of boundary
// bytes, then the earliest boundaries. Exact (dynamic programming over all splits), and a function of the input only.
// Errors carry the codes of distributed.md 3.5: P01 to P07 are bad_input; P09 (a stage does not fit: need, have, shortfall of
// every stage, and the smallest number of equal nodes that would do), P10 and P11 are plan_impossible.
[[nodiscard]] Plan make_plan(const PlanModel& model, const PlanOptions& options);

// "0-3,4-7" or "4+4" -> ranges that cover [0, layer_count). Throws bad_input with P01 to P07; `stages`, if given, must be the
// number of ranges. Without `layer_count`, the model not being known yet, P04 and P06 are left out.
[[nodiscard]] std::vector<LayerRange> parse_layer_ranges(std::string_view spec, std::optional<int64_t> layer_count,
                                                         std::optional<int64_t> stages = std::nullopt);

// "512GiB", "512 GB", "512G" (all 2^30: memory is sold in binary units, ruling R2), "1.5TiB", "549755813888". bad_input
// else, which says that `name` is wrong.
[[nodiscard]] int64_t parse_memory(std::string_view text, std::string_view name = "memory");
// A comma-separated list of those.
[[nodiscard]] std::vector<int64_t> parse_memory_list(std::string_view text, std::string_view name = "memory");

}  // namespace weft
