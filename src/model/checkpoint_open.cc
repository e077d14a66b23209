// Opening a checkpoint, or the part of it that a stage needs. What the files are (a conversion of MLX, packed or plain, with a
// tied head) is decided from the configuration and the names of the whole checkpoint, so that all stages decide alike
// (distributed.md 4.1).
#include <algorithm>
#include <charconv>

#include "formats/packed.h"
#include "model/checkpoint_impl.h"

namespace weft {

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

Checkpoint::Impl::Impl(const std::filesystem::path& folder, const CheckpointOptions& options)
    : dir(folder),
      json(read_json_file(folder / "config.json")),
      shared_config(parse_model_config(json, (folder / "config.json").string())),
      config(*shared_config),
      layers(options.layers.value_or(config.all_layers())) {
  check_layers();
  std::optional<ShardIndex> index;
  std::error_code error;
  if (options.layers && !options.rebuild_index && std::filesystem::exists(dir / kShardIndexName, error)) {
    index = ShardIndex::load(dir / kShardIndexName);
    by_index = true;
    inventory = Inventory::scan_part(dir, *index, wanted_of(*index));
  } else {
    inventory = Inventory::scan(dir, {.rebuild_index = options.rebuild_index});
  }
  maps = std::vector<Mapping>(inventory.files().size());
  used = std::vector<std::atomic<bool>>(inventory.size());
  const WholeNames names(inventory, index ? &*index : nullptr);
  mlx = decide_mlx(names);
  const auto stores = [&](std::string_view canonical) {
    for (uint32_t i = 0; i < names.size(); ++i)
      if (config.canonical_name(names[i]) == canonical) return true;
    return false;
  };
  params = mlx ? config.mlx_params(stores) : config.params();
  refuse_foreign_method(config.quantization, (dir / "config.json").string());  // whose tensors have names of their own
  index_params();
  claim_tensors(names, options);
  check_quantization(names);
  write_notes();
}

void Checkpoint::Impl::check_layers() const {
  if (layers.begin.value < 0 || layers.size() < 1 || layers.end.value > config.layer_count)
    fail(ErrorKind::bad_input, "checkpoint", "layers {} to {}: wanted a range inside 0 to {}", layers.begin, layers.end,
         config.layer_count);
}

bool Checkpoint::Impl::owns(LayerRange range, const ParamSpec& spec) const {
  const bool last = range.end.value == config.layer_count;
  switch (spec.owner) {
    case Owner::first: return range.begin.value == 0 || (last && config.tie_word_embeddings);
    case Owner::layer: return range.contains(spec.layer);
    case Owner::last: return last;
  }
  return false;
}

// Which tensors of the index the opened layers own.
std::vector<bool> Checkpoint::Impl::wanted_of(const ShardIndex& index) const {
  std::unordered_map<std::string, bool> of_model;  // rows of no layer
  for (const ParamSpec& p : config.params())
    if (p.owner != Owner::layer) of_model.emplace(p.name, owns(layers, p));
  std::vector<bool> wanted(index.size());
  for (uint32_t i = 0; i < index.size(); ++i) {
    const std::string name = config.canonical_name(index.name(i));
    if (not_loaded(name)) continue;
    if (const std::optional<int64_t> layer = layer_number(name)) {
      wanted[i] = layers.contains(LayerIndex(*layer));
    } else if (const auto found = of_model.find(split(name).first); found != of_model.end()) {
      wanted[i] = found->second;
    }
  }
  return wanted;
}

// What is not loaded decides nothing.
bool Checkpoint::Impl::may_decide(std::string_view stored) const {
  const std::string name = config.canonical_name(stored);
  const std::optional<int64_t> layer = layer_number(name);
  const bool loaded = layer ? *layer < config.layer_count : name == "lm_head.scales" || name == "model.embed_tokens.scales";
  return loaded && !config.is_vision(name) && !config.is_mtp(name);
}

// Whether these are the files of a conversion of MLX (Qwen3-Next spec 2.3): quantized modules and stacked experts have names of
// their own, in one layer as in all. Where no name tells, as in a plain conversion without experts, the convolutions do: those
// of a conversion are [P, Kc, 1].
bool Checkpoint::Impl::decide_mlx(const WholeNames& names) const {
  bool published = false;
  for (uint32_t i = 0; i < names.size(); ++i) {
    const std::string_view stored = names[i];
    if (stored.ends_with(".scales") || stored.find(".switch_mlp.") != std::string_view::npos) {
      if (may_decide(stored)) return true;
    } else if (!published && stored.find(".experts.") != std::string_view::npos) {
      published = may_decide(stored);
    }
  }
  return !published && mlx_by_convolutions();
}

bool Checkpoint::Impl::mlx_by_convolutions() const {
  bool seen = false;
  for (TensorId id = 0; id < inventory.size(); ++id) {
    const std::string_view stored = inventory.name(id);
    const Shape& shape = inventory.shape(id);
    if (!stored.ends_with("conv1d.weight") && !stored.ends_with(".conv.weight")) continue;
    if (shape.rank() != 3 || !may_decide(stored)) continue;
    if (shape[1] > 1 && shape[2] == 1) return true;
    seen = true;
  }
  if (!seen && by_index)
    fail(ErrorKind::unsupported, dir.string(),
         "layers {} to {}: no name in the index tells the published files from a conversion of MLX, which stores convolutions "
         "and "
         "norms otherwise; wanted a layer with a convolution among them, found none; give the stage a further layer",
         layers.begin, layers.end);
  return false;
}

void Checkpoint::Impl::index_params() {
  first_slot.reserve(params.size());
  size_t slots_needed = 0;
  experts_of.assign(static_cast<size_t>(config.layer_count), {});
  for (size_t i = 0; i < params.size(); ++i) {
    by_name.emplace(params[i].name, i);
    first_slot.push_back(slots_needed);
    slots_needed += static_cast<size_t>(params[i].copies);
    constexpr std::string_view kExpert = "moe.expert.w";
    if (params[i].role.starts_with(kExpert))
      experts_of[static_cast<size_t>(params[i].layer.value)].at(static_cast<size_t>(params[i].role[kExpert.size()] - '1')) = i;
  }
  slots.assign(slots_needed, kEmptySlot);
  rows.resize(params.size());
  for (JoinedTensor& joined : config.joined_tensors()) {
    std::string name = joined.name;
    joined_by_name.emplace(std::move(name), std::move(joined));
  }
}

std::optional<Checkpoint::Impl::NotLoaded> Checkpoint::Impl::not_loaded(std::string_view canonical) const {
  if (config.is_vision(canonical)) return vision;
  if (config.is_mtp(canonical)) return mtp;
  if (const std::optional<int64_t> layer = layer_number(canonical); layer && *layer >= config.layer_count) return higher_layers;
  if (canonical.ends_with(".rotary_emb.inv_freq")) return rotary_tables;
  if (config.tie_word_embeddings && split(canonical).first == "lm_head.weight") return tied_head;
  return std::nullopt;
}

std::pair<std::string, Checkpoint::Impl::Part> Checkpoint::Impl::split(std::string_view name) {
  using namespace std::string_view_literals;
  for (const auto& [suffix, part] : {std::pair{"_packed"sv, packed}, {"_scale"sv, scale}, {"_scale_inv"sv, scale_inv}})
    if (name.ends_with(suffix)) return {std::string(name.substr(0, name.size() - suffix.size())), part};
  for (const auto& [suffix, part] : {std::pair{".scales"sv, scales}, {".biases"sv, biases}})
    if (name.ends_with(suffix)) return {std::string(name.substr(0, name.size() - suffix.size())) + ".weight", part};
  return {std::string(name), plain};
}

std::optional<Checkpoint::Impl::Place> Checkpoint::Impl::locate(std::string_view name) const {
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

// Every name must be known, those of the layers that are not opened too; what is opened takes its slot.
void Checkpoint::Impl::claim_tensors(const WholeNames& names, const CheckpointOptions& options) {
  std::string_view first_unknown;
  int64_t unknown_tensors = 0;
  for (uint32_t i = 0; i < names.size(); ++i) {
    const std::string name = config.canonical_name(names[i]);
    if (const std::optional<NotLoaded> why = not_loaded(name)) {
      ++not_loaded_tensors[*why];
      continue;
    }
    const std::optional<TensorId> id = names.id(i);
    if (const std::optional<Place> place = locate(name)) {
      if (id) claim(slot(place->param, place->expert)[place->part], *id, name);
    } else if (!claim_joined(name, id) && unknown_tensors++ == 0) {
      first_unknown = names[i];
    }
  }
  if (unknown_tensors > 0 && !options.allow_unknown_tensors)
    fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': unknown to {} ({} unknown tensors in all)", first_unknown,
         config.model_type, unknown_tensors);
  if (unknown_tensors > 0)
    unknown_note = fmt::format("{} unknown tensors are ignored, the first is '{}'", unknown_tensors, first_unknown);
}

void Checkpoint::Impl::claim(TensorId& slot, TensorId id, std::string_view name) const {
  if (slot != kAbsent)
    fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': wanted one tensor, found '{}' in {} and '{}' in {}", name,
         inventory.name(slot), inventory.file(slot).name, inventory.name(id), inventory.file(id).name);
  slot = id;
}

bool Checkpoint::Impl::claim_joined(std::string_view name, std::optional<TensorId> id) {
  const auto [key, part] = split(name);
  const auto found = joined_by_name.find(key);
  if (found == joined_by_name.end()) return false;
  if (!id) return true;
  const JoinedTensor& joined = found->second;
  int64_t first = 0;
  int64_t all = 0;
  for (const std::string& row : joined.rows) all += params[by_name.at(row)].shape[0];
  for (const std::string& row : joined.rows) {
    const size_t param = by_name.at(row);
    rows[param] = {joined.planes, first, all};
    first += params[param].shape[0];
    for (int64_t e = 0; e < params[param].copies; ++e) claim(slot(param, e)[part], *id, name);
  }
  return true;
}

// Pairs first, so that a half of one is named before the configuration is blamed.
void Checkpoint::Impl::check_quantization(const WholeNames& names) {
  const std::string place = (dir / "config.json").string();
  kind = quantization_kind(json, place);
  if (kind == QuantizationKind::fp8) fp8_rules.emplace(json, place);
  if (kind == QuantizationKind::mlx) mlx_rules.emplace(json, place);
  (void)PackedTensors(inventory);
  PackedNames packed_names;
  for (uint32_t i = 0; i < names.size(); ++i) packed_names.add(names[i]);
  if (kind == QuantizationKind::none || kind == QuantizationKind::compressed_tensors) {
    check_packed_against_config(packed_names, json, place, [&](std::string_view module) { return is_linear(module); });
  } else if (!packed_names.packed.empty()) {
    fail(ErrorKind::bad_checkpoint, place,
         "wanted \"quant_method\": \"compressed-tensors\" for the packed tensor '{}', found {}", packed_names.packed.front(),
         kind == QuantizationKind::fp8 ? "\"fp8\"" : "MLX's 'quantization'");
  }
}

// Whether a stored module is a Linear of the published module tree. Those that are not loaded may be what they like.
bool Checkpoint::Impl::is_linear(std::string_view module) const {
  const std::string name = config.canonical_name(std::string(module) + ".weight");
  if (config.is_vision(name) || config.is_mtp(name)) return true;
  if (const std::optional<int64_t> layer = layer_number(name); layer && *layer >= config.layer_count) return true;
  const std::optional<Place> place = locate(name);
  return !place || params[place->param].storage == Storage::packed;
}

void Checkpoint::Impl::write_notes() {
  const auto& count = not_loaded_tensors;
  notes = config.notes;
  if (count[higher_layers] > 0) {
    const std::string tail = fmt::format("{} tensors of layers above it are ignored", count[higher_layers]);
    // One note for a truncated copy (ruling R3): the configuration's, if it made one, goes on.
    if (config.listed_layers > config.layer_count)
      notes.back() = fmt::format("num_hidden_layers is {}: entries of the layer lists up to {} and {}", config.layer_count,
                                 config.listed_layers, tail);
    else
      notes.push_back(fmt::format("num_hidden_layers is {}: {}", config.layer_count, tail));
  }
  if (count[vision] > 0)
    notes.push_back(fmt::format("{} tensors of the vision tower and projector are not loaded", count[vision]));
  if (count[mtp] > 0) notes.push_back(fmt::format("{} tensors of multi-token prediction are not loaded", count[mtp]));
  if (count[rotary_tables] > 0) notes.push_back(fmt::format("{} rotary tables are not loaded", count[rotary_tables]));
  if (count[tied_head] > 0) notes.emplace_back("lm_head.weight is not loaded: the embeddings are tied");
  if (!unknown_note.empty()) notes.push_back(unknown_note);
  if (const std::vector<std::string>& files = inventory.unlisted_files(); !files.empty()) {
    notes.push_back(fmt::format("{} .safetensors files are not in the index and not loaded: {}{}", files.size(), files[0],
                                files.size() > 1 ? ", ..." : ""));
  }
  if (const auto stated = inventory.index_total_size(); stated && !by_index && *stated != inventory.data_bytes()) {
    notes.push_back(fmt::format("the index states {} bytes of tensors, the files hold {}", *stated, inventory.data_bytes()));
  }
}

}  // namespace weft
