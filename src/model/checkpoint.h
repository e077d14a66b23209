// A published checkpoint opened for binding: its configuration, what its headers say, and views into its mapped shards.
//
//     const Checkpoint checkpoint(dir);
//     checkpoint.require(range);  // every tensor of the stage is there, with the right type and shape
//     ops::WeightView q = checkpoint.weight("model.layers.0.self_attn.q_proj.weight");
//     Tensor norm = checkpoint.vector_f32("model.layers.0.input_layernorm.weight");
//
// Names are canonical, those of the parameter table (ModelConfig::canonical_name).
// Opening reads the configuration, the index and the headers of all shards, or of those alone that hold tensors of
// CheckpointOptions::layers, and no tensor data. A shard is mapped when the first tensor in
// it is bound; a touched page is then read alone, and model/trunk.h and ExpertStore bring in what is wanted in one piece. All
// members are const and safe to call from several threads; views live as long as the Checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "formats/inventory.h"
#include "model/model_config.h"
#include "model/param_table.h"
#include "ops/weight.h"
#include "tensor/tensor.h"

namespace weft {

struct CheckpointOptions {
  bool allow_unknown_tensors = false;  // tensors that the parameter table does not claim: a note instead of an error
  bool rebuild_index = false;          // an index that disagrees with the headers is ignored
  // A stage: only its tensors are wanted, and by the index only the shards that hold them are opened; no other shard needs to
  // be there. Without an index the headers of all shards are read. Absent: all layers.
  std::optional<LayerRange> layers = std::nullopt;
};

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// What was read of a shard.
struct FileReads {
  std::string file;                    // inside the folder
  int64_t size = 0;                    // bytes
  std::vector<ByteRange> ranges = {};  // apart from each other, ascending

  [[nodiscard]] ByteCount bytes() const {
    ByteCount sum;
    for (const ByteRange& range : ranges) sum += ByteCount(range.end - range.begin);
    return sum;
  }
};

// A part of a stored tensor.
struct StoredPart {
  TensorId tensor = 0;
  int64_t begin = 0;  // byte of the tensor
  int64_t bytes = 0;
};

class Checkpoint {
 public:
  // Throws bad_checkpoint or unsupported naming file, key or tensor: configuration (K3 spec 1.5), index and headers, the packed
  // tensors against quantization_config, tensors that nothing claims. Tensors of vision, multi-token prediction and layers >= L
  // are dropped with a note. What the files are is decided from the names of the whole checkpoint, whatever layers are opened.
  // Throws bad_input for layers that the model does not have.
  explicit Checkpoint(const std::filesystem::path& dir, const CheckpointOptions& options = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  [[nodiscard]] const std::filesystem::path& dir() const;
  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] std::shared_ptr<const ModelConfig> shared_config() const;
  [[nodiscard]] const Json& config_json() const;  // config.json as it is
  [[nodiscard]] const std::vector<ParamSpec>& params() const;
  [[nodiscard]] const std::vector<std::string>& notes() const;  // visible notes of loading
  [[nodiscard]] const Inventory& inventory() const;             // of the opened shards
  [[nodiscard]] LayerRange all_layers() const;                  // of the model
  [[nodiscard]] LayerRange layers() const;                      // that were opened: only these may be asked for
  [[nodiscard]] bool is_partial() const;                        // not all of the model's

  // Checks from headers alone that every tensor which the stage `range` owns is there with the table's shape and a type that
  // the engine reads: linear weights BF16, F32 or a packed pair; all others any float type that widens to float32 exactly. The
  // stage of layer 0 owns the embedding, the stage of layer L-1 the final norm, output mix and head (the embedding too when
  // tied). Throws bad_checkpoint naming tensor, wanted, found and file; for missing experts the first missing index.
  void require(LayerRange range) const;

  // A weight matrix [out, in] where it lies in its mapped shard, in any format of ops/weight.h. The data of a view is NOT
  // aligned to its element; kernels read it as bytes. Nothing of the data is touched. Same errors as require().
  [[nodiscard]] ops::WeightView weight(std::string_view name) const;

  // Any plain tensor widened to float32: norms, biases, convolutions, dt_bias. Extents of 1 in a tensor of rank 2 or more are
  // dropped: [P, 1, Kc] comes as [P, Kc], [1, D] as [D]. Throws bad_checkpoint naming tensor and index of a value that is not
  // finite (ruling R6).
  [[nodiscard]] Tensor vector_f32(std::string_view name) const;

  // A vector whose stored length may be padded by exact zeros, such as A_log of a KDA layer (K3 spec 2.5): its live values.
  [[nodiscard]] Tensor prefix_f32(std::string_view name) const;

  // Routed expert `e` of a MoE layer. Neither weights nor scale bytes are read.
  [[nodiscard]] ops::ExpertView expert(LayerIndex layer, int64_t e) const;
  // Reads the scales of an expert (of FP8 its codes too, which can be NaN). Throws bad_checkpoint naming tensor, row and block
  // of one that is no number (ruling R6). Call it before the first use of the expert. Nothing to do for one that is stored
  // plain.
  void check_expert_scales(LayerIndex layer, int64_t e) const;
  // The same for a matrix that is no routed expert.
  void check_matrix(std::string_view name) const;
  // Whether norms whose weight is published less one (ModelConfig::zero_centred_norm) are stored whole: conversions of MLX.
  [[nodiscard]] bool norms_hold_the_one() const;

  // Whether the checkpoint has a tensor of this canonical name (plain, or a packed pair under the name of its weight).
  [[nodiscard]] bool has(std::string_view name) const;

  // Bytes of all tensors that the stage owns, as mapped (packed experts 4.25 bits a weight).
  [[nodiscard]] ByteCount weight_bytes(LayerRange range) const;
  // Shards that hold them, as indices into the inventory, ascending.
  [[nodiscard]] std::vector<int64_t> shards_of(LayerRange range) const;

  // Shards that hold a tensor of the opened layers, whether or not all are there, as shards_of().
  [[nodiscard]] std::vector<uint32_t> model_shards() const;

  // What was read of the opened shards so far: headers, tensors that were mapped for use, and what note_read() was told.
  [[nodiscard]] std::vector<FileReads> reads() const;
  [[nodiscard]] ByteCount bytes_read() const;
  // The same for people and tests, with config.json and the index: {"model", "layers": [begin, end], "read": bytes, "files":
  // [{"file", "size", "read": bytes, "ranges": [[begin, end], ...]}, ...]}.
  [[nodiscard]] Json load_audit() const;
  // Bytes [begin, end) of shard `file` of the inventory were read past this class.
  void note_read(uint32_t file, int64_t begin, int64_t end) const;

  // What has been mapped so far.
  struct Mapped {
    int64_t shards = 0;
    ByteCount bytes;  // sizes of those files
  };
  [[nodiscard]] Mapped mapped() const;

  // Throws unavailable naming the first mapped file that shrank or could not be read while it was used: what was computed from
  // it since is void (base/mapping_guard.h).
  void require_intact() const;

  // The stored tensors of a row of params(): one for a plain tensor; else weights, scales and, of MLX, biases. For experts
  // those of expert `e`; all experts of a layer may share theirs. Throws what require() throws for this row.
  [[nodiscard]] std::vector<TensorId> stored(const ParamSpec& spec, int64_t e = 0) const;
  // The bytes of those tensors that are the row's.
  [[nodiscard]] std::vector<StoredPart> stored_parts(const ParamSpec& spec, int64_t e = 0) const;
  [[nodiscard]] int64_t stored_bytes(const ParamSpec& spec, int64_t e = 0) const;
  [[nodiscard]] std::span<const std::byte> bytes_of(const StoredPart& part) const;
  // Bytes of a stored tensor in its mapped shard, not aligned to its element.
  [[nodiscard]] std::span<const std::byte> bytes_of(TensorId id) const;

  // Reads and checks every tensor of the stage but the matrices: vector_f32() or prefix_f32() of each.
  void check_small_tensors(LayerRange range) const;

  // The layer that a stored tensor's name speaks of, in any spelling: N of "model.layers.N."; saturated.
  [[nodiscard]] std::optional<LayerIndex> layer_of(std::string_view stored_name) const;

  // Whether the stage `range` owns the row.
  [[nodiscard]] bool owns(LayerRange range, const ParamSpec& spec) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
