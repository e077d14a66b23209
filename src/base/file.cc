#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft {
namespace {

constexpr int64_t kMaxIoBytes = 1LL << 30;  // one read or write call moves at most 2 GiB - 4096 bytes on Linux

std::string system_reason() { return std::strerror(errno); }

}  // namespace

ReadFile::ReadFile(const std::filesystem::path& path, ErrorKind kind) : path_(path), kind_(kind) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO is refused, not waited for
  if (descriptor_ < 0) fail(kind, path.string(), "wanted a readable file, found: {}", system_reason());
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(kind, path.string(), "wanted a regular file, found something else");
  }
  size_ = status.st_size;
}

ReadFile::~ReadFile() { ::close(descriptor_); }

void ReadFile::read_at(int64_t offset, std::span<std::byte> out) const {
  if (offset < 0 || offset > size_ || static_cast<int64_t>(out.size()) > size_ - offset) {
    fail(kind_, path_.string(), "wanted bytes [{}, {}), found a file of {} bytes", offset,
         offset + static_cast<int64_t>(out.size()), size_);
  }
  size_t done = 0;
  while (done < out.size()) {
    const size_t want = std::min(out.size() - done, static_cast<size_t>(kMaxIoBytes));
    const ssize_t got = ::pread(descriptor_, out.data() + done, want, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(kind_, path_.string(), "reading at byte {}: {}", offset + static_cast<int64_t>(done), system_reason());
    if (got == 0) {
      fail(kind_, path_.string(), "wanted byte {}, found the end of the file", offset + static_cast<int64_t>(done));
    }
    done += static_cast<size_t>(got);
  }
}

MappedFile::MappedFile(const std::filesystem::path& path, ErrorKind kind) : file_(path, kind) {
  if (file_.size() == 0) return;
  void* address = ::mmap(nullptr, static_cast<size_t>(file_.size()), PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (address == MAP_FAILED) fail(kind, path.string(), "mapping {} bytes: {}", file_.size(), system_reason());
  data_ = static_cast<const std::byte*>(address);
  registered_.emplace(bytes());
}

MappedFile::~MappedFile() {
  registered_.reset();
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(file_.size()));
}

std::string read_text_file(const std::filesystem::path& path, ErrorKind kind, int64_t max_bytes) {
  const ReadFile file(path, kind);
  if (file.size() > max_bytes) fail(kind, path.string(), "wanted at most {} bytes, found {}", max_bytes, file.size());
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::filesystem::path file_to_replace(const std::filesystem::path& path) {
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(path, code);  // follows symbolic links
  if (status.type() == std::filesystem::file_type::not_found) {
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, code))) {
      fail(ErrorKind::bad_input, path.string(), "wanted a file to write, found a symbolic link to nothing");
    }
    return path;
  }
  if (code) fail(ErrorKind::bad_input, path.string(), "wanted a file to write, found: {}", code.message());
  if (status.type() != std::filesystem::file_type::regular) {
    fail(ErrorKind::bad_input, path.string(), "wanted a regular file to replace, or none, found a folder or a device");
  }
  std::filesystem::path target = std::filesystem::canonical(path, code);
  if (code) fail(ErrorKind::bad_input, path.string(), "wanted a file to write, found: {}", code.message());
  return target;
}

void write_file_atomic(const std::filesystem::path& asked, std::string_view content) {
  const std::filesystem::path path = file_to_replace(asked);
  const std::string temporary = path.string() + ".tmp" + std::to_string(::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(ErrorKind::bad_input, path.string(), "wanted to create the file, found: {}", system_reason());
  const auto give_up = [&](std::string_view what) {
    const std::string reason = system_reason();
    ::close(descriptor);
    ::unlink(temporary.c_str());
    fail(ErrorKind::unavailable, path.string(), "{}: {}", what, reason);
  };
  size_t done = 0;
  while (done < content.size()) {
    const size_t want = std::min(content.size() - done, static_cast<size_t>(kMaxIoBytes));
    const ssize_t got = ::write(descriptor, content.data() + done, want);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up("writing");
    done += static_cast<size_t>(got);
  }
  if (::fsync(descriptor) != 0) give_up("syncing");
  if (::close(descriptor) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = system_reason();
    ::unlink(temporary.c_str());
    fail(ErrorKind::unavailable, path.string(), "renaming the written file: {}", reason);
  }
}

}  // namespace weft
