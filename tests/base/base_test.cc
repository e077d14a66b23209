#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/guard.h"
#include "base/json.h"
#include "base/units.h"
#include "base/worker_pool.h"

namespace weft {
namespace {

using testing::HasSubstr;

TEST(Error, MessageNamesPlaceWantedAndFound) {
  try {
    fail(ErrorKind::bad_checkpoint, "reader", "tensor '{}': wanted {}, found {}", "x", 3, 4);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[reader] tensor 'x': wanted 3, found 4");
    EXPECT_EQ(error.kind(), ErrorKind::bad_checkpoint);
  }
}

TEST(Error, MessageHoldsNoRawBytes) {
  const Error error(ErrorKind::bad_input, "", "found \x1b[2J \xff \xE4\xBD\xA0 \n \xC2\x85");
  EXPECT_STREQ(error.what(), "[''] found \\x1b[2J \\xff \xE4\xBD\xA0 \\x0a \\xc2\\x85");
}

TEST(Guard, KeepsKindAndMessageOverTheBorder) {
  const auto failure = guard([] { fail(ErrorKind::unavailable, "pool", "no slot"); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unavailable);
  const auto again = guard([&] { failure->raise(); });
  ASSERT_TRUE(again);
  EXPECT_EQ(again->message, "[pool] no slot");
  EXPECT_EQ(again->kind, ErrorKind::unavailable);
}

TEST(Guard, NamesForeignExceptions) {
  const auto failure = guard([] { throw std::runtime_error("boom"); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::internal);
  EXPECT_THAT(failure->message, HasSubstr("boom"));
}

TEST(Units, WithCommas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1560936091448), "1,560,936,091,448");
  EXPECT_EQ(with_commas(-1234), "-1,234");
  EXPECT_EQ(with_commas(-123), "-123");
}

TEST(Json, RefusesDuplicateKeysAndDeepNesting) {
  EXPECT_THROW((void)parse_json(R"({"a":1,"b":{"a":2},"a":3})", "t"), Error);
  EXPECT_NO_THROW((void)parse_json(R"({"a":1,"b":{"a":2}})", "t"));
  EXPECT_NO_THROW((void)parse_json(std::string(128, '[') + std::string(128, ']'), "t"));
  EXPECT_THROW((void)parse_json(std::string(129, '[') + std::string(129, ']'), "t"), Error);
  EXPECT_THROW((void)parse_json("{", "t"), Error);
}

TEST(Json, ReasonsAreInPlainWords) {
  const auto message = [](std::string_view text) { return guard([&] { (void)parse_json(text, "t"); }).value().message; };
  EXPECT_THAT(message(""), testing::StartsWith("[t] wanted JSON, found at byte 0: unexpected end of input"));
  EXPECT_THAT(message("{\"a\": x}"), testing::StartsWith("[t] wanted JSON, found at byte 6: invalid literal"));
  EXPECT_THAT(message("[1e999]"), testing::StartsWith("[t] wanted JSON, found: number overflow"));
  for (const char* text : {"", "{\"a\": x}", "[1e999]", "\"\xff\"", "\"\x1b\"", "[1,]"}) {
    EXPECT_THAT(message(text), testing::Not(HasSubstr("json.exception"))) << text;
    EXPECT_THAT(message(text), testing::Not(testing::AnyOf(HasSubstr("\xff"), HasSubstr("\x1b")))) << text;
  }
}

class WorkerPoolSizes : public testing::TestWithParam<int> {};

TEST_P(WorkerPoolSizes, CoversEveryItemOnce) {
  WorkerPool pool(GetParam());
  for (const int64_t count : {0, 1, 15, 16, 17, 127, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
    pool.parallel_for(count, 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& times : seen) EXPECT_EQ(times.load(), 1);
  }
}

TEST_P(WorkerPoolSizes, RangesAreWholeUnits) {
  WorkerPool pool(GetParam());
  const std::vector<TaskSizes> all = {
      {.most = 12, .unit = 4}, {.most = 14, .unit = 4}, {.most = 3, .unit = 4}, {.most = 96, .unit = 16}};
  for (const TaskSizes sizes : all) {
    const int64_t most = std::max(sizes.most / sizes.unit, int64_t{1}) * sizes.unit;
    for (const int64_t count : {1, 3, 4, 5, 12, 13, 191, 192, 193, 1001}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      std::atomic<int> wrong{0};
      pool.parallel_for(count, sizes, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        if (begin % sizes.unit != 0 || (end % sizes.unit != 0 && end != count) || end - begin > most) ++wrong;
      });
      for (const auto& times : seen) EXPECT_EQ(times.load(), 1);
      EXPECT_EQ(wrong.load(), 0) << sizes.most << " " << sizes.unit << " " << count;
    }
  }
}

TEST_P(WorkerPoolSizes, RethrowsAndStaysUsable) {
  WorkerPool pool(GetParam());
  EXPECT_THROW(pool.parallel_for(100, 1,
                                 [](int64_t begin, int64_t) {
                                   if (begin == 50) fail(ErrorKind::bad_input, "test", "fifty");
                                 }),
               Error);
  std::atomic<int64_t> sum{0};
  pool.parallel_for(100, 1, [&](int64_t begin, int64_t) { sum += begin; });
  EXPECT_EQ(sum.load(), 4950);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolSizes, testing::Values(1, 2, 5));

// A thread takes its own share first, and then what another one has left: here one task ends only when all others have.
TEST(WorkerPool, OthersTakeWhatABusyThreadHasLeft) {
  WorkerPool pool(3);
  for (const int64_t busy : {0, 4, 8}) {  // the first task of each share
    std::atomic<int> others{0};
    int seen = 0;
    pool.parallel_for(12, 1, [&](int64_t begin, int64_t) {
      if (begin != busy) {
        ++others;
        return;
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (others != 11 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      seen = others;
    });
    EXPECT_EQ(seen, 11) << "task " << busy;
  }
}

// What threads wait for at the end is short: one range ends only when the others have taken all else, and the last ones of
// these are of one unit.
TEST(WorkerPool, RangesBecomeShorterTowardsTheEnd) {
  constexpr int64_t kCount = 1024;
  constexpr TaskSizes kSizes{.most = 512, .unit = 4};
  WorkerPool pool(2);
  for (const int64_t busy : {0, 512}) {  // the beginning of each share
    std::atomic<int64_t> others{0};
    std::atomic<int64_t> shortest{kCount};
    int64_t seen = 0;  // all but the busy range, unless the thread waited in vain
    int64_t rest = 0;
    pool.parallel_for(kCount, kSizes, [&](int64_t begin, int64_t end) {
      if (begin != busy) {
        shortest = std::min(shortest.load(), end - begin);
        others += end - begin;
        return;
      }
      rest = kCount - (end - begin);
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (others != rest && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      seen = others;
    });
    EXPECT_EQ(seen, rest) << "range " << busy;
    EXPECT_EQ(shortest, kSizes.unit) << "range " << busy;
  }
}

}  // namespace
}  // namespace weft
