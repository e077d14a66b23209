// model.safetensors.index.json: which tensor lies in which file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/name_table.h"

namespace weft {

inline constexpr std::string_view kShardIndexName = "model.safetensors.index.json";
inline constexpr int64_t kMaxShardIndexBytes = 256LL << 20;  // the published index of 497,220 tensors has about 60 MB

class ShardIndex {
 public:
  // Reads and parses an index file. Throws bad_checkpoint naming the file for: anything that is not JSON, nesting deeper than
  // kMaxJsonDepth, no or an empty weight_map, a tensor or a key of the top level that stands twice, a file name that is not a
  // string, is empty or holds '/', '\', '..' or a zero byte, and a metadata.total_size that is not a whole number.
  [[nodiscard]] static ShardIndex load(const std::filesystem::path& path);
  // The same for bytes in memory; `place` stands for the file in messages.
  [[nodiscard]] static ShardIndex parse(std::span<const std::byte> bytes, std::string_view place);

  // Tensors have ids 0 .. size() - 1 in the order of the index, files likewise in the order of their first tensor.
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(tensors_.size()); }
  [[nodiscard]] std::string_view name(uint32_t tensor) const { return tensors_[tensor]; }
  [[nodiscard]] uint32_t file_of(uint32_t tensor) const { return file_of_[tensor]; }
  [[nodiscard]] std::optional<uint32_t> find(std::string_view name) const { return tensors_.find(name); }
  [[nodiscard]] size_t name_bytes() const { return tensors_.text_bytes(); }
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  [[nodiscard]] std::optional<int64_t> total_size() const { return total_size_; }  // metadata.total_size, as stated there

 private:
  friend class ShardIndexParser;

  NameTable tensors_;
  std::vector<uint32_t> file_of_;
  std::vector<std::string> files_;
  std::optional<int64_t> total_size_;
};

// Why `name` may not be the name of a file of a checkpoint, or nothing.
[[nodiscard]] std::optional<std::string> refused_file_name(std::string_view name);

}  // namespace weft
