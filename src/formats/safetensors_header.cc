#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include <fcntl.h>

#include <simdjson.h>

#include "base/json.h"
#include "formats/safetensors.h"

namespace weft {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kMetadataKey = "__metadata__";

class HeaderParser {
 public:
  HeaderParser(std::string_view place, int64_t data_begin, int64_t file_size)
      : place_(place), data_begin_(data_begin), file_size_(file_size) {}

  SafetensorsHeader parse(std::string_view json) {
    dom::parser parser;
    simdjson::error_code error = parser.allocate(json.size(), static_cast<size_t>(kMaxJsonDepth));
    if (error == simdjson::MEMALLOC)
      fail(ErrorKind::unavailable, place_, "no memory to parse a header of {} bytes", json.size());
    dom::element root;
    if (error == simdjson::SUCCESS) error = parser.parse(json.data(), json.size()).get(root);
    if (error == simdjson::DEPTH_ERROR)
      fail(ErrorKind::bad_checkpoint, place_, "wanted a header nested at most {} deep, found more", kMaxJsonDepth);
    if (error != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "wanted a JSON header, found: {}", simdjson::error_message(error));
    dom::object object;
    if (root.get(object) != simdjson::SUCCESS) fail(ErrorKind::bad_checkpoint, place_, "wanted a JSON object as header");

    std::vector<TensorEntry> entries;
    entries.reserve(object.size());
    std::optional<SafetensorsMetadata> metadata;
    for (const dom::key_value_pair field : object) {
      if (field.key == kMetadataKey) {
        if (metadata) fail(ErrorKind::bad_checkpoint, place_, "wanted each name once, found '{}' twice", kMetadataKey);
        metadata = parse_metadata(field.value);
      } else {
        entries.push_back(parse_entry(field.key, field.value));
      }
    }
    refuse_duplicates(entries);
    check_coverage(entries);
    return SafetensorsHeader(std::move(entries), metadata.value_or(SafetensorsMetadata{}), data_begin_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad_tensor(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::bad_checkpoint, place_, "tensor '{}': {}", name, fmt::format(format, std::forward<Args>(args)...));
  }

  SafetensorsMetadata parse_metadata(dom::element value) const {
    dom::object object;
    if (value.get(object) != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "wanted '{}' to be an object of strings", kMetadataKey);
    SafetensorsMetadata metadata;
    for (const dom::key_value_pair field : object) {
      std::string_view text;
      if (field.value.get(text) != simdjson::SUCCESS)
        fail(ErrorKind::bad_checkpoint, place_, "metadata '{}': wanted a string", field.key);
      if (!metadata.emplace(field.key, text).second)
        fail(ErrorKind::bad_checkpoint, place_, "wanted each metadata key once, found '{}' twice", field.key);
    }
    return metadata;
  }

  TensorEntry parse_entry(std::string_view name, dom::element value) const {
    dom::object object;
    if (value.get(object) != simdjson::SUCCESS) bad_tensor(name, "wanted an object with dtype, shape and data_offsets");
    TensorEntry entry;
    entry.name = name;
    bool has_dtype = false;
    bool has_shape = false;
    bool has_offsets = false;
    const auto once = [&](bool& seen, std::string_view key) {
      if (seen) bad_tensor(name, "wanted '{}' once, found it twice", key);
      seen = true;
    };
    for (const dom::key_value_pair field : object) {
      if (field.key == "dtype") {
        once(has_dtype, field.key);
        entry.dtype = parse_dtype(name, field.value);
      } else if (field.key == "shape") {
        once(has_shape, field.key);
        entry.shape = parse_shape(name, field.value);
      } else if (field.key == "data_offsets") {
        once(has_offsets, field.key);
        parse_offsets(name, field.value, entry);
      } else {
        bad_tensor(name, "wanted only dtype, shape and data_offsets, found '{}'", field.key);
      }
    }
    if (!has_dtype) bad_tensor(name, "wanted a dtype, found none");
    if (!has_shape) bad_tensor(name, "wanted a shape, found none");
    if (!has_offsets) bad_tensor(name, "wanted data_offsets, found none");

    int64_t wanted = 0;
    const std::optional<int64_t> elements = entry.shape.checked_elements();
    if (!elements || __builtin_mul_overflow(*elements, size_of(entry.dtype), &wanted))
      bad_tensor(name, "{} {} has more bytes than a 64-bit size can tell", entry.dtype, entry.shape);
    if (entry.bytes() != wanted)
      bad_tensor(name, "wanted {} bytes for {} {}, found data_offsets of {} bytes", wanted, entry.dtype, entry.shape,
                 entry.bytes());
    return entry;
  }

  DType parse_dtype(std::string_view name, dom::element value) const {
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) bad_tensor(name, "wanted a string as dtype");
    const std::optional<DType> dtype = dtype_from_string(text);
    if (!dtype) bad_tensor(name, "unknown dtype '{}'", text);
    return *dtype;
  }

  Shape parse_shape(std::string_view name, dom::element value) const {
    dom::array array;
    if (value.get(array) != simdjson::SUCCESS) bad_tensor(name, "wanted an array as shape");
    std::array<int64_t, Shape::kMaxRank> extents{};
    size_t rank = 0;
    for (const dom::element item : array) {
      if (rank == extents.size()) bad_tensor(name, "wanted at most {} axes, found more", Shape::kMaxRank);
      int64_t extent = 0;
      if (item.get(extent) != simdjson::SUCCESS || extent < 0)
        bad_tensor(name, "axis {} of the shape: wanted a whole number from 0 to 2^63 - 1, found {}", rank,
                   simdjson::minify(item));
      extents[rank++] = extent;
    }
    return Shape(std::span<const int64_t>(extents.data(), rank));
  }

  void parse_offsets(std::string_view name, dom::element value, TensorEntry& entry) const {
    dom::array array;
    if (value.get(array) != simdjson::SUCCESS || array.size() != 2)
      bad_tensor(name, "wanted two numbers as data_offsets, found {}", simdjson::minify(value));
    std::array<int64_t, 2> offsets{};
    size_t i = 0;
    for (const dom::element item : array) {
      if (item.get(offsets[i]) != simdjson::SUCCESS || offsets[i] < 0)
        bad_tensor(name, "data_offsets: wanted whole numbers from 0 to 2^63 - 1, found {}", simdjson::minify(value));
      ++i;
    }
    const int64_t data_size = file_size_ - data_begin_;
    if (offsets[0] > offsets[1]) bad_tensor(name, "data_offsets: wanted begin <= end, found [{}, {}]", offsets[0], offsets[1]);
    if (offsets[1] > data_size)
      bad_tensor(name, "data_offsets [{}, {}] lie outside the file, whose data section has {} bytes", offsets[0], offsets[1],
                 data_size);
    entry.begin = data_begin_ + offsets[0];
    entry.end = data_begin_ + offsets[1];
  }

  void refuse_duplicates(const std::vector<TensorEntry>& entries) const {
    std::vector<std::string_view> names;
    names.reserve(entries.size());
    for (const TensorEntry& entry : entries) names.emplace_back(entry.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) bad_tensor(*twice, "wanted each name once, found it twice");
  }

  // Sorts into file order and refuses overlaps, holes and trailing data.
  void check_coverage(std::vector<TensorEntry>& entries) const {
    std::ranges::sort(entries, [](const TensorEntry& a, const TensorEntry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    int64_t covered = data_begin_;
    const TensorEntry* before = nullptr;
    for (const TensorEntry& entry : entries) {
      if (entry.begin < covered) {
        bad_tensor(entry.name, "bytes [{}, {}) of the file overlap those of tensor '{}', [{}, {})", entry.begin, entry.end,
                   before->name, before->begin, before->end);
      }
      if (entry.begin > covered)
        bad_tensor(entry.name, "bytes [{}, {}) of the file before it belong to no tensor", covered, entry.begin);
      covered = entry.end;
      before = &entry;
    }
    if (covered != file_size_) {
      fail(ErrorKind::bad_checkpoint, place_, "wanted the last tensor to end at the end of the file, found {} bytes after it",
           file_size_ - covered);
    }
  }

  std::string_view place_;
  int64_t data_begin_;
  int64_t file_size_;
};

}  // namespace

SafetensorsHeader::SafetensorsHeader(std::vector<TensorEntry> entries, SafetensorsMetadata metadata, int64_t data_begin)
    : entries_(std::move(entries)), by_name_(entries_.size()), metadata_(std::move(metadata)), data_begin_(data_begin) {
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::ranges::sort(by_name_, {}, [&](uint32_t i) -> const std::string& { return entries_[i].name; });
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto name_of = [&](uint32_t i) -> std::string_view { return entries_[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found != by_name_.end() && name_of(*found) == name ? &entries_[*found] : nullptr;
}

int64_t safetensors_header_end(std::span<const std::byte> first, int64_t file_size, std::string_view place) {
  if (file_size < kSafetensorsPrefix || static_cast<int64_t>(first.size()) < kSafetensorsPrefix) {
    fail(ErrorKind::bad_checkpoint, place, "wanted a safetensors file of at least {} bytes, found {}", kSafetensorsPrefix,
         std::min(file_size, static_cast<int64_t>(first.size())));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(first[i]) << (8 * i);
  const uint64_t room = static_cast<uint64_t>(file_size - kSafetensorsPrefix);
  if (length > room)
    fail(ErrorKind::bad_checkpoint, place, "the header length {} is larger than the file of {} bytes", length, file_size);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader))
    fail(ErrorKind::bad_checkpoint, place, "wanted a header of at most {} bytes, found {}", kMaxSafetensorsHeader, length);
  return kSafetensorsPrefix + static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_size, std::string_view place) {
  const int64_t end = safetensors_header_end(bytes, file_size, place);
  if (static_cast<int64_t>(bytes.size()) < end)
    fail(ErrorKind::bad_checkpoint, place, "wanted a header of {} bytes, found {}", end, bytes.size());
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  return HeaderParser(place, end, file_size)
      .parse(std::string_view(text + kSafetensorsPrefix, static_cast<size_t>(end - kSafetensorsPrefix)));
}

SafetensorsHeader read_safetensors_header(const ReadFile& file, std::vector<std::byte>& buffer) {
  const std::string place = file.path().string();
  // The system's read-ahead would take megabytes of data with the header.
  (void)::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  std::array<std::byte, kSafetensorsPrefix> prefix{};
  const auto prefix_size = static_cast<size_t>(std::min(file.size(), kSafetensorsPrefix));
  file.read_at(0, std::span(prefix).first(prefix_size));
  const int64_t end = safetensors_header_end(std::span(prefix).first(prefix_size), file.size(), place);
  buffer.resize(static_cast<size_t>(end));
  file.read_at(0, buffer);
  (void)::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_NORMAL);
  return parse_safetensors_header(buffer, file.size(), place);
}

}  // namespace weft
