#include "base/system_memory.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;

class Groups : public testing::Test {
 protected:
  Groups() { fs::remove_all(root_); }
  ~Groups() override { fs::remove_all(root_); }
  void limit(const fs::path& file, const char* value) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << value << "\n";
  }
  fs::path root_ = fs::temp_directory_path() / "weft-groups-test";
};

TEST_F(Groups, TheSmallestLimitOnTheWayUpCounts) {
  limit("a/memory.max", "1000");
  limit("a/b/memory.max", "max");
  EXPECT_EQ(group_memory_limit("0::/a/b\n", root_), 1000);
  limit("a/b/memory.max", "500");
  EXPECT_EQ(group_memory_limit("0::/a/b\n", root_), 500);
  EXPECT_EQ(group_memory_limit("0::/a\n", root_), 1000);
  EXPECT_EQ(group_memory_limit("0::/\n", root_), std::nullopt);
}

TEST_F(Groups, OfVersionOneToo) {
  limit("memory/memory.limit_in_bytes", "9223372036854771712");  // none
  limit("memory/a/memory.limit_in_bytes", "2000");
  EXPECT_EQ(group_memory_limit("8:pids:/\n4:cpu,memory:/a\n0::/\n", root_), 2000);
  EXPECT_EQ(group_memory_limit("4:memory:/\n", root_), std::nullopt);
  EXPECT_EQ(group_memory_limit("4:memory:/absent\n", root_), std::nullopt);
  EXPECT_EQ(group_memory_limit("nonsense\n\n:", root_), std::nullopt);
}

TEST_F(Groups, SomethingIsAvailable) { EXPECT_GT(available_memory(), 1 << 20); }

}  // namespace
}  // namespace weft
