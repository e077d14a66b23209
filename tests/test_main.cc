// The entry point of every test program: works in the build folder, from which the paths that tests are given start.
#include <cstdio>
#include <filesystem>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  std::error_code error;
  std::filesystem::current_path(WEFT_BUILD_FOLDER, error);
  if (error) {
    std::fprintf(stderr, "[test_main] working folder: wanted %s, found: %s\n", WEFT_BUILD_FOLDER, error.message().c_str());
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);  // makes the parameters, some of which are read from files
  return RUN_ALL_TESTS();
}
