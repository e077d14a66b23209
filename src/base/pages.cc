#include "base/pages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace weft {
namespace {

// One call of MADV_WILLNEED reads no more than the device's read-ahead, 128 KiB at least, and drops the rest.
constexpr int64_t kReadAhead = 128 << 10;

uintptr_t address_of(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

int advise(uintptr_t begin, uintptr_t end, int advice) {
  // madvise() changes how pages come and go and none of their content.
  return ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

int64_t page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

std::vector<bool> cached_pages(const std::filesystem::path& path) {
  const MappedFile file(path, ErrorKind::bad_input);
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.empty()) return {};
  std::vector<unsigned char> flags((bytes.size() + static_cast<size_t>(page_bytes()) - 1) / static_cast<size_t>(page_bytes()));
  if (::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), flags.data()) != 0)
    fail(ErrorKind::unavailable, path.string(), "asking which pages are in memory: {}", std::strerror(errno));
  std::vector<bool> cached;
  cached.reserve(flags.size());
  for (const unsigned char flag : flags) cached.push_back((flag & 1U) != 0);
  return cached;
}

void evict_pages(const std::filesystem::path& path) {
  {
    const ReadFile file(path, ErrorKind::bad_input);
    if (::fdatasync(file.descriptor()) != 0)
      fail(ErrorKind::unavailable, path.string(), "writing changed pages back: {}", std::strerror(errno));
    const int refused = ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    if (refused != 0) fail(ErrorKind::unavailable, path.string(), "dropping pages: {}", std::strerror(refused));
  }
  const std::vector<bool> cached = cached_pages(path);
  const auto stayed = std::ranges::count(cached, true);
  if (stayed > 0)
    fail(ErrorKind::unavailable, path.string(),
         "wanted no page in memory, found {} of {}; does another process have it mapped?", stayed, cached.size());
}

void read_pages_singly(std::span<const std::byte> mapping) {
  if (!mapping.empty()) (void)advise(address_of(mapping.data()), address_of(mapping.data()) + mapping.size(), MADV_RANDOM);
}

void bring_in(std::span<const std::byte> part) {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(page_bytes());
  const uintptr_t begin = address_of(part.data()) / page * page;
  const uintptr_t end = address_of(part.data()) + part.size();
  for (uintptr_t at = begin; at < end; at += kReadAhead)
    (void)advise(at, std::min<uintptr_t>(end, at + kReadAhead), MADV_WILLNEED);
  if (advise(begin, end, MADV_POPULATE_READ) == 0 || errno != EINVAL) return;
  // Linux before 5.14 does not know it.
  for (uintptr_t at = address_of(part.data()); at < end; at = (at / page + 1) * page)
    (void)*reinterpret_cast<const volatile std::byte*>(at);
}

void give_back(std::span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(page_bytes());
  const uintptr_t begin = (address_of(part.data()) + page - 1) / page * page;
  const uintptr_t end = (address_of(part.data()) + part.size()) / page * page;
  if (begin < end) (void)advise(begin, end, MADV_DONTNEED);
}

}  // namespace weft
