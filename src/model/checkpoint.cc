#include "model/checkpoint.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/file.h"
#include "base/pages.h"
#include "formats/logical_prefix.h"
#include "formats/mx.h"
#include "formats/packed.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr TensorId kAbsent = UINT32_MAX;
enum Part : uint8_t { plain, packed, scale, kParts };
using Slot = std::array<TensorId, kParts>;

// N of "model.layers.N.", saturated.
std::optional<int64_t> layer_number(std::string_view name) {
  constexpr std::string_view kHead = "model.layers.";
  if (!name.starts_with(kHead)) return std::nullopt;
  name.remove_prefix(kHead.size());
  const size_t digits = name.find('.');
  if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + digits, value);
  if (end != name.data() + digits || value < 0) return std::nullopt;
  return error == std::errc::result_out_of_range ? INT64_MAX : value;
}

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

}  // namespace

struct Checkpoint::Impl {
  Impl(const std::filesystem::path& folder, const CheckpointOptions& options)
      : dir(folder),
        json(read_json_file(folder / "config.json")),
        shared_config(parse_model_config(json, (folder / "config.json").string())),
        config(*shared_config),
        params(config.params()),
        inventory(Inventory::scan(folder, {.rebuild_index = options.rebuild_index})),
        maps(inventory.files().size()) {
    index_params();
    claim_tensors(options);
    check_quantization();
    write_notes();
  }

  // Where a canonical name belongs.
  struct Place {
    size_t param = 0;
    int64_t expert = 0;
    Part part = plain;
  };

  void index_params() {
    first_slot.reserve(params.size());
    size_t slots_needed = 0;
    experts_of.assign(static_cast<size_t>(config.layer_count), {});
    for (size_t i = 0; i < params.size(); ++i) {
      by_name.emplace(params[i].name, i);
      first_slot.push_back(slots_needed);
      slots_needed += static_cast<size_t>(params[i].copies);
      constexpr std::string_view kExpert = "moe.expert.w";
      if (params[i].role.starts_with(kExpert))
        experts_of[static_cast<size_t>(params[i].layer.value)].at(static_cast<size_t>(params[i].role[kExpert.size()] - '1')) =
            i;
    }
    slots.assign(slots_needed, {kAbsent, kAbsent, kAbsent});
  }

  [[nodiscard]] std::optional<Place> locate(std::string_view name) const {
    Place place;
    for (const auto& [suffix, part] : {std::pair{std::string_view("_packed"), packed}, {std::string_view("_scale"), scale}})
      if (name.ends_with(suffix)) {
        name.remove_suffix(suffix.size());
        place.part = part;
      }
    std::string key(name);
    constexpr std::string_view kExperts = ".experts.";
    if (const size_t at = name.find(kExperts); at != std::string_view::npos) {
      const char* const digits = name.data() + at + kExperts.size();
      const auto [end, error] = std::from_chars(digits, name.data() + name.size(), place.expert);
      // A second spelling of one index ("01", "+1") would claim the same slot.
      if (error != std::errc() || place.expert < 0 || std::to_string(place.expert).size() != static_cast<size_t>(end - digits))
        return std::nullopt;
      key.replace(at + kExperts.size(), static_cast<size_t>(end - digits), "{}");
    }
    const auto found = by_name.find(key);
    if (found == by_name.end() || place.expert >= params[found->second].copies) return std::nullopt;
    place.param = found->second;
    return place;
  }

  [[nodiscard]] Slot& slot(size_t param, int64_t expert) { return slots[first_slot[param] + static_cast<size_t>(expert)]; }
  [[nodiscard]] const Slot& slot(size_t param, int64_t expert) const {
    return slots[first_slot[param] + static_cast<size_t>(expert)];
  }

  void claim_tensors(const CheckpointOptions& options) {
    std::string_view first_unknown;
    for (TensorId id = 0; id < inventory.size(); ++id) {
      const std::string name = config.canonical_name(inventory.name(id));
      if (config.is_vision(name)) {
        ++vision_tensors;
      } else if (config.is_mtp(name)) {
        ++mtp_tensors;
      } else if (const std::optional<int64_t> layer = layer_number(name); layer && *layer >= config.layer_count) {
        ++higher_tensors;
      } else if (name.ends_with(".rotary_emb.inv_freq")) {
        ++rotary_tensors;
      } else if (config.tie_word_embeddings && name == "lm_head.weight") {
        ++tied_heads;
      } else {
        if (const std::optional<Place> place = locate(name)) {
          TensorId& claimed = slot(place->param, place->expert)[place->part];
          if (claimed != kAbsent)
            fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': wanted one tensor, found '{}' in {} and '{}' in {}",
                 name, inventory.name(claimed), inventory.file(claimed).name, inventory.name(id), inventory.file(id).name);
          claimed = id;
        } else {
          if (unknown_tensors++ == 0) first_unknown = inventory.name(id);
        }
      }
    }
    if (unknown_tensors > 0 && !options.allow_unknown_tensors)
      fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': unknown to {} ({} unknown tensors in all)", first_unknown,
           config.model_type, unknown_tensors);
    if (unknown_tensors > 0)
      unknown_note = fmt::format("{} unknown tensors are ignored, the first is '{}'", unknown_tensors, first_unknown);
  }

  // Pairs first, so that a half of one is named before the configuration is blamed.
  void check_quantization() const {
    const std::string place = (dir / "config.json").string();
    const PackedTensors pairs(inventory);
    check_packed_against_config(pairs, json, place, [&](std::string_view module) { return is_linear(module); });
  }

  // Whether a stored module is a Linear of the published module tree. Those that are not loaded may be what they like.
  [[nodiscard]] bool is_linear(std::string_view module) const {
    const std::string name = config.canonical_name(std::string(module) + ".weight");
    if (config.is_vision(name) || config.is_mtp(name)) return true;
    if (const std::optional<int64_t> layer = layer_number(name); layer && *layer >= config.layer_count) return true;
    const std::optional<Place> place = locate(name);
    return !place || params[place->param].storage == Storage::packed;
  }

  void write_notes() {
    notes = config.notes;
    if (higher_tensors > 0) {
      const std::string tail = fmt::format("{} tensors of layers above it are ignored", higher_tensors);
      // One note for a truncated copy (ruling R3): the configuration's, if it made one, goes on.
      if (config.listed_layers > config.layer_count)
        notes.back() = fmt::format("num_hidden_layers is {}: entries of the layer lists up to {} and {}", config.layer_count,
                                   config.listed_layers, tail);
      else
        notes.push_back(fmt::format("num_hidden_layers is {}: {}", config.layer_count, tail));
    }
    if (vision_tensors > 0)
      notes.push_back(fmt::format("{} tensors of the vision tower and projector are not loaded", vision_tensors));
    if (mtp_tensors > 0) notes.push_back(fmt::format("{} tensors of multi-token prediction are not loaded", mtp_tensors));
    if (rotary_tensors > 0) notes.push_back(fmt::format("{} rotary tables are not loaded", rotary_tensors));
    if (tied_heads > 0) notes.emplace_back("lm_head.weight is not loaded: the embeddings are tied");
    if (!unknown_note.empty()) notes.push_back(unknown_note);
    if (const std::vector<std::string>& files = inventory.unlisted_files(); !files.empty()) {
      notes.push_back(fmt::format("{} .safetensors files are not in the index and not loaded: {}{}", files.size(), files[0],
                                  files.size() > 1 ? ", ..." : ""));
    }
    if (const auto stated = inventory.index_total_size(); stated && *stated != inventory.data_bytes()) {
      notes.push_back(fmt::format("the index states {} bytes of tensors, the files hold {}", *stated, inventory.data_bytes()));
    }
  }

  [[nodiscard]] std::string full_name(const ParamSpec& p, int64_t e) const { return config.name_prefix() + expert_name(p, e); }

  [[noreturn]] void wrong(TensorId id, std::string_view wanted) const {
    fail(ErrorKind::bad_checkpoint, (dir / inventory.file(id).name).string(), "tensor '{}': wanted {}, found {} {}",
         inventory.name(id), wanted, inventory.dtype(id), inventory.shape(id));
  }

  [[noreturn]] void missing(const ParamSpec& p, int64_t e) const {
    const bool pair = p.copies > 1 && !config.quantization.is_null();
    const std::string what = full_name(p, e) + (pair ? "_packed" : "");
    if (p.copies > 1)
      fail(ErrorKind::bad_checkpoint, dir.string(),
           "tensor '{}': missing in every file, wanted {} experts, found none of index {}", what, p.copies, e);
    fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': missing in every file, wanted {} {}", what, p.dtype, p.shape);
  }

  // One tensor, or packed and scale. Checked.
  struct Found {
    TensorId data = kAbsent;
    TensorId scales = kAbsent;
  };

  [[nodiscard]] Found resolve(size_t param, int64_t e) const {
    const ParamSpec& p = params[param];
    const Slot& s = slot(param, e);
    if (s[packed] == kAbsent && s[scale] == kAbsent) {
      if (s[plain] == kAbsent) missing(p, e);
      check_plain(p, s[plain]);
      return {s[plain], kAbsent};
    }
    const TensorId known = s[packed] != kAbsent ? s[packed] : s[scale];
    const auto file = [&] { return (dir / inventory.file(known).name).string(); };
    if (s[plain] != kAbsent)
      fail(ErrorKind::bad_checkpoint, file(), "tensor '{}': wanted a plain tensor or a packed pair, found '{}' beside it",
           inventory.name(s[plain]), inventory.name(known));
    if (s[scale] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file(), "tensor '{}': missing scale tensor '{}_scale'", inventory.name(known),
           full_name(p, e));
    if (s[packed] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file(), "tensor '{}': orphan scale, no '{}_packed'", inventory.name(known),
           full_name(p, e));
    if (p.storage != Storage::packed) wrong(s[packed], fmt::format("a plain tensor {} (this one is never packed)", p.shape));
    const int64_t out = p.shape[0];
    const int64_t in = p.shape[1];
    if (in % kMxBlock != 0)
      wrong(s[packed],
            fmt::format("rows that are whole blocks of {} (this matrix has {} columns, so it cannot be packed)", kMxBlock, in));
    check_packed(s[packed], {out, in / 2});
    check_packed(s[scale], {out, in / kMxBlock});
    return {s[packed], s[scale]};
  }

  void check_packed(TensorId id, const Shape& shape) const {
    if (inventory.dtype(id) != DType::u8 || !(inventory.shape(id) == shape)) wrong(id, fmt::format("U8 {}", shape));
  }

  void check_plain(const ParamSpec& p, TensorId id) const {
    const Shape& shape = inventory.shape(id);
    if (!is_float(inventory.dtype(id))) wrong(id, fmt::format("F32 or BF16 {}", p.shape));
    if (p.storage != Storage::prefix) {
      if (!(shape == p.shape)) wrong(id, fmt::format("{} {}", p.dtype, p.shape));
      return;
    }
    const int64_t heads = p.shape[0];
    const bool published = shape.rank() == 1 && shape[0] >= heads;
    const bool older = shape == Shape{1, 1, heads, 1};
    if (!published && !older)
      fail(ErrorKind::bad_checkpoint, (dir / inventory.file(id).name).string(),
           "{}: length {}, expected at least {} per-head values (shape [n] or [1, 1, {}, 1], found {})", inventory.name(id),
           shape.elements(), heads, heads, shape);
  }

  [[nodiscard]] size_t param_index(const ParamSpec& p) const {
    const auto found = by_name.find(p.name);
    if (found == by_name.end()) fail(ErrorKind::internal, "checkpoint", "no tensor '{}' in the parameter table", p.name);
    return found->second;
  }

  [[nodiscard]] Place place_of(std::string_view name) const {
    const std::optional<Place> place = locate(name);
    if (!place || place->part != plain) fail(ErrorKind::internal, "checkpoint", "no tensor '{}' in the parameter table", name);
    return *place;
  }

  [[nodiscard]] std::span<const std::byte> bytes(TensorId id) const {
    const uint32_t file = inventory.file_index(id);
    Mapping& mapping = maps[file];
    std::call_once(mapping.once, [&] {
      mapping.file = std::make_unique<MappedFile>(inventory.path_of(file));
      const auto size = static_cast<int64_t>(mapping.file->bytes().size());
      if (size != inventory.files()[file].size)
        fail(ErrorKind::bad_checkpoint, inventory.path_of(file).string(),
             "wanted {} bytes as when its header was read, found {}", inventory.files()[file].size, size);
      read_pages_singly(mapping.file->bytes());
      mapped_shards.fetch_add(1);
      mapped_bytes.fetch_add(size);
      mapping.ready.store(mapping.file.get());
    });
    return mapping.file->bytes().subspan(static_cast<size_t>(inventory.begin(id)), static_cast<size_t>(inventory.bytes(id)));
  }

  [[nodiscard]] ops::WeightView view(size_t param, int64_t e) const {
    const ParamSpec& p = params[param];
    if (!p.matrix) fail(ErrorKind::internal, "checkpoint", "'{}' is not a matrix", p.name);
    const Found found = resolve(param, e);
    ops::WeightView view;
    view.out = p.shape[0];
    view.in = p.shape[1];
    view.data = bytes(found.data).data();
    if (found.scales != kAbsent) {
      view.format = ops::WeightFormat::mxfp4;
      view.scales = bytes(found.scales).data();
    } else {
      view.format = inventory.dtype(found.data) == DType::f32 ? ops::WeightFormat::f32 : ops::WeightFormat::bf16;
    }
    return view;
  }

  [[nodiscard]] const std::array<size_t, 3>& experts(LayerIndex layer, int64_t e) const {
    if (layer.value < 0 || layer.value >= config.layer_count || !config.is_moe(layer) || e < 0 || e >= config.experts)
      fail(ErrorKind::internal, "checkpoint", "no expert {} in layer {}", e, layer);
    return experts_of[static_cast<size_t>(layer.value)];
  }

  [[nodiscard]] Tensor widened(size_t param) const {
    const ParamSpec& p = params[param];
    if (p.matrix || p.storage == Storage::prefix) fail(ErrorKind::internal, "checkpoint", "'{}' is not a plain vector", p.name);
    const TensorId id = resolve(param, 0).data;
    std::vector<int64_t> extents;
    for (const int64_t extent : p.shape.extents())
      if (extent != 1 || p.shape.rank() == 1) extents.push_back(extent);
    if (extents.empty()) extents.push_back(1);
    Tensor tensor = Tensor::uninitialized(DType::f32, Shape(std::span<const int64_t>(extents)));
    const std::span<float> values = tensor.as<float>();
    copy_as_f32(id, values);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]))
        fail(ErrorKind::bad_checkpoint, (dir / inventory.file(id).name).string(),
             "tensor '{}': wanted finite values, found {} at index {}", inventory.name(id), values[i], i);
    return tensor;
  }

  void copy_as_f32(TensorId id, std::span<float> out) const {
    const std::span<const std::byte> data = bytes(id);
    if (inventory.dtype(id) == DType::f32) {
      std::memcpy(out.data(), data.data(), data.size());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, data.data() + 2 * i, 2);
      out[i] = bf16_to_f32(bits);
    }
  }

  struct Mapping {
    std::once_flag once;
    std::unique_ptr<MappedFile> file;
    std::atomic<const MappedFile*> ready{nullptr};  // the same, for those who do not map it
  };

  std::filesystem::path dir;
  Json json;
  std::shared_ptr<const ModelConfig> shared_config;
  const ModelConfig& config;
  std::vector<ParamSpec> params;
  Inventory inventory;
  std::vector<std::string> notes;

  std::unordered_map<std::string, size_t> by_name;  // table name -> index into params
  std::vector<size_t> first_slot;                   // of each row of params
  std::vector<Slot> slots;
  std::vector<std::array<size_t, 3>> experts_of;  // per layer: rows of w1, w2, w3

  int64_t vision_tensors = 0;
  int64_t mtp_tensors = 0;
  int64_t higher_tensors = 0;
  int64_t rotary_tensors = 0;
  int64_t tied_heads = 0;
  int64_t unknown_tensors = 0;
  std::string unknown_note;

  mutable std::vector<Mapping> maps;  // one per file
  mutable std::atomic<int64_t> mapped_shards{0};
  mutable std::atomic<int64_t> mapped_bytes{0};
};

Checkpoint::Checkpoint(const std::filesystem::path& dir, const CheckpointOptions& options)
    : impl_(std::make_unique<Impl>(dir, options)) {}
Checkpoint::~Checkpoint() = default;

const std::filesystem::path& Checkpoint::dir() const { return impl_->dir; }
const ModelConfig& Checkpoint::config() const { return impl_->config; }
std::shared_ptr<const ModelConfig> Checkpoint::shared_config() const { return impl_->shared_config; }
const Json& Checkpoint::config_json() const { return impl_->json; }
const std::vector<ParamSpec>& Checkpoint::params() const { return impl_->params; }
const std::vector<std::string>& Checkpoint::notes() const { return impl_->notes; }
const Inventory& Checkpoint::inventory() const { return impl_->inventory; }
LayerRange Checkpoint::all_layers() const { return impl_->config.all_layers(); }

bool Checkpoint::owns(LayerRange range, const ParamSpec& spec) const {
  const bool last = range.end.value == impl_->config.layer_count;
  switch (spec.owner) {
    case Owner::first: return range.begin.value == 0 || (last && impl_->config.tie_word_embeddings);
    case Owner::layer: return range.contains(spec.layer);
    case Owner::last: return last;
  }
  return false;
}

void Checkpoint::require(LayerRange range) const {
  if (range.begin.value < 0 || range.size() < 1 || range.end.value > impl_->config.layer_count)
    fail(ErrorKind::bad_input, "checkpoint", "layers {} to {}: wanted a range inside 0 to {}", range.begin, range.end,
         impl_->config.layer_count);
  for (size_t i = 0; i < impl_->params.size(); ++i)
    if (owns(range, impl_->params[i]))
      for (int64_t e = 0; e < impl_->params[i].copies; ++e) (void)impl_->resolve(i, e);
}

ops::WeightView Checkpoint::weight(std::string_view name) const {
  const Impl::Place place = impl_->place_of(name);
  return impl_->view(place.param, place.expert);
}

Tensor Checkpoint::vector_f32(std::string_view name) const { return impl_->widened(impl_->place_of(name).param); }

Tensor Checkpoint::prefix_f32(std::string_view name) const {
  const Impl::Place place = impl_->place_of(name);
  const TensorId id = impl_->resolve(place.param, 0).data;
  // logical_prefix reads aligned elements; the file need not have them so.
  Tensor stored = Tensor::uninitialized(impl_->inventory.dtype(id), impl_->inventory.shape(id));
  const std::span<const std::byte> data = impl_->bytes(id);
  std::memcpy(stored.data(), data.data(), data.size());
  const int64_t heads = impl_->params[place.param].shape[0];
  const std::vector<float> live =
      logical_prefix(stored.view(), heads, fmt::format("{} in {}", impl_->inventory.name(id), impl_->inventory.file(id).name));
  for (size_t h = 0; h < live.size(); ++h)
    if (!std::isfinite(live[h]))
      fail(ErrorKind::bad_checkpoint, (impl_->dir / impl_->inventory.file(id).name).string(),
           "tensor '{}': wanted finite values, found {} at index {}", impl_->inventory.name(id), live[h], h);
  Tensor tensor = Tensor::uninitialized(DType::f32, {heads});
  std::ranges::copy(live, tensor.as<float>().begin());
  return tensor;
}

void Checkpoint::require_intact() const {
  for (const Impl::Mapping& mapping : impl_->maps) {
    const MappedFile* file = mapping.ready.load();
    if (file == nullptr || !file->lost()) continue;
    fail(ErrorKind::unavailable, file->path().string(),
         "wanted the {} bytes that were mapped, found that the file shrank or could not be read while it was used; load the "
         "model again",
         file->bytes().size());
  }
}

ops::ExpertView Checkpoint::expert(LayerIndex layer, int64_t e) const {
  const std::array<size_t, 3>& rows = impl_->experts(layer, e);
  return {impl_->view(rows[0], e), impl_->view(rows[1], e), impl_->view(rows[2], e)};
}

void Checkpoint::check_expert_scales(LayerIndex layer, int64_t e) const {
  for (const size_t row : impl_->experts(layer, e)) {
    const TensorId id = impl_->resolve(row, e).scales;
    if (id == kAbsent) continue;
    const std::span<const std::byte> scales = impl_->bytes(id);
    check_scales(fmt::format("{}' in '{}", impl_->inventory.name(id), impl_->inventory.file(id).name),
                 {reinterpret_cast<const uint8_t*>(scales.data()), scales.size()}, impl_->inventory.shape(id)[1]);
  }
}

void Checkpoint::check_small_tensors(LayerRange range) const {
  for (size_t i = 0; i < impl_->params.size(); ++i) {
    const ParamSpec& p = impl_->params[i];
    if (p.matrix || !owns(range, p)) continue;
    if (p.storage == Storage::prefix)
      (void)prefix_f32(p.name);
    else
      (void)impl_->widened(i);
  }
}

std::optional<LayerIndex> Checkpoint::layer_of(std::string_view stored_name) const {
  const std::optional<int64_t> number = layer_number(impl_->config.canonical_name(stored_name));
  return number ? std::optional(LayerIndex(*number)) : std::nullopt;
}

bool Checkpoint::has(std::string_view name) const {
  const std::optional<Impl::Place> place = impl_->locate(name);
  if (!place) return false;
  const Slot& slot = impl_->slot(place->param, place->expert);
  return slot[plain] != kAbsent || slot[packed] != kAbsent;
}

ByteCount Checkpoint::weight_bytes(LayerRange range) const {
  int64_t total = 0;
  for (const ParamSpec& p : impl_->params)
    if (owns(range, p))
      for (int64_t e = 0; e < p.copies; ++e)
        for (const TensorId id : stored(p, e)) total += impl_->inventory.bytes(id);
  return ByteCount(total);
}

std::vector<int64_t> Checkpoint::shards_of(LayerRange range) const {
  std::set<int64_t> shards;
  for (const ParamSpec& p : impl_->params)
    if (owns(range, p))
      for (int64_t e = 0; e < p.copies; ++e)
        for (const TensorId id : stored(p, e)) shards.insert(impl_->inventory.file_index(id));
  return {shards.begin(), shards.end()};
}

Checkpoint::Mapped Checkpoint::mapped() const { return {impl_->mapped_shards.load(), ByteCount(impl_->mapped_bytes.load())}; }

std::vector<TensorId> Checkpoint::stored(const ParamSpec& spec, int64_t e) const {
  const Impl::Found found = impl_->resolve(impl_->param_index(spec), e);
  if (found.scales == kAbsent) return {found.data};
  return {found.data, found.scales};
}

std::span<const std::byte> Checkpoint::bytes_of(TensorId id) const { return impl_->bytes(id); }

}  // namespace weft
