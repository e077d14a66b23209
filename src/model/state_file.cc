#include "model/state_file.h"

#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"

namespace weft {
namespace {

constexpr std::string_view kFormat = "weft-state-1";
constexpr const char* kIds = "ids";

int64_t to_number(const std::string& text, std::string_view key, const std::filesystem::path& path) {
  int64_t value = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0 || std::to_string(value) != text) {
    fail(ErrorKind::bad_input, path.string(), "metadata '{}': wanted a number, found '{}'", key, text);
  }
  return value;
}

// Refuses a tensor that belongs to no layer: a file with more than the state is not what was saved.
void require_layer(const std::string& name, int64_t layer_count, const std::filesystem::path& path) {
  constexpr std::string_view kPrefix = "layers.";
  int64_t layer = -1;
  const char* const end = name.data() + name.size();
  if (name.starts_with(kPrefix)) {
    const auto [rest, code] = std::from_chars(name.data() + kPrefix.size(), end, layer);
    if (code == std::errc() && rest != end && *rest == '.' && layer >= 0 && layer < layer_count) return;
  }
  fail(ErrorKind::bad_input, path.string(), "wanted tensors 'layers.N.NAME' with N in [0, {}), found '{}'", layer_count, name);
}

StateFileHeader header_of(const SafetensorsFile& file) {
  const std::filesystem::path& path = file.path();
  const SafetensorsMetadata& metadata = file.header().metadata();
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto at = metadata.find(key);
    if (at == metadata.end())
      fail(ErrorKind::bad_input, path.string(), "wanted a state file with metadata '{}', found none", key);
    return at->second;
  };
  if (text("format") != kFormat) {
    fail(ErrorKind::bad_input, path.string(), "wanted format '{}', found '{}'", kFormat, text("format"));
  }
  StateFileHeader header;
  header.fingerprint = text("fingerprint");
  header.consumed = TokenCount(to_number(text("consumed"), "consumed", path));
  header.layer_count = to_number(text("layer_count"), "layer_count", path);
  if (const TensorEntry* entry = file.find(kIds)) {
    if (entry->dtype != DType::i32 || !(entry->shape == Shape{header.consumed.value})) {
      fail(ErrorKind::bad_input, path.string(), "tensor '{}': wanted I32 [{}], found {} {}", kIds, header.consumed,
           entry->dtype, entry->shape);
    }
    const Tensor ids = file.read(*entry);
    const std::span<const int32_t> values = ids.as<int32_t>();
    header.ids.assign(values.begin(), values.end());
  }
  return header;
}

}  // namespace

void write_state_file(const std::filesystem::path& path, const StateFileHeader& header, const SequenceState::Tensors& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype(), tensor.shape()});
  if (!header.ids.empty()) specs.push_back({kIds, DType::i32, {static_cast<int64_t>(header.ids.size())}});
  SafetensorsWriter writer(path, std::move(specs),
                           {{"format", std::string(kFormat)},
                            {"fingerprint", header.fingerprint},
                            {"consumed", std::to_string(header.consumed.value)},
                            {"layer_count", std::to_string(header.layer_count)}});
  for (const TensorEntry& entry : writer.entries()) {
    if (entry.name == kIds) {
      writer.append(kIds, std::as_bytes(std::span(header.ids)));
      continue;
    }
    const Tensor& tensor = tensors.at(entry.name);
    writer.append(entry.name, {tensor.view().data, static_cast<size_t>(tensor.bytes())});
  }
  writer.finish();
}

StateFileHeader read_state_header(const std::filesystem::path& path) {
  return header_of(SafetensorsFile(path, ErrorKind::bad_input));
}

StateFile::StateFile(const std::filesystem::path& path) : path_(path) {
  const SafetensorsFile file(path, ErrorKind::bad_input);
  header_ = header_of(file);
  for (const TensorEntry& entry : file.entries()) {
    if (entry.name == kIds) continue;
    require_layer(entry.name, header_.layer_count, path);
    Tensor tensor = file.read(entry);
    if (tensor.dtype() == DType::f32) {
      const auto values = std::as_const(tensor).as<float>();
      for (size_t i = 0; i < values.size(); ++i) {
        if (!std::isfinite(values[i])) {
          fail(ErrorKind::bad_input, path.string(), "tensor '{}': wanted finite values, found {} at index {}", entry.name,
               values[i], i);
        }
      }
    }
    views_.emplace(entry.name, tensor.view());
    tensors_.emplace(entry.name, std::move(tensor));
  }
}

void StateFileHeader::require(const std::string& model_fingerprint, int64_t model_layers,
                              const std::filesystem::path& path) const {
  if (layer_count != model_layers) {
    fail(ErrorKind::bad_input, path.string(), "wanted the state of a model of {} layers, found {}", model_layers, layer_count);
  }
  if (fingerprint != model_fingerprint) {
    fail(ErrorKind::bad_input, path.string(), "wanted the state of model {}, found that of model {}", model_fingerprint,
         fingerprint);
  }
}

}  // namespace weft
