// Where the system says no: threads that cannot start, files that are no files.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/resource.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/guard.h"
#include "base/json.h"
#include "base/worker_pool.h"

#include "support/sanitizer.h"

namespace weft {
namespace {

using testing::HasSubstr;

// A thread's stack does not fit the address space that is left: an error that says how many started, not an abort.
TEST(WorkerPoolDeathTest, ThreadsThatCannotStartAreAnError) {
  const auto body = [] {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_AS, &limit);
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    // Room for a few stacks of 8 MiB; for none where the sanitizer would ask for memory of its own in a thread that has one.
    limit.rlim_cur = pages * 4096 + ((testing_support::kAddressSanitizer ? 4U : 48U) << 20);
    (void)::setrlimit(RLIMIT_AS, &limit);
    const auto failure = guard([] { const WorkerPool pool(64); });
    const bool named =
        failure && failure->kind == ErrorKind::unavailable && failure->message.starts_with("[threads] wanted 64");
    std::_Exit(named ? 0 : 1);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

class Files : public testing::Test {
 protected:
  Files() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft-files-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  ~Files() override { std::filesystem::remove_all(folder); }
  static std::string message_of(const std::function<void()>& body) {
    const auto failure = guard(body);
    return failure ? failure->message : "no error";
  }
  std::filesystem::path folder;
};

TEST_F(Files, WritingReplacesTheFileBehindALink) {
  write_file_atomic(folder / "real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  write_file_atomic(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text_file(folder / "real"), "new");
  std::filesystem::create_symlink("absent", folder / "dangling");
  EXPECT_THAT(message_of([&] { write_file_atomic(folder / "dangling", "x"); }), HasSubstr("symbolic link to nothing"));
}

TEST_F(Files, WhatIsNoFileIsNeitherReplacedNorWaitedFor) {
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { write_file_atomic(folder / "fifo", "x"); }), HasSubstr("wanted a regular file to replace"));
  EXPECT_THAT(message_of([&] { write_file_atomic(folder, "x"); }), HasSubstr("wanted a regular file to replace"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "fifo"));
  EXPECT_THAT(message_of([&] { (void)read_text_file(folder / "fifo"); }), HasSubstr("wanted a regular file"));
  EXPECT_THAT(message_of([] { (void)file_to_replace("/dev/null"); }), HasSubstr("wanted a regular file to replace"));
}

TEST_F(Files, AnObjectOfTooManyKeysIsRefused) {
  std::string text = "{";
  for (int64_t key = 0; key <= kMaxJsonKeys; ++key) text += (key == 0 ? "\"" : ",\"") + std::to_string(key) + "\":0";
  EXPECT_THAT(message_of([&] { (void)parse_json(text + "}", "t"); }), HasSubstr("wanted at most 16384 keys"));
}

}  // namespace
}  // namespace weft
