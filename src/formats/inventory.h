// Everything a checkpoint folder stores, from the headers of its files alone.
//
// Compact on purpose: half a million tensors take about 80 MB. Names are as stored; what they mean is the model's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/name_table.h"
#include "formats/safetensors.h"
#include "formats/shard_index.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace weft {

using TensorId = uint32_t;  // dense, 0 .. size() - 1: by file, then by place in the file

struct InventoryFile {
  std::string name;         // inside the folder
  int64_t size = 0;         // bytes
  int64_t header_size = 0;  // bytes before the data, length field included
  int64_t tensors = 0;
};

struct DTypeTotal {
  DType dtype = DType::f32;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct InventoryOptions {
  bool rebuild_index = false;  // ignore the index and take every *.safetensors file of the folder
  int threads = 2;             // that read headers
};

class Inventory {
 public:
  // Reads the index, if there is one, and the header of every file it names; without an index the header of every *.safetensors
  // file in the folder. Files that an index does not name are left alone. Throws bad_checkpoint for a folder without any such
  // file, files that the index names and the folder lacks (all are listed), a faulty header, a tensor stored in two files, and
  // an index that disagrees with the headers (the first differing tensor and its files are named).
  [[nodiscard]] static Inventory scan(const std::filesystem::path& folder, const InventoryOptions& options = {});

  // A part of the checkpoint: the tensors of `index`, which is the folder's own, for which `wanted` [index.size()] is true.
  // Reads the headers of the files that hold one of them; no other file needs to be there, and none is opened. Throws
  // bad_checkpoint for absent files of those, a faulty header, and where the index disagrees with these headers in any tensor,
  // wanted or not.
  [[nodiscard]] static Inventory scan_part(const std::filesystem::path& folder, const ShardIndex& index,
                                           const std::vector<bool>& wanted, int threads = InventoryOptions().threads);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] bool has_index() const { return has_index_; }
  [[nodiscard]] std::optional<int64_t> index_total_size() const { return index_total_size_; }       // as the index states it
  [[nodiscard]] const std::vector<std::string>& unlisted_files() const { return unlisted_files_; }  // not in the index

  [[nodiscard]] TensorId size() const { return static_cast<TensorId>(records_.size()); }
  [[nodiscard]] std::optional<TensorId> find(std::string_view name) const { return names_.find(name); }
  [[nodiscard]] std::string_view name(TensorId id) const { return names_[id]; }  // valid as long as the inventory
  [[nodiscard]] DType dtype(TensorId id) const { return records_[id].dtype; }
  [[nodiscard]] const Shape& shape(TensorId id) const { return shapes_[records_[id].shape]; }
  [[nodiscard]] uint32_t file_index(TensorId id) const { return records_[id].file; }
  [[nodiscard]] const InventoryFile& file(TensorId id) const { return files_[records_[id].file]; }
  [[nodiscard]] int64_t begin(TensorId id) const { return records_[id].begin; }  // offset in its file
  [[nodiscard]] int64_t bytes(TensorId id) const;
  [[nodiscard]] TensorEntry entry(TensorId id) const;

  [[nodiscard]] const std::vector<InventoryFile>& files() const { return files_; }  // whose headers were read, sorted by name
  [[nodiscard]] std::filesystem::path path_of(uint32_t file_index) const { return folder_ / files_[file_index].name; }
  [[nodiscard]] std::vector<DTypeTotal> by_dtype() const;  // only those that occur, in the order of DType
  [[nodiscard]] int64_t data_bytes() const;                // of all tensors
  [[nodiscard]] int64_t file_bytes() const;                // of all files, headers included

 private:
  struct Record {
    int64_t begin;
    uint32_t shape;
    uint16_t file;
    DType dtype;
  };

  void set_files(std::vector<std::string> names);
  // Calls `use` with each file's header, in the order of the files.
  void read_headers(int threads, const std::function<void(uint32_t file_index, const SafetensorsHeader& header)>& use);
  void add(uint32_t file_index, const TensorEntry& entry);
  uint32_t intern(const Shape& shape);

  std::filesystem::path folder_;
  bool has_index_ = false;
  std::optional<int64_t> index_total_size_;
  std::vector<std::string> unlisted_files_;
  std::vector<InventoryFile> files_;
  NameTable names_;
  std::vector<Record> records_;
  std::vector<Shape> shapes_;  // distinct
  NameTable shape_keys_;       // the extents' bytes; ids are indices into shapes_
};

}  // namespace weft
