#include "formats/inventory.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/worker_pool.h"
#include "formats/shard_index.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFilesAtOnce = 16;  // parsed headers held before they are added: about 1.5 MB each at the published size
constexpr size_t kMaxFiles = UINT16_MAX;

std::vector<std::string> safetensors_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator item(folder, error); !error && item != fs::directory_iterator(); item.increment(error)) {
    if (item->path().extension() == ".safetensors") names.push_back(item->path().filename().string());
  }
  if (error) fail(ErrorKind::bad_checkpoint, folder.string(), "wanted a readable folder, found: {}", error.message());
  return names;
}

void refuse_absent(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> absent;
  for (const std::string& name : names) {
    std::error_code error;
    if (!fs::exists(folder / name, error)) absent.push_back(name);
  }
  if (absent.empty()) return;
  fail(ErrorKind::bad_checkpoint, folder.string(), "the index names {} files that are not there: {}", absent.size(),
       fmt::join(absent, ", "));
}

// The first difference in the order of the index, then in the order of the headers.
void refuse_disagreement(const Inventory& inventory, const ShardIndex& index) {
  const std::string place = (inventory.folder() / kShardIndexName).string();
  constexpr std::string_view hint =
      "the index does not match the files (rebuild the index from the headers, or fetch it again)";
  for (uint32_t i = 0; i < index.size(); ++i) {
    const std::string& wanted = index.files()[index.file_of(i)];
    const std::optional<TensorId> found = inventory.find(index.name(i));
    if (!found)
      fail(ErrorKind::bad_checkpoint, place, "tensor '{}': wanted in file {}, found in no file; {}", index.name(i), wanted,
           hint);
    if (inventory.file(*found).name != wanted) {
      fail(ErrorKind::bad_checkpoint, place, "tensor '{}': wanted in file {}, found in file {}; {}", index.name(i), wanted,
           inventory.file(*found).name, hint);
    }
  }
  if (inventory.size() == index.size()) return;
  for (TensorId id = 0; id < inventory.size(); ++id) {
    if (!index.find(inventory.name(id))) {
      fail(ErrorKind::bad_checkpoint, place, "tensor '{}': found in file {}, missing in the index; {}", inventory.name(id),
           inventory.file(id).name, hint);
    }
  }
}

}  // namespace

Inventory Inventory::scan(const fs::path& folder, const InventoryOptions& options) {
  Inventory inventory;
  inventory.folder_ = folder;
  std::error_code error;
  if (!fs::is_directory(folder, error))
    fail(ErrorKind::bad_checkpoint, folder.string(), "wanted a folder with a checkpoint, found none");

  std::optional<ShardIndex> index;
  std::vector<std::string> names;
  const fs::path index_path = folder / kShardIndexName;
  if (!options.rebuild_index && fs::exists(index_path, error)) {
    index = ShardIndex::load(index_path);
    inventory.has_index_ = true;
    inventory.index_total_size_ = index->total_size();
    inventory.names_.reserve(index->size(), index->name_bytes());
    inventory.records_.reserve(index->size());
    names = index->files();
    refuse_absent(folder, names);
    std::vector<std::string> present = safetensors_names(folder);
    std::erase_if(present, [&](const std::string& name) { return std::ranges::find(names, name) != names.end(); });
    std::ranges::sort(present);
    inventory.unlisted_files_ = std::move(present);
  } else {
    names = safetensors_names(folder);
    if (names.empty())
      fail(ErrorKind::bad_checkpoint, folder.string(), "wanted *.safetensors files or {}, found neither", kShardIndexName);
  }
  std::ranges::sort(names);
  if (names.size() > kMaxFiles)
    fail(ErrorKind::unsupported, folder.string(), "wanted at most {} files, found {}", kMaxFiles, names.size());
  for (std::string& name : names) inventory.files_.push_back({.name = std::move(name)});

  WorkerPool pool(std::max(options.threads, 1));
  for (size_t first = 0; first < inventory.files_.size(); first += kFilesAtOnce) {
    const size_t count = std::min(kFilesAtOnce, inventory.files_.size() - first);
    std::array<SafetensorsHeader, kFilesAtOnce> headers;
    pool.parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> buffer;
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        InventoryFile& file = inventory.files_[first + i];
        const ReadFile opened(folder / file.name);
        file.size = opened.size();
        headers[i] = read_safetensors_header(opened, buffer);
      }
    });
    for (size_t i = 0; i < count; ++i) inventory.add(static_cast<uint32_t>(first + i), headers[i]);
  }
  if (index) refuse_disagreement(inventory, *index);
  return inventory;
}

void Inventory::add(uint32_t file_index, const SafetensorsHeader& header) {
  InventoryFile& file = files_[file_index];
  file.header_size = header.data_begin();
  file.tensors = static_cast<int64_t>(header.entries().size());
  for (const TensorEntry& entry : header.entries()) {
    if (!names_.insert(entry.name)) {
      fail(ErrorKind::bad_checkpoint, folder_.string(), "tensor '{}': wanted in one file, found in {} and {}", entry.name,
           this->file(*names_.find(entry.name)).name, file.name);
    }
    records_.push_back({entry.begin, intern(entry.shape), static_cast<uint16_t>(file_index), entry.dtype});
  }
}

uint32_t Inventory::intern(const Shape& shape) {
  if (!records_.empty() && shapes_[records_.back().shape] == shape) return records_.back().shape;
  const std::string_view key(reinterpret_cast<const char*>(shape.extents().data()), shape.extents().size_bytes());
  if (const std::optional<uint32_t> known = shape_keys_.find(key)) return *known;
  shapes_.push_back(shape);
  return shape_keys_.insert(key).value();
}

int64_t Inventory::bytes(TensorId id) const { return shape(id).elements() * size_of(dtype(id)); }

TensorEntry Inventory::entry(TensorId id) const {
  return {std::string(name(id)), dtype(id), shape(id), begin(id), begin(id) + bytes(id)};
}

std::vector<DTypeTotal> Inventory::by_dtype() const {
  std::array<DTypeTotal, static_cast<size_t>(DType::boolean) + 1> totals{};
  for (TensorId id = 0; id < size(); ++id) {
    DTypeTotal& total = totals[static_cast<size_t>(dtype(id))];
    total.dtype = dtype(id);
    ++total.tensors;
    total.bytes += bytes(id);
  }
  std::vector<DTypeTotal> found;
  std::ranges::copy_if(totals, std::back_inserter(found), [](const DTypeTotal& total) { return total.tensors > 0; });
  return found;
}

int64_t Inventory::data_bytes() const {
  int64_t total = 0;
  for (const InventoryFile& file : files_) total += file.size - file.header_size;
  return total;
}

int64_t Inventory::file_bytes() const {
  int64_t total = 0;
  for (const InventoryFile& file : files_) total += file.size;
  return total;
}

}  // namespace weft
