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
#include "formats/mapped_reader.h"
#include "formats/mx.h"
#include "formats/packed.h"
#include "formats/quantization.h"
#include "ops/weight_decode.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr TensorId kAbsent = UINT32_MAX;
// Stored tensors that make up a row of the table: NAME itself; NAME_packed and NAME_scale; NAME_scale_inv of FP8; of MLX, where
// NAME is M.weight, M.scales and M.biases.
enum Part : uint8_t { plain, packed, scale, scale_inv, scales, biases, kParts };
using Slot = std::array<TensorId, kParts>;
constexpr Slot kEmptySlot = {kAbsent, kAbsent, kAbsent, kAbsent, kAbsent, kAbsent};

// Where a row of the table lies in a tensor that holds more than it.
struct Rows {
  bool planes = false;  // the expert is the leading axis of the stored tensor
  int64_t first = 0;
  int64_t all = 0;  // of a plane; 0: the row's own
};

constexpr float kMostFp8Scale = 0x1p120F;  // weight.h

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

// The type of scales; nothing for another type.
std::optional<ops::ScaleType> scale_type_of(DType dtype) {
  if (dtype == DType::bf16) return ops::ScaleType::bf16;
  if (dtype == DType::f32) return ops::ScaleType::f32;
  if (dtype == DType::f16) return ops::ScaleType::f16;
  return std::nullopt;
}

}  // namespace

struct Checkpoint::Impl {
  Impl(const std::filesystem::path& folder, const CheckpointOptions& options)
      : dir(folder),
        json(read_json_file(folder / "config.json")),
        shared_config(parse_model_config(json, (folder / "config.json").string())),
        config(*shared_config),
        inventory(Inventory::scan(folder, {.rebuild_index = options.rebuild_index})),
        mlx(is_mlx()),
        params(mlx ? config.mlx_params([this](std::string_view name) { return stores(name); }) : config.params()),
        maps(inventory.files().size()) {
    refuse_foreign_method(config.quantization, (dir / "config.json").string());  // whose tensors have names of their own
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
    slots.assign(slots_needed, kEmptySlot);
    rows.resize(params.size());
    for (JoinedTensor& joined : config.joined_tensors()) {
      std::string name = joined.name;
      joined_by_name.emplace(std::move(name), std::move(joined));
    }
  }

  // A conversion of MLX, decided from all names and shapes (Qwen3-Next spec 2.3): quantized modules, stacked experts, or
  // convolutions [P, Kc, 1].
  [[nodiscard]] bool is_mlx() const {
    for (TensorId id = 0; id < inventory.size(); ++id) {
      const std::string_view stored = inventory.name(id);
      const Shape& shape = inventory.shape(id);
      const bool convolution = (stored.ends_with("conv1d.weight") || stored.ends_with(".conv.weight")) && shape.rank() == 3 &&
                               shape[1] > 1 && shape[2] == 1;
      if (!convolution && !stored.ends_with(".scales") && stored.find(".switch_mlp.") == std::string_view::npos) continue;
      // What is not loaded decides nothing.
      const std::string name = config.canonical_name(stored);
      const std::optional<int64_t> layer = layer_number(name);
      const bool loaded = layer ? *layer < config.layer_count : name == "lm_head.scales" || name == "model.embed_tokens.scales";
      if (loaded && !config.is_vision(name) && !config.is_mtp(name)) return true;
    }
    return false;
  }
  [[nodiscard]] bool stores(std::string_view canonical) const {
    for (TensorId id = 0; id < inventory.size(); ++id)
      if (config.canonical_name(inventory.name(id)) == canonical) return true;
    return false;
  }

  // A tensor's name as that of its row of the table and which part of it.
  [[nodiscard]] static std::pair<std::string, Part> split(std::string_view name) {
    using namespace std::string_view_literals;
    for (const auto& [suffix, part] : {std::pair{"_packed"sv, packed}, {"_scale"sv, scale}, {"_scale_inv"sv, scale_inv}})
      if (name.ends_with(suffix)) return {std::string(name.substr(0, name.size() - suffix.size())), part};
    for (const auto& [suffix, part] : {std::pair{".scales"sv, scales}, {".biases"sv, biases}})
      if (name.ends_with(suffix)) return {std::string(name.substr(0, name.size() - suffix.size())) + ".weight", part};
    return {std::string(name), plain};
  }

  [[nodiscard]] std::optional<Place> locate(std::string_view name) const {
    Place place;
    std::string key;
    std::tie(key, place.part) = split(name);
    name = key;
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
      } else if (config.tie_word_embeddings && split(name).first == "lm_head.weight") {
        ++tied_heads;
      } else {
        if (const std::optional<Place> place = locate(name)) {
          claim(slot(place->param, place->expert)[place->part], id, name);
        } else if (!claim_joined(name, id) && unknown_tensors++ == 0) {
          first_unknown = inventory.name(id);
        }
      }
    }
    if (unknown_tensors > 0 && !options.allow_unknown_tensors)
      fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': unknown to {} ({} unknown tensors in all)", first_unknown,
           config.model_type, unknown_tensors);
    if (unknown_tensors > 0)
      unknown_note = fmt::format("{} unknown tensors are ignored, the first is '{}'", unknown_tensors, first_unknown);
  }

  void claim(TensorId& slot, TensorId id, std::string_view name) const {
    if (slot != kAbsent)
      fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': wanted one tensor, found '{}' in {} and '{}' in {}", name,
           inventory.name(slot), inventory.file(slot).name, inventory.name(id), inventory.file(id).name);
    slot = id;
  }

  // A tensor that holds several rows of the table, or all experts of a layer.
  [[nodiscard]] bool claim_joined(std::string_view name, TensorId id) {
    const auto [key, part] = split(name);
    const auto found = joined_by_name.find(key);
    if (found == joined_by_name.end()) return false;
    const JoinedTensor& joined = found->second;
    int64_t first = 0;
    int64_t all = 0;
    for (const std::string& row : joined.rows) all += params[by_name.at(row)].shape[0];
    for (const std::string& row : joined.rows) {
      const size_t param = by_name.at(row);
      rows[param] = {joined.planes, first, all};
      first += params[param].shape[0];
      for (int64_t e = 0; e < params[param].copies; ++e) claim(slot(param, e)[part], id, name);
    }
    return true;
  }

  // Pairs first, so that a half of one is named before the configuration is blamed.
  void check_quantization() {
    const std::string place = (dir / "config.json").string();
    kind = quantization_kind(json, place);
    if (kind == QuantizationKind::fp8) fp8_rules.emplace(json, place);
    if (kind == QuantizationKind::mlx) mlx_rules.emplace(json, place);
    const PackedTensors pairs(inventory);
    if (kind == QuantizationKind::none || kind == QuantizationKind::compressed_tensors) {
      check_packed_against_config(pairs, json, place, [&](std::string_view module) { return is_linear(module); });
    } else if (!pairs.pairs().empty()) {
      fail(ErrorKind::bad_checkpoint, place,
           "wanted \"quant_method\": \"compressed-tensors\" for the packed tensor '{}', found {}",
           inventory.name(pairs.pairs().front().packed), kind == QuantizationKind::fp8 ? "\"fp8\"" : "MLX's 'quantization'");
    }
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
    const bool pair = p.copies > 1 && kind == QuantizationKind::compressed_tensors;
    const std::string what = full_name(p, e) + (pair ? "_packed" : "");
    if (p.copies > 1)
      fail(ErrorKind::bad_checkpoint, dir.string(),
           "tensor '{}': missing in every file, wanted {} experts, found none of index {}", what, p.copies, e);
    fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': missing in every file, wanted {} {}", what, p.dtype, p.shape);
  }

  // The tensors of a row, checked.
  struct Found {
    TensorId data = kAbsent;
    TensorId scales = kAbsent;
    TensorId biases = kAbsent;
    ops::WeightView plane;  // of a matrix: the form of all rows of its plane, without memory
    int64_t index = 0;      // of the plane
    int64_t first = 0;      // row of the plane
  };

  [[nodiscard]] Found resolve(size_t param, int64_t e) const {
    const ParamSpec& p = params[param];
    const Slot& s = slot(param, e);
    Found found;
    found.index = rows[param].planes ? e : 0;
    found.first = rows[param].first;
    found.plane.out = rows[param].all > 0 ? rows[param].all : p.shape[0];
    if (p.matrix) found.plane.in = p.shape[1];
    if (s[packed] != kAbsent || s[scale] != kAbsent) {
      resolve_pair(param, e, found);
      return found;
    }
    if (s[plain] == kAbsent) {
      for (const Part part : {scale_inv, scales, biases})
        if (s[part] != kAbsent) orphan(s[part], inventory.name(s[part]), full_name(p, e));
      missing(p, e);
    }
    found.data = s[plain];
    switch (inventory.dtype(found.data)) {
      case DType::f8_e4m3: resolve_fp8(param, s, found); break;
      case DType::u32: resolve_mlx(param, s, found); break;
      default:
        for (const Part part : {scale_inv, scales, biases})
          if (s[part] != kAbsent)
            fail(ErrorKind::bad_checkpoint, file_of(s[part]), "tensor '{}': wanted a quantized '{}' beside it, found {} {}",
                 inventory.name(s[part]), inventory.name(found.data), inventory.dtype(found.data), inventory.shape(found.data));
        check_plain(param, found.data);
        found.plane.format = inventory.dtype(found.data) == DType::f32 ? ops::WeightFormat::f32 : ops::WeightFormat::bf16;
    }
    return found;
  }

  [[nodiscard]] std::string file_of(TensorId id) const { return (dir / inventory.file(id).name).string(); }

  [[noreturn]] void orphan(TensorId id, std::string_view name, std::string_view of) const {
    fail(ErrorKind::bad_checkpoint, file_of(id), "tensor '{}': orphan scale, no '{}'", name, of);
  }

  void resolve_pair(size_t param, int64_t e, Found& found) const {
    const ParamSpec& p = params[param];
    const Slot& s = slot(param, e);
    const TensorId known = s[packed] != kAbsent ? s[packed] : s[scale];
    for (const Part part : {plain, scale_inv, scales, biases})
      if (s[part] != kAbsent)
        fail(ErrorKind::bad_checkpoint, file_of(known),
             "tensor '{}': wanted a plain tensor or a packed pair, found '{}' beside it", inventory.name(s[part]),
             inventory.name(known));
    if (s[scale] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file_of(known), "tensor '{}': missing scale tensor '{}_scale'", inventory.name(known),
           full_name(p, e));
    if (s[packed] == kAbsent) orphan(known, inventory.name(known), full_name(p, e) + "_packed");
    if (p.storage != Storage::packed) wrong(s[packed], fmt::format("a plain tensor {} (this one is never packed)", p.shape));
    const int64_t in = p.shape[1];
    if (in % kMxBlock != 0)
      wrong(s[packed],
            fmt::format("rows that are whole blocks of {} (this matrix has {} columns, so it cannot be packed)", kMxBlock, in));
    found.data = s[packed];
    found.scales = s[scale];
    found.plane.format = ops::WeightFormat::mxfp4;
    check_stored(param, found.data, DType::u8, {found.plane.out, in / 2});
    check_stored(param, found.scales, DType::u8, {found.plane.out, in / kMxBlock});
  }

  void resolve_fp8(size_t param, const Slot& s, Found& found) const {
    const ParamSpec& p = params[param];
    const std::string_view name = inventory.name(found.data);
    if (!p.matrix) wrong(found.data, fmt::format("F32 or BF16 {} (this one is never quantized)", p.shape));
    if (!fp8_rules)
      fail(ErrorKind::bad_checkpoint, file_of(found.data),
           "tensor '{}': wanted \"quant_method\": \"fp8\" in config.json for F8_E4M3 weights, found another or none", name);
    if (s[scale_inv] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file_of(found.data), "tensor '{}': missing scale tensor '{}_scale_inv'", name, name);
    for (const Part part : {scales, biases})
      if (s[part] != kAbsent) wrong(s[part], fmt::format("no such tensor beside '{}'", inventory.name(s[scale_inv])));
    if (fp8_rules->skips(module_of(found.data)))
      fail(ErrorKind::bad_checkpoint, file_of(found.data),
           "tensor '{}': wanted a plain tensor, as modules_to_not_convert of config.json names it, found F8_E4M3", name);
    found.scales = s[scale_inv];
    const std::optional<ops::ScaleType> type = scale_type_of(inventory.dtype(found.scales));
    const int64_t across = (p.shape[1] + ops::kScaleBlock - 1) / ops::kScaleBlock;
    const int64_t down = (found.plane.out + ops::kScaleBlock - 1) / ops::kScaleBlock;
    if (!type || *type == ops::ScaleType::f16) wrong(found.scales, fmt::format("BF16 or F32 {}", Shape{down, across}));
    found.plane.format = ops::WeightFormat::fp8_block;
    found.plane.scale_type = *type;
    check_stored(param, found.data, DType::f8_e4m3, {found.plane.out, p.shape[1]});
    check_stored(param, found.scales, inventory.dtype(found.scales), {down, across});
  }

  void resolve_mlx(size_t param, const Slot& s, Found& found) const {
    const ParamSpec& p = params[param];
    const std::string_view name = inventory.name(found.data);
    const std::string module = module_of(found.data);
    const std::optional<MlxRule> rule = mlx_rules ? mlx_rules->of(module) : std::nullopt;
    if (!p.matrix || !rule)
      wrong(found.data, fmt::format("F32 or BF16 {} ({})", p.shape,
                                    p.matrix ? "config.json states no quantization of it" : "this one is never quantized"));
    if (s[scales] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file_of(found.data), "tensor '{}': missing scale tensor '{}.scales'", name, module);
    if (s[scale_inv] != kAbsent) wrong(s[scale_inv], fmt::format("no such tensor beside '{}'", name));
    const int64_t in = p.shape[1];
    if (in % rule->group != 0)
      wrong(found.data, fmt::format("rows that are whole groups of {} (this matrix has {} columns)", rule->group, in));
    found.scales = s[scales];
    const Shape groups{found.plane.out, in / rule->group};
    check_stored(param, found.data, DType::u32, {found.plane.out, in * rule->bits / 32});
    if (rule->mode == MlxRule::Mode::mxfp4) {
      found.plane.format = ops::WeightFormat::mxfp4;
      check_stored(param, found.scales, DType::u8, groups);
      if (s[biases] != kAbsent) wrong(s[biases], "no biases in mode mxfp4");
      return;
    }
    if (s[biases] == kAbsent)
      fail(ErrorKind::bad_checkpoint, file_of(found.data), "tensor '{}': missing biases '{}.biases'", name, module);
    found.biases = s[biases];
    const DType dtype = inventory.dtype(found.scales);
    const std::optional<ops::ScaleType> type = scale_type_of(dtype);
    if (!type) wrong(found.scales, fmt::format("BF16, F16 or F32 {}", groups));
    check_stored(param, found.scales, dtype, groups);
    check_stored(param, found.biases, dtype, groups);
    found.plane.format = ops::WeightFormat::affine;
    found.plane.scale_type = *type;
    found.plane.bits = static_cast<uint8_t>(rule->bits);
    found.plane.group = static_cast<uint8_t>(rule->group);
  }

  // The module of a stored weight, as the configuration spells it.
  [[nodiscard]] std::string module_of(TensorId id) const {
    std::string_view name = inventory.name(id);
    constexpr std::string_view kWeight = ".weight";
    if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
    return std::string(name);
  }

  // The extents of a tensor that holds planes of these, or one matrix; MLX gives the heads of a matrix an axis of their own.
  void check_stored(size_t param, TensorId id, DType dtype, const Shape& plane) const {
    const Shape& shape = inventory.shape(id);
    const bool planes = rows[param].planes;
    const Shape wanted = planes ? Shape{params[param].copies, plane[0], plane[1]} : plane;
    const bool by_head = mlx && !planes && shape.rank() == 3 && shape[0] * shape[1] == plane[0] && shape[2] == plane[1];
    if (inventory.dtype(id) != dtype || !(shape == wanted || by_head)) wrong(id, fmt::format("{} {}", dtype, wanted));
  }

  void check_plain(size_t param, TensorId id) const {
    const ParamSpec& p = params[param];
    const Shape& shape = inventory.shape(id);
    if (!is_float(inventory.dtype(id))) wrong(id, fmt::format("F32 or BF16 {}", p.shape));
    if (p.storage != Storage::prefix) {
      const int64_t all = rows[param].all > 0 ? rows[param].all : p.shape[0];
      if (p.matrix) return check_stored(param, id, inventory.dtype(id), {all, p.shape[1]});
      Shape wanted = p.shape;
      if (p.shape.rank() == 3) wanted = mlx ? Shape{all, p.shape[2], p.shape[1]} : Shape{all, p.shape[1], p.shape[2]};
      if (!(shape == wanted)) wrong(id, fmt::format("{} {}", p.dtype, wanted));
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
    ops::WeightView view = found.plane;
    view.data = bytes(found.data).data() + found.index * view.data_bytes();
    if (found.scales != kAbsent) view.scales = bytes(found.scales).data() + found.index * view.scale_bytes();
    if (found.biases != kAbsent) view.biases = bytes(found.biases).data() + found.index * view.bias_bytes();
    return view.out == p.shape[0] ? view : view.rows(found.first, found.first + p.shape[0]);
  }

  // The parts of the stored tensors that are the row's, from headers alone.
  [[nodiscard]] std::vector<StoredPart> parts(size_t param, int64_t e) const {
    const ParamSpec& p = params[param];
    const Found found = resolve(param, e);
    if (!p.matrix) {
      const int64_t bytes = inventory.bytes(found.data);
      if (p.storage == Storage::prefix) return {{found.data, 0, bytes}};
      return {{found.data, bytes / found.plane.out * found.first, bytes / found.plane.out * p.shape[0]}};
    }
    ops::WeightView plane = found.plane;
    // Offsets of the row's first bytes, as of a weight at address 0.
    const int64_t first_scale = plane.format == ops::WeightFormat::fp8_block ? found.first / ops::kScaleBlock : found.first;
    const int64_t scale_offset = found.index * plane.scale_bytes() + first_scale * plane.scale_row_bytes();
    const int64_t data_offset = found.index * plane.data_bytes() + found.first * plane.row_bytes();
    plane.out = p.shape[0];
    if (plane.format == ops::WeightFormat::fp8_block) plane.block_row = static_cast<uint8_t>(found.first % ops::kScaleBlock);
    std::vector<StoredPart> parts = {{found.data, data_offset, plane.data_bytes()}};
    if (found.scales != kAbsent) parts.push_back({found.scales, scale_offset, plane.scale_bytes()});
    if (found.biases != kAbsent) parts.push_back({found.biases, scale_offset, plane.bias_bytes()});
    return parts;
  }

  // Ruling R6 for the values of a stored matrix.
  void check_values(size_t param, int64_t e) const {
    const ops::WeightView view = this->view(param, e);
    if (view.scales == nullptr) return;
    const std::vector<StoredPart> stored = parts(param, e);
    const auto place = [&](const StoredPart& part) {
      return fmt::format("{}' in '{}", inventory.name(part.tensor), inventory.file(part.tensor).name);
    };
    const auto first_row = [&](const StoredPart& part, int64_t row_bytes) { return part.begin / row_bytes; };
    const int64_t scale_row = view.scale_row_bytes();
    if (view.format == ops::WeightFormat::mxfp4) {
      check_scales(place(stored[1]), {reinterpret_cast<const uint8_t*>(view.scales), static_cast<size_t>(view.scale_bytes())},
                   scale_row, first_row(stored[1], scale_row));
      return;
    }
    const bool fp8 = view.format == ops::WeightFormat::fp8_block;
    for (size_t i = 1; i < stored.size(); ++i) {
      const std::byte* values = i == 1 ? view.scales : view.biases;
      for (int64_t j = 0; j < stored[i].bytes / view.scale_size(); ++j) {
        const float value = ops::scale_at(view.scale_type, values, j);
        if (std::isfinite(value) && (!fp8 || std::fabs(value) < kMostFp8Scale)) continue;
        const int64_t across = scale_row / view.scale_size();
        fail(ErrorKind::bad_checkpoint, "scales", "'{}', row {}, {} {}: wanted a {}, found {}", place(stored[i]),
             first_row(stored[i], scale_row) + j / across, fp8 ? "block" : "group", j % across,
             fp8 ? "number below 2^120" : "finite number", value);
      }
    }
    if (!fp8) return;
    if (const std::optional<size_t> nan = find_e4m3_nan({view.data, static_cast<size_t>(view.data_bytes())}))
      fail(ErrorKind::bad_checkpoint, "weights", "'{}', row {}, column {}: wanted a number, found an E4M3 code that is NaN",
           place(stored[0]), first_row(stored[0], view.in) + static_cast<int64_t>(*nan) / view.in,
           static_cast<int64_t>(*nan) % view.in);
  }

  [[nodiscard]] const std::array<size_t, 3>& experts(LayerIndex layer, int64_t e) const {
    if (layer.value < 0 || layer.value >= config.layer_count || !config.is_moe(layer) || e < 0 || e >= config.experts)
      fail(ErrorKind::internal, "checkpoint", "no expert {} in layer {}", e, layer);
    return experts_of[static_cast<size_t>(layer.value)];
  }

  [[nodiscard]] Tensor widened(size_t param) const {
    const ParamSpec& p = params[param];
    if (p.matrix || p.storage == Storage::prefix) fail(ErrorKind::internal, "checkpoint", "'{}' is not a plain vector", p.name);
    const Found found = resolve(param, 0);
    const TensorId id = found.data;
    std::vector<int64_t> extents;
    for (const int64_t extent : p.shape.extents())
      if (extent != 1 || p.shape.rank() == 1) extents.push_back(extent);
    if (extents.empty()) extents.push_back(1);
    Tensor tensor = Tensor::uninitialized(DType::f32, Shape(std::span<const int64_t>(extents)));
    const std::span<float> values = tensor.as<float>();
    copy_as_f32(id, found.first * (p.shape.elements() / p.shape[0]), values);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]))
        fail(ErrorKind::bad_checkpoint, (dir / inventory.file(id).name).string(),
             "tensor '{}': wanted finite values, found {} at index {}", inventory.name(id), values[i], i);
    return tensor;
  }

  void copy_as_f32(TensorId id, int64_t first, std::span<float> out) const {
    const std::span<const std::byte> data = bytes(id).subspan(static_cast<size_t>(first * size_of(inventory.dtype(id))));
    if (inventory.dtype(id) == DType::f32) {
      std::memcpy(out.data(), data.data(), out.size_bytes());
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
  Inventory inventory;
  bool mlx = false;  // a conversion of MLX
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
  for (const size_t row : impl_->experts(layer, e)) impl_->check_values(row, e);
}

void Checkpoint::check_matrix(std::string_view name) const {
  const Impl::Place place = impl_->place_of(name);
  const std::vector<StoredPart> parts = impl_->parts(place.param, place.expert);
  if (parts.size() == 1) return;
  std::vector<MappedPart> read;
  const bool codes = impl_->inventory.dtype(parts[0].tensor) == DType::f8_e4m3;
  for (size_t i = codes ? 0 : 1; i < parts.size(); ++i) read.push_back(bytes_of(parts[i]));
  read_mapped(std::move(read));
  impl_->check_values(place.param, place.expert);
}

bool Checkpoint::norms_hold_the_one() const { return impl_->mlx; }

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
      for (int64_t e = 0; e < p.copies; ++e) total += stored_bytes(p, e);
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
  std::vector<TensorId> tensors;
  for (const StoredPart& part : stored_parts(spec, e)) tensors.push_back(part.tensor);
  return tensors;
}

std::vector<StoredPart> Checkpoint::stored_parts(const ParamSpec& spec, int64_t e) const {
  return impl_->parts(impl_->param_index(spec), e);
}

int64_t Checkpoint::stored_bytes(const ParamSpec& spec, int64_t e) const {
  int64_t sum = 0;
  for (const StoredPart& part : stored_parts(spec, e)) sum += part.bytes;
  return sum;
}

std::span<const std::byte> Checkpoint::bytes_of(const StoredPart& part) const {
  return impl_->bytes(part.tensor).subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.bytes));
}

std::span<const std::byte> Checkpoint::bytes_of(TensorId id) const { return impl_->bytes(id); }

}  // namespace weft
