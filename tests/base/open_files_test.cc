#include "base/open_files.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(OpenFiles, TheLimitIsRaisedAndNeverLowered) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(raise_open_file_limit(120), 120);
  EXPECT_EQ(raise_open_file_limit(50), 120);
  EXPECT_GE(raise_open_file_limit(), 120);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace weft
