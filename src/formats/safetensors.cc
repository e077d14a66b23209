#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/json.h"

namespace weft {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

std::span<const std::byte> bytes_of(const MappedFile& mapping, const TensorEntry& entry) {
  if (entry.begin < 0 || entry.begin > entry.end || entry.end > static_cast<int64_t>(mapping.bytes().size())) {
    fail(ErrorKind::bad_checkpoint, mapping.path().string(), "tensor '{}': wanted bytes [{}, {}), found a file of {} bytes",
         entry.name, entry.begin, entry.end, mapping.bytes().size());
  }
  return mapping.bytes().subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes()));
}

TensorView view_of(const MappedFile& mapping, const TensorEntry& entry) {
  const std::span<const std::byte> bytes = bytes_of(mapping, entry);
  if (entry.begin % size_of(entry.dtype) != 0) {
    fail(ErrorKind::bad_checkpoint, mapping.path().string(),
         "tensor '{}': wanted {} data at a multiple of {} bytes, found byte {}", entry.name, entry.dtype, size_of(entry.dtype),
         entry.begin);
  }
  return {entry.dtype, entry.shape, bytes.data()};
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, ErrorKind kind) : file_(path, kind), kind_(kind) {
  std::vector<std::byte> buffer;
  std::optional<Failure> failure = guard([&] { header_ = read_safetensors_header(file_, buffer); });
  if (!failure) return;
  // To the reader of headers every file is a checkpoint's.
  if (failure->kind == ErrorKind::bad_checkpoint) failure->kind = kind_;
  failure->raise();
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) fail(kind_, path().string(), "wanted tensor '{}', found none of that name", name);
  return *entry;
}

const MappedFile& SafetensorsFile::mapping() const {
  std::call_once(map_once_, [&] { mapping_ = std::make_unique<MappedFile>(path(), kind_); });
  return *mapping_;
}

TensorView SafetensorsFile::view(const TensorEntry& entry) const { return view_of(mapping(), entry); }

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const { return bytes_of(mapping(), entry); }

void SafetensorsFile::read_into(const TensorEntry& entry, int64_t byte_offset, std::span<std::byte> out) const {
  if (byte_offset < 0 || byte_offset > entry.bytes() || static_cast<int64_t>(out.size()) > entry.bytes() - byte_offset) {
    fail(ErrorKind::internal, path().string(), "tensor '{}': wanted {} bytes from byte {}, found a tensor of {} bytes",
         entry.name, out.size(), byte_offset, entry.bytes());
  }
  file_.read_at(entry.begin + byte_offset, out);
}

Tensor SafetensorsFile::read(const TensorEntry& entry) const {
  Tensor tensor = Tensor::uninitialized(entry.dtype, entry.shape);
  read_into(entry, 0, std::span(tensor.data(), static_cast<size_t>(entry.bytes())));
  return tensor;
}

namespace {

std::string json_string(std::string_view text) {
  try {
    return Json(text).dump();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::bad_input, "safetensors", "wanted UTF-8 names and metadata, found: {}", error.what());
  }
}

constexpr int64_t kMaxIoBytes = 1LL << 30;  // one write call moves at most 2 GiB - 4096 bytes on Linux

}  // namespace

SafetensorsLayout layout_safetensors(std::vector<TensorSpec> tensors, const SafetensorsMetadata& metadata) {
  std::ranges::sort(tensors, [](const TensorSpec& a, const TensorSpec& b) {
    const int64_t size_a = size_of(a.dtype);
    const int64_t size_b = size_of(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  SafetensorsLayout layout;
  layout.entries.reserve(tensors.size());
  int64_t offset = 0;
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += json_string(key) + ':' + json_string(value);
    }
    json += '}';
  }
  for (TensorSpec& tensor : tensors) {
    const std::optional<int64_t> elements = tensor.shape.checked_elements();
    int64_t bytes = 0;
    int64_t end = 0;
    if (!elements || __builtin_mul_overflow(*elements, size_of(tensor.dtype), &bytes) ||
        __builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX - kMaxSafetensorsHeader - kSafetensorsPrefix) {
      fail(ErrorKind::bad_input, "safetensors", "tensor '{}': {} {} has more bytes than a file can hold", tensor.name,
           tensor.dtype, tensor.shape);
    }
    if (tensor.name == "__metadata__")
      fail(ErrorKind::bad_input, "safetensors", "'__metadata__' cannot be the name of a tensor");
    if (json.size() > 1) json += ',';
    fmt::format_to(std::back_inserter(json), R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   json_string(tensor.name), tensor.dtype, fmt::join(tensor.shape.extents(), ","), offset, end);
    layout.entries.push_back({std::move(tensor.name), tensor.dtype, tensor.shape, offset, end});
    offset = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader)
    fail(ErrorKind::bad_input, "safetensors", "wanted a header of at most {} bytes, found {}", kMaxSafetensorsHeader,
         json.size());

  std::vector<std::string_view> names;
  names.reserve(layout.entries.size());
  for (const TensorEntry& entry : layout.entries) names.emplace_back(entry.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    fail(ErrorKind::bad_input, "safetensors", "tensor '{}': wanted each name once, found it twice", *twice);

  const auto length = static_cast<uint64_t>(json.size());
  for (int i = 0; i < 8; ++i) layout.header += static_cast<char>((length >> (8 * i)) & 0xffU);
  layout.header += json;
  const auto data_begin = static_cast<int64_t>(layout.header.size());
  for (TensorEntry& entry : layout.entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  layout.file_size = data_begin + offset;
  return layout;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     const SafetensorsMetadata& metadata, Mode mode)
    : path_(file_to_replace(path)), temporary_(path_.string() + ".tmp" + std::to_string(::getpid())), mode_(mode) {
  SafetensorsLayout layout = layout_safetensors(std::move(tensors), metadata);
  const auto data_begin = static_cast<int64_t>(layout.header.size());
  file_size_ = layout.file_size;
  filled_.assign(layout.entries.size(), 0);
  header_ = SafetensorsHeader(std::move(layout.entries), metadata, data_begin);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(ErrorKind::bad_input, path_.string(), "wanted to create the file, found: {}", std::strerror(errno));
  if (::ftruncate(descriptor_, file_size_) != 0) give_up(fmt::format("setting the size to {} bytes", file_size_));
  try {
    write_at(0, std::as_bytes(std::span(layout.header)));
  } catch (...) {  // no destructor runs for an object that was never made
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void SafetensorsWriter::give_up(std::string_view what) {
  const std::string reason = std::strerror(errno);
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  ::unlink(temporary_.c_str());
  fail(ErrorKind::unavailable, path_.string(), "{}: {}", what, reason);
}

void SafetensorsWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const size_t want = std::min(bytes.size() - done, static_cast<size_t>(kMaxIoBytes));
    const ssize_t got = ::pwrite(descriptor_, bytes.data() + done, want, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(ErrorKind::unavailable, path_.string(), "writing {} bytes: {}", want, std::strerror(errno));
    done += static_cast<size_t>(got);
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const TensorEntry* entry = header_.find(name);
  if (entry == nullptr) fail(ErrorKind::bad_input, path_.string(), "tensor '{}' is not in the list to be written", name);
  int64_t& filled = filled_[static_cast<size_t>(entry - header_.entries().data())];
  if (static_cast<int64_t>(bytes.size()) > entry->bytes() - filled) {
    fail(ErrorKind::bad_input, path_.string(), "tensor '{}': wanted {} bytes in all, found {}", name, entry->bytes(),
         filled + static_cast<int64_t>(bytes.size()));
  }
  write_at(entry->begin + filled, bytes);
  filled += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  if (mode_ == Mode::full) {
    for (size_t i = 0; i < filled_.size(); ++i) {
      const TensorEntry& entry = header_.entries()[i];
      if (filled_[i] != entry.bytes()) {
        fail(ErrorKind::internal, path_.string(), "tensor '{}': wanted {} bytes to be written, found {}", entry.name,
             entry.bytes(), filled_[i]);
      }
    }
  }
  if (::fsync(descriptor_) != 0) give_up("syncing");
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("renaming the written file");
}

}  // namespace weft
