// Files: mapped, read by range, written atomically. Offsets are 64-bit; reads above 2 GiB are looped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/mapping_guard.h"

namespace weft {

// A regular file opened for reading. Immutable and safe to share between threads.
class ReadFile {
 public:
  // Throws Error(kind) naming the path and the system's reason.
  explicit ReadFile(const std::filesystem::path& path, ErrorKind kind = ErrorKind::bad_checkpoint);
  ~ReadFile();
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

  // Fills `out` from byte `offset`; an error if the file ends before.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ErrorKind kind_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// A whole file mapped read-only (MAP_SHARED: pages belong to the page cache).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path, ErrorKind kind = ErrorKind::bad_checkpoint);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(file_.size())}; }
  // Whether a part of the file could not be read when it was touched and came as zeros (base/mapping_guard.h).
  [[nodiscard]] bool lost() const { return registered_ && registered_->lost(); }

 private:
  ReadFile file_;
  const std::byte* data_ = nullptr;
  std::optional<RegisteredMapping> registered_;
};

// The whole file, refused when larger than max_bytes.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::bad_input,
                                         int64_t max_bytes = 1LL << 30);

// The file that writing `path` replaces: symbolic links are followed. Throws bad_input when something that is no regular file
// has the name: renaming a new file over it would destroy a device.
[[nodiscard]] std::filesystem::path file_to_replace(const std::filesystem::path& path);

// Writes through a temporary name in the same folder, syncs, and renames, so that readers see the old file or the whole new
// one.
void write_file_atomic(const std::filesystem::path& asked, std::string_view content);

}  // namespace weft
