// The stored tensors of a row of the parameter table, found and checked from headers alone.
#include "formats/mx.h"
#include "model/checkpoint_impl.h"

namespace weft {
namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

// The type of scales; nothing for another type.
std::optional<ops::ScaleType> scale_type_of(DType dtype) {
  if (dtype == DType::bf16) return ops::ScaleType::bf16;
  if (dtype == DType::f32) return ops::ScaleType::f32;
  if (dtype == DType::f16) return ops::ScaleType::f16;
  return std::nullopt;
}

}  // namespace

void Checkpoint::Impl::wrong(TensorId id, std::string_view wanted) const {
  fail(ErrorKind::bad_checkpoint, (dir / inventory.file(id).name).string(), "tensor '{}': wanted {}, found {} {}",
       inventory.name(id), wanted, inventory.dtype(id), inventory.shape(id));
}

void Checkpoint::Impl::missing(const ParamSpec& p, int64_t e) const {
  const bool pair = p.copies > 1 && kind == QuantizationKind::compressed_tensors;
  const std::string what = full_name(p, e) + (pair ? "_packed" : "");
  if (!owns(layers, p))
    fail(ErrorKind::internal, "checkpoint", "tensor '{}': not of layers {} to {}, which alone were opened", what, layers.begin,
         layers.end);
  const std::string_view where = by_index ? "the index" : "every file";
  if (p.copies > 1)
    fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': missing in {}, wanted {} experts, found none of index {}", what,
         where, p.copies, e);
  fail(ErrorKind::bad_checkpoint, dir.string(), "tensor '{}': missing in {}, wanted {} {}", what, where, p.dtype, p.shape);
}

Checkpoint::Impl::Found Checkpoint::Impl::resolve(size_t param, int64_t e) const {
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

void Checkpoint::Impl::orphan(TensorId id, std::string_view name, std::string_view of) const {
  fail(ErrorKind::bad_checkpoint, file_of(id), "tensor '{}': orphan scale, no '{}'", name, of);
}

void Checkpoint::Impl::resolve_pair(size_t param, int64_t e, Found& found) const {
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

void Checkpoint::Impl::resolve_fp8(size_t param, const Slot& s, Found& found) const {
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

void Checkpoint::Impl::resolve_mlx(size_t param, const Slot& s, Found& found) const {
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

std::string Checkpoint::Impl::module_of(TensorId id) const {
  std::string_view name = inventory.name(id);
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return std::string(name);
}

// The extents of a tensor that holds planes of these, or one matrix; MLX gives the heads of a matrix an axis of their own.
void Checkpoint::Impl::check_stored(size_t param, TensorId id, DType dtype, const Shape& plane) const {
  const Shape& shape = inventory.shape(id);
  const bool planes = rows[param].planes;
  const Shape wanted = planes ? Shape{params[param].copies, plane[0], plane[1]} : plane;
  const bool by_head = mlx && !planes && shape.rank() == 3 && shape[0] * shape[1] == plane[0] && shape[2] == plane[1];
  if (inventory.dtype(id) != dtype || !(shape == wanted || by_head)) wrong(id, fmt::format("{} {}", dtype, wanted));
}

void Checkpoint::Impl::check_plain(size_t param, TensorId id) const {
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

std::vector<StoredPart> Checkpoint::Impl::parts(size_t param, int64_t e) const {
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

}  // namespace weft
