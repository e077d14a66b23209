#include "formats/inventory.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/worker_pool.h"

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

std::vector<std::string> unlisted(const fs::path& folder, const ShardIndex& index) {
  std::vector<std::string> present = safetensors_names(folder);
  const std::vector<std::string>& names = index.files();
  std::erase_if(present, [&](const std::string& name) { return std::ranges::find(names, name) != names.end(); });
  std::ranges::sort(present);
  return present;
}

constexpr std::string_view kDisagreement =
    "the index does not match the files (rebuild the index from the headers, or fetch it again)";

[[noreturn]] void refuse_wrong_file(const fs::path& folder, std::string_view tensor, std::string_view wanted,
                                    std::string_view found) {
  fail(ErrorKind::bad_checkpoint, (folder / kShardIndexName).string(), "tensor '{}': wanted in file {}, found {}; {}", tensor,
       wanted, found, kDisagreement);
}

[[noreturn]] void refuse_unlisted_tensor(const fs::path& folder, std::string_view tensor, std::string_view file) {
  fail(ErrorKind::bad_checkpoint, (folder / kShardIndexName).string(),
       "tensor '{}': found in file {}, missing in the index; {}", tensor, file, kDisagreement);
}

// The first difference in the order of the index, then in the order of the headers.
void refuse_disagreement(const Inventory& inventory, const ShardIndex& index) {
  const fs::path& folder = inventory.folder();
  for (uint32_t i = 0; i < index.size(); ++i) {
    const std::string& wanted = index.files()[index.file_of(i)];
    const std::optional<TensorId> found = inventory.find(index.name(i));
    if (!found) refuse_wrong_file(folder, index.name(i), wanted, "in no file");
    if (inventory.file(*found).name != wanted)
      refuse_wrong_file(folder, index.name(i), wanted, "in file " + inventory.file(*found).name);
  }
  if (inventory.size() == index.size()) return;
  for (TensorId id = 0; id < inventory.size(); ++id)
    if (!index.find(inventory.name(id))) refuse_unlisted_tensor(folder, inventory.name(id), inventory.file(id).name);
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
    inventory.unlisted_files_ = unlisted(folder, *index);
  } else {
    names = safetensors_names(folder);
    if (names.empty())
      fail(ErrorKind::bad_checkpoint, folder.string(), "wanted *.safetensors files or {}, found neither", kShardIndexName);
  }
  inventory.set_files(std::move(names));
  inventory.read_headers(options.threads, [&](uint32_t file, const SafetensorsHeader& header) {
    for (const TensorEntry& entry : header.entries()) inventory.add(file, entry);
  });
  if (index) refuse_disagreement(inventory, *index);
  return inventory;
}

Inventory Inventory::scan_part(const fs::path& folder, const ShardIndex& index, const std::vector<bool>& wanted, int threads) {
  Inventory inventory;
  inventory.folder_ = folder;
  inventory.has_index_ = true;
  inventory.index_total_size_ = index.total_size();
  inventory.unlisted_files_ = unlisted(folder, index);
  std::vector<bool> opened(index.files().size());
  for (uint32_t i = 0; i < index.size(); ++i)
    if (wanted[i]) opened[index.file_of(i)] = true;
  std::vector<std::string> names;
  for (size_t f = 0; f < opened.size(); ++f)
    if (opened[f]) names.push_back(index.files()[f]);
  refuse_absent(folder, names);
  inventory.set_files(std::move(names));

  std::vector<bool> seen(index.size());
  inventory.read_headers(threads, [&](uint32_t file, const SafetensorsHeader& header) {
    const std::string& name = inventory.files_[file].name;
    for (const TensorEntry& entry : header.entries()) {
      const std::optional<uint32_t> listed = index.find(entry.name);
      if (!listed) refuse_unlisted_tensor(folder, entry.name, name);
      if (index.files()[index.file_of(*listed)] != name)
        refuse_wrong_file(folder, entry.name, index.files()[index.file_of(*listed)], "in file " + name);
      seen[*listed] = true;
      if (wanted[*listed]) inventory.add(file, entry);
    }
  });
  for (uint32_t i = 0; i < index.size(); ++i) {
    const uint32_t file = index.file_of(i);
    if (opened[file] && !seen[i]) refuse_wrong_file(folder, index.name(i), index.files()[file], "no such tensor in it");
  }
  return inventory;
}

void Inventory::set_files(std::vector<std::string> names) {
  std::ranges::sort(names);
  if (names.size() > kMaxFiles)
    fail(ErrorKind::unsupported, folder_.string(), "wanted at most {} files, found {}", kMaxFiles, names.size());
  for (std::string& name : names) files_.push_back({.name = std::move(name)});
}

void Inventory::read_headers(int threads, const std::function<void(uint32_t, const SafetensorsHeader&)>& use) {
  WorkerPool pool(std::max(threads, 1));
  for (size_t first = 0; first < files_.size(); first += kFilesAtOnce) {
    const size_t count = std::min(kFilesAtOnce, files_.size() - first);
    std::array<SafetensorsHeader, kFilesAtOnce> headers;
    pool.parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> buffer;
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        InventoryFile& file = files_[first + i];
        const ReadFile opened(folder_ / file.name);
        file.size = opened.size();
        headers[i] = read_safetensors_header(opened, buffer);
      }
    });
    for (size_t i = 0; i < count; ++i) {
      const auto file = static_cast<uint32_t>(first + i);
      files_[file].header_size = headers[i].data_begin();
      files_[file].tensors = static_cast<int64_t>(headers[i].entries().size());
      use(file, headers[i]);
    }
  }
}

void Inventory::add(uint32_t file_index, const TensorEntry& entry) {
  if (!names_.insert(entry.name)) {
    fail(ErrorKind::bad_checkpoint, folder_.string(), "tensor '{}': wanted in one file, found in {} and {}", entry.name,
         file(*names_.find(entry.name)).name, files_[file_index].name);
  }
  records_.push_back({entry.begin, intern(entry.shape), static_cast<uint16_t>(file_index), entry.dtype});
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
