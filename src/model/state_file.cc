#include "model/state_file.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"

namespace weft {
namespace {

constexpr std::string_view kFormat = "weft-state-1";

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

}  // namespace

void write_state_file(const std::filesystem::path& path, const StateFileHeader& header, const SequenceState::Tensors& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(path, std::move(specs),
                           {{"format", std::string(kFormat)},
                            {"fingerprint", header.fingerprint},
                            {"consumed", std::to_string(header.consumed.value)},
                            {"layer_count", std::to_string(header.layer_count)}});
  for (const TensorEntry& entry : writer.entries()) {
    const Tensor& tensor = tensors.at(entry.name);
    writer.append(entry.name, {tensor.view().data, static_cast<size_t>(tensor.bytes())});
  }
  writer.finish();
}

StateFile::StateFile(const std::filesystem::path& path) : path_(path) {
  const SafetensorsFile file(path, ErrorKind::bad_input);
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
  header_.fingerprint = text("fingerprint");
  header_.consumed = TokenCount(to_number(text("consumed"), "consumed", path));
  header_.layer_count = to_number(text("layer_count"), "layer_count", path);
  for (const TensorEntry& entry : file.entries()) {
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

void StateFile::require(const std::string& fingerprint, int64_t layer_count) const {
  if (header_.layer_count != layer_count) {
    fail(ErrorKind::bad_input, path_.string(), "wanted the state of a model of {} layers, found {}", layer_count,
         header_.layer_count);
  }
  if (header_.fingerprint != fingerprint) {
    fail(ErrorKind::bad_input, path_.string(), "wanted the state of model {}, found that of model {}", fingerprint,
         header_.fingerprint);
  }
}

}  // namespace weft
