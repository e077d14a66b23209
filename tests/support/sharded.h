// Checkpoints written again with their tensors in other files, as published ones have each layer in a file of its own.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/safetensors.h"
#include "formats/shard_index.h"

namespace weft::testing_support {

// "layer-003.safetensors", "embed.safetensors", "vision.safetensors", "head.safetensors": final norm, output mix and head.
inline std::string shard_name(const std::string& tensor) {
  constexpr std::string_view kLayers = "layers.";
  if (const size_t at = tensor.find(kLayers); at != std::string::npos)
    return fmt::format("layer-{:03}.safetensors", std::stoi(tensor.substr(at + kLayers.size())));
  if (tensor.find("embed_tokens") != std::string::npos) return "embed.safetensors";
  if (tensor.find("vision") != std::string::npos || tensor.find("mm_projector") != std::string::npos)
    return "vision.safetensors";
  return "head.safetensors";
}

struct Resharding {
  std::function<std::string(const std::string& tensor)> file_of = shard_name;
  std::function<std::string(const std::string& tensor)> name_of = [](const std::string& tensor) {
    return tensor;
  };  // empty: left out
  std::function<void(TensorSpec& spec, std::vector<std::byte>& bytes)> change;  // of each tensor; absent: none
  bool index = true;
};

// Writes the model in `from` (config.json and model*.safetensors) to `to`, which is created.
inline void write_sharded(const std::filesystem::path& from, const std::filesystem::path& to, const Resharding& how = {}) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(from / "config.json", to / "config.json");
  struct Stored {
    std::filesystem::path file;
    TensorEntry entry;
  };
  std::map<std::string, std::map<std::string, Stored>> files;  // new file -> new name -> where it is now
  Json weight_map = Json::object();
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const TensorEntry& tensor : file.entries()) {
      const std::string to_name = how.name_of(tensor.name);
      if (!to_name.empty()) files[how.file_of(tensor.name)][to_name] = {entry.path(), tensor};
    }
  }
  for (const auto& [file, tensors] : files) {
    std::vector<TensorSpec> specs;
    std::vector<std::vector<std::byte>> data;
    for (const auto& [name, stored] : tensors) {
      const SafetensorsFile source(stored.file);
      const std::span<const std::byte> bytes = source.bytes(stored.entry);
      specs.push_back({name, stored.entry.dtype, stored.entry.shape});
      data.emplace_back(bytes.begin(), bytes.end());
      if (how.change) how.change(specs.back(), data.back());
      weight_map[name] = file;
    }
    SafetensorsWriter writer(to / file, specs);
    for (size_t i = 0; i < specs.size(); ++i) writer.append(specs[i].name, data[i]);
    writer.finish();
  }
  if (how.index) std::ofstream(to / kShardIndexName) << Json{{"metadata", Json::object()}, {"weight_map", weight_map}}.dump(1);
}

// Copies config.json, the index and `shards` alone: what the machine of one stage has.
inline void copy_part(const std::filesystem::path& from, const std::filesystem::path& to, const std::set<std::string>& shards) {
  std::filesystem::create_directories(to);
  for (const std::string& name : {std::string("config.json"), std::string(kShardIndexName)})
    std::filesystem::copy_file(from / name, to / name);
  for (const std::string& name : shards) std::filesystem::copy_file(from / name, to / name);
}

}  // namespace weft::testing_support
