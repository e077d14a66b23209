#include "model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/pages.h"
#include "formats/logical_prefix.h"
#include "formats/mapped_reader.h"
#include "formats/mx.h"
#include "formats/packed.h"
#include "model/checkpoint_impl.h"
#include "ops/weight_decode.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr float kMostFp8Scale = 0x1p120F;  // weight.h

}  // namespace

size_t Checkpoint::Impl::param_index(const ParamSpec& p) const {
  const auto found = by_name.find(p.name);
  if (found == by_name.end()) fail(ErrorKind::internal, "checkpoint", "no tensor '{}' in the parameter table", p.name);
  return found->second;
}

Checkpoint::Impl::Place Checkpoint::Impl::place_of(std::string_view name) const {
  const std::optional<Place> place = locate(name);
  if (!place || place->part != plain) fail(ErrorKind::internal, "checkpoint", "no tensor '{}' in the parameter table", name);
  return *place;
}

std::span<const std::byte> Checkpoint::Impl::bytes(TensorId id) const {
  const uint32_t file = inventory.file_index(id);
  Mapping& mapping = maps[file];
  std::call_once(mapping.once, [&] {
    mapping.file = std::make_unique<MappedFile>(inventory.path_of(file));
    const auto size = static_cast<int64_t>(mapping.file->bytes().size());
    if (size != inventory.files()[file].size)
      fail(ErrorKind::bad_checkpoint, inventory.path_of(file).string(), "wanted {} bytes as when its header was read, found {}",
           inventory.files()[file].size, size);
    read_pages_singly(mapping.file->bytes());
    mapped_shards.fetch_add(1);
    mapped_bytes.fetch_add(size);
    mapping.ready.store(mapping.file.get());
  });
  if (!used[id].load(std::memory_order_relaxed)) used[id].store(true, std::memory_order_relaxed);
  return mapping.file->bytes().subspan(static_cast<size_t>(inventory.begin(id)), static_cast<size_t>(inventory.bytes(id)));
}

ops::WeightView Checkpoint::Impl::view(size_t param, int64_t e) const {
  const ParamSpec& p = params[param];
  if (!p.matrix) fail(ErrorKind::internal, "checkpoint", "'{}' is not a matrix", p.name);
  const Found found = resolve(param, e);
  ops::WeightView view = found.plane;
  view.data = bytes(found.data).data() + found.index * view.data_bytes();
  if (found.scales != kAbsent) view.scales = bytes(found.scales).data() + found.index * view.scale_bytes();
  if (found.biases != kAbsent) view.biases = bytes(found.biases).data() + found.index * view.bias_bytes();
  return view.out == p.shape[0] ? view : view.rows(found.first, found.first + p.shape[0]);
}

void Checkpoint::Impl::check_values(size_t param, int64_t e) const {
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

const std::array<size_t, 3>& Checkpoint::Impl::experts(LayerIndex layer, int64_t e) const {
  if (layer.value < 0 || layer.value >= config.layer_count || !config.is_moe(layer) || e < 0 || e >= config.experts)
    fail(ErrorKind::internal, "checkpoint", "no expert {} in layer {}", e, layer);
  return experts_of[static_cast<size_t>(layer.value)];
}

Tensor Checkpoint::Impl::widened(size_t param) const {
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

void Checkpoint::Impl::copy_as_f32(TensorId id, int64_t first, std::span<float> out) const {
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
LayerRange Checkpoint::layers() const { return impl_->layers; }
bool Checkpoint::is_partial() const { return impl_->is_partial(); }

bool Checkpoint::owns(LayerRange range, const ParamSpec& spec) const { return impl_->owns(range, spec); }

void Checkpoint::require(LayerRange range) const {
  if (range.size() < 1 || range.begin < impl_->layers.begin || range.end > impl_->layers.end)
    fail(ErrorKind::bad_input, "checkpoint", "layers {} to {}: wanted a range inside {} to {}", range.begin, range.end,
         impl_->layers.begin, impl_->layers.end);
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
  const Impl::Slot& slot = impl_->slot(place->param, place->expert);
  return slot[Impl::plain] != Impl::kAbsent || slot[Impl::packed] != Impl::kAbsent;
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

std::vector<uint32_t> Checkpoint::model_shards() const {
  std::set<uint32_t> shards;
  for (size_t i = 0; i < impl_->params.size(); ++i) {
    if (!owns(impl_->layers, impl_->params[i])) continue;
    for (int64_t e = 0; e < impl_->params[i].copies; ++e)
      for (const TensorId id : impl_->slot(i, e))
        if (id != Impl::kAbsent) shards.insert(impl_->inventory.file_index(id));
  }
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
