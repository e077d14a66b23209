// Files that shrink while they are mapped.
#include "base/mapping_guard.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "base/file.h"

namespace weft {
namespace {

constexpr size_t kBytes = 1 << 20;

std::filesystem::path write_file(const char* name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::ofstream(path) << std::string(kBytes, 'x');
  return path;
}

char value_at(std::span<const std::byte> bytes, size_t i) {
  return static_cast<char>(static_cast<volatile const std::byte*>(bytes.data())[i]);
}

TEST(MappingGuard, ALostPageIsMarkedAndReadsAsZero) {
  guard_mappings();
  const std::filesystem::path path = write_file("mapping_guard_shrinks");
  const std::filesystem::path other = write_file("mapping_guard_stays");
  const MappedFile shrinks(path);
  const MappedFile stays(other);
  EXPECT_EQ(value_at(shrinks.bytes(), kBytes - 1), 'x');
  EXPECT_FALSE(shrinks.lost());
  std::filesystem::resize_file(path, 8192);
  EXPECT_EQ(value_at(shrinks.bytes(), 8191), 'x');
  EXPECT_FALSE(shrinks.lost());
  EXPECT_EQ(value_at(shrinks.bytes(), kBytes - 1), 0);
  EXPECT_TRUE(shrinks.lost());
  EXPECT_FALSE(stays.lost());
  EXPECT_EQ(value_at(stays.bytes(), kBytes - 1), 'x');
}

TEST(MappingGuard, AnEntryThatIsUsedAgainIsNotLost) {
  guard_mappings();
  const std::filesystem::path path = write_file("mapping_guard_first");
  {
    const MappedFile mapped(path);
    std::filesystem::resize_file(path, 0);
    EXPECT_EQ(value_at(mapped.bytes(), 0), 0);
    EXPECT_TRUE(mapped.lost());
  }
  const MappedFile next(write_file("mapping_guard_next"));
  EXPECT_FALSE(next.lost());
}

TEST(MappingGuardDeathTest, OtherMappingsStillEndTheProcess) {
  const std::filesystem::path path = write_file("mapping_guard_other");
  EXPECT_EXIT(
      {
        guard_mappings();
        const ReadFile file(path);
        void* address = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
        std::filesystem::resize_file(path, 0);
        std::exit(value_at({static_cast<const std::byte*>(address), kBytes}, 0));
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace weft
