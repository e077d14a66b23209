// Safetensors files: header, reader, writer.
//
// A file is an 8-byte little-endian header length, a JSON header, and the data section. This reader follows the format's own
// rule that the data section is covered completely: ranges must not overlap, leave no hole, and end at the end of the file.
// All offsets of this interface are 64-bit and count from the start of the file, not of the data section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

namespace weft {

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes of JSON; the limit of the reference implementation
inline constexpr int64_t kSafetensorsPrefix = 8;               // bytes of the header length

// One stored tensor: bytes [begin, end) of the file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] int64_t bytes() const { return end - begin; }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// A parsed header. `entries` are in file order (by begin; tensors without elements by name among equals).
class SafetensorsHeader {
 public:
  SafetensorsHeader() = default;
  // `entries` in file order with distinct names.
  SafetensorsHeader(std::vector<TensorEntry> entries, SafetensorsMetadata metadata, int64_t data_begin);

  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  [[nodiscard]] const SafetensorsMetadata& metadata() const { return metadata_; }
  [[nodiscard]] int64_t data_begin() const { return data_begin_; }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;  // nullptr when absent

 private:
  std::vector<TensorEntry> entries_;
  std::vector<uint32_t> by_name_;  // indices into entries_, sorted by name
  SafetensorsMetadata metadata_;
  int64_t data_begin_ = 0;
};

// The end of the header (8 + its length) from the file's first 8 bytes. Throws bad_checkpoint naming `place` when `first` is
// shorter than 8 bytes, or the header is longer than the file or than kMaxSafetensorsHeader.
[[nodiscard]] int64_t safetensors_header_end(std::span<const std::byte> first, int64_t file_size, std::string_view place);

// Parses a header. `bytes`: the first bytes of the file, at least up to the end of its header. `place`: the file's name.
// Throws bad_checkpoint naming `place`, and the tensor where one is concerned, for: a wrong header length, anything that is not
// JSON, nesting deeper than kMaxJsonDepth, duplicate names or keys, an unknown dtype, a negative or overflowing extent, more
// than Shape::kMaxRank axes, a byte count other than dtype x shape, and ranges outside the file, overlapping, or leaving bytes
// that belong to no tensor.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_size,
                                                         std::string_view place);

// Reads the header of `file` by pread into `buffer` (grown as needed; reuse it for the next file) and parses it.
[[nodiscard]] SafetensorsHeader read_safetensors_header(const ReadFile& file, std::vector<std::byte>& buffer);

// The bytes of `entry` in a mapping of its file, whatever their alignment. Throws bad_checkpoint when the mapping ends before.
[[nodiscard]] std::span<const std::byte> bytes_of(const MappedFile& mapping, const TensorEntry& entry);

// A look at `entry` in a mapping of its file. Throws bad_checkpoint when the mapping is shorter than the entry's end or the
// data is not aligned to its element (files whose header is not padded to 8 bytes): read those into a buffer instead.
[[nodiscard]] TensorView view_of(const MappedFile& mapping, const TensorEntry& entry);

// One file opened for reading. Immutable and safe to share between threads; the mapping is made at the first view().
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path, ErrorKind kind = ErrorKind::bad_checkpoint);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const ReadFile& file() const { return file_; }
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return header_.entries(); }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const { return header_.find(name); }
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;  // bad_checkpoint naming file and tensor when absent

  // Zero-copy; valid as long as this object lives. Errors: see view_of.
  [[nodiscard]] TensorView view(const TensorEntry& entry) const;
  [[nodiscard]] TensorView view(std::string_view name) const { return view(at(name)); }
  [[nodiscard]] std::span<const std::byte> bytes(const TensorEntry& entry) const;  // see bytes_of

  // Fills `out` with the entry's bytes from `byte_offset` (counted from the entry's begin) by pread.
  void read_into(const TensorEntry& entry, int64_t byte_offset, std::span<std::byte> out) const;
  [[nodiscard]] Tensor read(const TensorEntry& entry) const;  // the whole tensor, whatever its alignment in the file
  [[nodiscard]] Tensor read(std::string_view name) const { return read(at(name)); }

 private:
  [[nodiscard]] const MappedFile& mapping() const;

  ReadFile file_;
  ErrorKind kind_;
  SafetensorsHeader header_;
  mutable std::once_flag map_once_;
  mutable std::unique_ptr<MappedFile> mapping_;
};

// What a writer is told about a tensor.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// A file's header before its data exists.
struct SafetensorsLayout {
  std::string header;                // the 8-byte length and the JSON, padded with spaces to a multiple of 8 bytes
  std::vector<TensorEntry> entries;  // in file order
  int64_t file_size = 0;
};

// Orders tensors by element size, largest first, then by name (K3 spec 2.1) and lays them out without gaps. No metadata entry
// is written when `metadata` is empty. Throws bad_input for duplicate names, names that are not UTF-8 and sizes beyond int64.
[[nodiscard]] SafetensorsLayout layout_safetensors(std::vector<TensorSpec> tensors, const SafetensorsMetadata& metadata = {});

// Streams tensors into a file that appears under its name only when complete.
//
//     SafetensorsWriter writer(path, specs);
//     for (const TensorEntry& entry : writer.entries()) writer.append(entry.name, bytes_of(entry));
//     writer.finish();
//
// Tensors may be filled in any order and in pieces; different tensors from different threads.
class SafetensorsWriter {
 public:
  enum class Mode {
    full,    // finish() demands every byte of every tensor
    sparse,  // the data section is a hole of the final size; tensors may be filled or left zero
  };

  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const SafetensorsMetadata& metadata = {}, Mode mode = Mode::full);
  ~SafetensorsWriter();  // removes the temporary file unless finish() succeeded
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return header_.entries(); }
  [[nodiscard]] int64_t file_size() const { return file_size_; }

  // Adds the next bytes of tensor `name`. Throws bad_input for an unknown name or more bytes than the tensor has, unavailable
  // when the disk refuses.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void finish();  // syncs and renames; internal error when a tensor is incomplete in Mode::full

 private:
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  [[noreturn]] void give_up(std::string_view what);

  std::filesystem::path path_;
  std::string temporary_;
  Mode mode_;
  SafetensorsHeader header_;
  std::vector<int64_t> filled_;  // bytes of each entry written so far
  int64_t file_size_ = 0;
  int descriptor_ = -1;
};

}  // namespace weft
