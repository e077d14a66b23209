// What is behind Checkpoint; for its sources alone. checkpoint_open.cc opens, checkpoint_rows.cc finds and checks the tensors
// of a row of the parameter table, checkpoint.cc reads, load_audit.cc says what was read.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "formats/quantization.h"
#include "formats/shard_index.h"
#include "model/checkpoint.h"

namespace weft {

// N of "model.layers.N.", saturated; canonical name.
[[nodiscard]] std::optional<int64_t> layer_number(std::string_view name);

// The names of all tensors of a checkpoint, of which a part may be opened: those of the index, or where there is none those of
// all headers.
class WholeNames {
 public:
  WholeNames(const Inventory& opened, const ShardIndex* index) : opened_(opened), index_(index) {}

  [[nodiscard]] uint32_t size() const { return index_ != nullptr ? index_->size() : opened_.size(); }
  [[nodiscard]] std::string_view operator[](uint32_t i) const { return index_ != nullptr ? index_->name(i) : opened_.name(i); }
  // Of the opened part.
  [[nodiscard]] std::optional<TensorId> id(uint32_t i) const {
    return index_ != nullptr ? opened_.find(index_->name(i)) : std::optional(i);
  }

 private:
  const Inventory& opened_;
  const ShardIndex* index_;
};

struct Checkpoint::Impl {
  static constexpr TensorId kAbsent = UINT32_MAX;
  // Stored tensors that make up a row of the table: NAME itself; NAME_packed and NAME_scale; NAME_scale_inv of FP8; of MLX,
  // where NAME is M.weight, M.scales and M.biases.
  enum Part : uint8_t { plain, packed, scale, scale_inv, scales, biases, kParts };
  using Slot = std::array<TensorId, kParts>;
  static constexpr Slot kEmptySlot = {kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent};

  // Where a row of the table lies in a tensor that holds more than it.
  struct Rows {
    bool planes = false;  // the expert is the leading axis of the stored tensor
    int64_t first = 0;
    int64_t all = 0;  // of a plane; 0: the row's own
  };
  // Where a canonical name belongs.
  struct Place {
    size_t param = 0;
    int64_t expert = 0;
    Part part = plain;
  };
  // The tensors of a row, checked.
  struct Found {
    TensorId data = kAbsent;
    TensorId scales = kAbsent;
    TensorId biases = kAbsent;
    ops::WeightView plane;  // of a matrix: the form of all rows of its plane, without memory
    int64_t index = 0;      // of the plane
    int64_t first = 0;      // row of the plane
  };
  struct Mapping {
    std::once_flag once;
    std::unique_ptr<MappedFile> file;
    std::atomic<const MappedFile*> ready{nullptr};  // the same, for those who do not map it
  };
  // Tensors that are known and no part of the model.
  enum NotLoaded : uint8_t { vision, mtp, higher_layers, rotary_tables, tied_head, kNotLoaded };
  struct Read {
    uint32_t file;
    int64_t begin, end;
  };

  Impl(const std::filesystem::path& folder, const CheckpointOptions& options);

  // checkpoint_open.cc
  void check_layers() const;
  [[nodiscard]] std::vector<bool> wanted_of(const ShardIndex& index) const;
  [[nodiscard]] bool decide_mlx(const WholeNames& names) const;
  [[nodiscard]] bool mlx_by_convolutions() const;
  [[nodiscard]] bool may_decide(std::string_view stored) const;
  void index_params();
  [[nodiscard]] std::optional<NotLoaded> not_loaded(std::string_view canonical) const;
  // A tensor's name as that of its row of the table and which part of it.
  [[nodiscard]] static std::pair<std::string, Part> split(std::string_view name);
  [[nodiscard]] std::optional<Place> locate(std::string_view name) const;
  void claim_tensors(const WholeNames& names, const CheckpointOptions& options);
  void claim(TensorId& slot, TensorId id, std::string_view name) const;
  // A tensor that holds several rows of the table, or all experts of a layer.
  [[nodiscard]] bool claim_joined(std::string_view name, std::optional<TensorId> id);
  void check_quantization(const WholeNames& names);
  [[nodiscard]] bool is_linear(std::string_view module) const;
  void write_notes();

  // checkpoint_rows.cc
  [[nodiscard]] Found resolve(size_t param, int64_t e) const;
  void resolve_pair(size_t param, int64_t e, Found& found) const;
  void resolve_fp8(size_t param, const Slot& s, Found& found) const;
  void resolve_mlx(size_t param, const Slot& s, Found& found) const;
  void check_stored(size_t param, TensorId id, DType dtype, const Shape& plane) const;
  void check_plain(size_t param, TensorId id) const;
  // The parts of the stored tensors that are the row's, from headers alone.
  [[nodiscard]] std::vector<StoredPart> parts(size_t param, int64_t e) const;
  [[nodiscard]] std::string full_name(const ParamSpec& p, int64_t e) const { return config.name_prefix() + expert_name(p, e); }
  [[nodiscard]] std::string file_of(TensorId id) const { return (dir / inventory.file(id).name).string(); }
  // The module of a stored weight, as the configuration spells it.
  [[nodiscard]] std::string module_of(TensorId id) const;
  [[noreturn]] void wrong(TensorId id, std::string_view wanted) const;
  [[noreturn]] void missing(const ParamSpec& p, int64_t e) const;
  [[noreturn]] void orphan(TensorId id, std::string_view name, std::string_view of) const;

  // checkpoint.cc
  [[nodiscard]] std::span<const std::byte> bytes(TensorId id) const;
  [[nodiscard]] ops::WeightView view(size_t param, int64_t e) const;
  // Ruling R6 for the values of a stored matrix.
  void check_values(size_t param, int64_t e) const;
  [[nodiscard]] const std::array<size_t, 3>& experts(LayerIndex layer, int64_t e) const;
  [[nodiscard]] Tensor widened(size_t param) const;
  void copy_as_f32(TensorId id, int64_t first, std::span<float> out) const;

  [[nodiscard]] bool is_partial() const { return !(layers == config.all_layers()); }
  [[nodiscard]] bool owns(LayerRange range, const ParamSpec& spec) const;
  [[nodiscard]] Slot& slot(size_t param, int64_t expert) { return slots[first_slot[param] + static_cast<size_t>(expert)]; }
  [[nodiscard]] const Slot& slot(size_t param, int64_t expert) const {
    return slots[first_slot[param] + static_cast<size_t>(expert)];
  }
  [[nodiscard]] size_t param_index(const ParamSpec& p) const;
  [[nodiscard]] Place place_of(std::string_view name) const;

  std::filesystem::path dir;
  Json json;
  std::shared_ptr<const ModelConfig> shared_config;
  const ModelConfig& config;
  LayerRange layers;      // that were opened
  bool by_index = false;  // the index said which shards hold them
  Inventory inventory;    // of those shards; of a part chosen by the index its tensors alone
  bool mlx = false;       // a conversion of MLX
  std::vector<ParamSpec> params;
  std::vector<std::string> notes;
  QuantizationKind kind = QuantizationKind::none;
  std::optional<Fp8Rules> fp8_rules;
  std::optional<MlxRules> mlx_rules;

  std::unordered_map<std::string, size_t> by_name;  // table name -> index into params
  std::vector<size_t> first_slot;                   // of each row of params
  std::vector<Slot> slots;
  std::vector<Rows> rows;                                        // of each row of params
  std::unordered_map<std::string, JoinedTensor> joined_by_name;  // canonical
  std::vector<std::array<size_t, 3>> experts_of;                 // per layer: rows of w1, w2, w3

  std::array<int64_t, kNotLoaded> not_loaded_tensors{};
  std::string unknown_note;

  mutable std::vector<Mapping> maps;  // one per file
  mutable std::atomic<int64_t> mapped_shards{0};
  mutable std::atomic<int64_t> mapped_bytes{0};
  mutable std::vector<std::atomic<bool>> used;  // of each tensor: mapped for use
  mutable std::mutex reads_mutex;
  mutable std::vector<Read> other_reads;  // guarded by reads_mutex
};

}  // namespace weft
