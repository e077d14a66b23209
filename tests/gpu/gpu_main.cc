// The entry point of the GPU tests: works in the program's own folder, which moves to the GPU machine as a whole.
#include <filesystem>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::filesystem::current_path(std::filesystem::read_symlink("/proc/self/exe").parent_path());
  return RUN_ALL_TESTS();
}
