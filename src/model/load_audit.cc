// What was read of a checkpoint (distributed.md 4.4).
#include <algorithm>

#include "model/checkpoint_impl.h"

namespace weft {

void Checkpoint::note_read(uint32_t file, int64_t begin, int64_t end) const {
  const std::scoped_lock lock(impl_->reads_mutex);
  impl_->other_reads.push_back({file, begin, end});
}

std::vector<FileReads> Checkpoint::reads() const {
  const Inventory& inventory = impl_->inventory;
  std::vector<FileReads> files;
  for (const InventoryFile& file : inventory.files()) files.push_back({file.name, file.size, {{0, file.header_size}}});
  for (TensorId id = 0; id < inventory.size(); ++id)
    if (impl_->used[id].load(std::memory_order_relaxed) && inventory.bytes(id) > 0)
      files[inventory.file_index(id)].ranges.push_back({inventory.begin(id), inventory.begin(id) + inventory.bytes(id)});
  {
    const std::scoped_lock lock(impl_->reads_mutex);
    for (const Impl::Read& read : impl_->other_reads) files[read.file].ranges.push_back({read.begin, read.end});
  }
  for (FileReads& file : files) {
    std::ranges::sort(file.ranges, {}, &ByteRange::begin);
    std::vector<ByteRange> joined;
    for (const ByteRange& range : file.ranges) {
      if (!joined.empty() && range.begin <= joined.back().end) {
        joined.back().end = std::max(joined.back().end, range.end);
      } else {
        joined.push_back(range);
      }
    }
    file.ranges = std::move(joined);
  }
  return files;
}

ByteCount Checkpoint::bytes_read() const {
  ByteCount total;
  for (const FileReads& file : reads()) total += file.bytes();
  return total;
}

Json Checkpoint::load_audit() const {
  const std::vector<FileReads> shards = reads();
  std::vector<FileReads> files;
  const auto whole = [&](std::string_view name) {
    const int64_t size = ReadFile(impl_->dir / name).size();
    files.push_back({std::string(name), size, {{0, size}}});
  };
  whole("config.json");
  if (impl_->inventory.has_index()) whole(kShardIndexName);
  files.insert(files.end(), shards.begin(), shards.end());
  Json list = Json::array();
  int64_t total = 0;
  for (const FileReads& file : files) {
    Json ranges = Json::array();
    for (const ByteRange& range : file.ranges) ranges.push_back({range.begin, range.end});
    list.push_back({{"file", file.file}, {"size", file.size}, {"read", file.bytes().value}, {"ranges", ranges}});
    total += file.bytes().value;
  }
  return {{"model", impl_->dir.string()},
          {"layers", {impl_->layers.begin.value, impl_->layers.end.value}},
          {"read", total},
          {"files", list}};
}

}  // namespace weft
