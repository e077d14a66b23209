#include "formats/range_reader.h"

#include <fstream>
#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "formats/formats_test_util.h"

namespace weft {
namespace {

class RangeReads : public testing::Test {
 protected:
  RangeReads() {
    std::mt19937 random(3);
    for (int f = 0; f < 3; ++f) {
      std::string bytes(100'000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      const std::filesystem::path path = folder_.path() / std::to_string(f);
      std::ofstream(path) << bytes;
      contents_.push_back(bytes);
      files_.push_back(std::make_unique<ReadFile>(path));
    }
  }

  TempFolder folder_;
  std::vector<std::string> contents_;
  std::vector<std::unique_ptr<ReadFile>> files_;
};

std::vector<std::pair<int64_t, int64_t>> planned(const ReadFile& file, const std::vector<std::pair<int64_t, int64_t>>& ranges,
                                                 const RangeReadOptions& options) {
  std::vector<std::byte> memory(1 << 20);
  std::vector<RangeRead> reads;
  for (const auto& [begin, end] : ranges)
    reads.push_back({&file, begin, std::span(memory).first(static_cast<size_t>(end - begin))});
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const RangeRequest& request : plan_requests(reads, options)) result.emplace_back(request.begin, request.end);
  return result;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

TEST_F(RangeReads, MergesUpToTheGapAndCutsAtTheCap) {
  const RangeReadOptions options{.merge_gap = 10, .max_request = 100};
  EXPECT_EQ(planned(*files_[0], {{50, 60}, {0, 40}}, options), (Ranges{{0, 60}}));
  EXPECT_EQ(planned(*files_[0], {{51, 60}, {0, 40}}, options), (Ranges{{0, 40}, {51, 60}}));
  EXPECT_EQ(planned(*files_[0], {{0, 250}}, options), (Ranges{{0, 100}, {100, 200}, {200, 250}}));
  EXPECT_EQ(planned(*files_[0], {{0, 95}, {100, 130}}, options), (Ranges{{0, 95}, {100, 130}}));
  EXPECT_EQ(planned(*files_[0], {{0, 95}, {97, 130}}, options), (Ranges{{0, 100}, {100, 130}}));
  EXPECT_EQ(planned(*files_[0], {{0, 40}, {20, 30}, {10, 60}, {5, 5}}, options), (Ranges{{0, 60}}));
  EXPECT_EQ(planned(*files_[0], {}, options), Ranges{});
}

TEST_F(RangeReads, RandomRangesComeBackRightAndNoByteTwice) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const RangeReadOptions options{.merge_gap = static_cast<int64_t>(random() % 3 * 500),
                                   .max_request = static_cast<int64_t>(random() % 5000 + 1),
                                   .in_flight = static_cast<int>(random() % 4 + 1)};
    const size_t count = random() % 40;
    std::vector<std::vector<std::byte>> destinations(count);
    std::vector<RangeRead> reads;
    std::vector<std::vector<bool>> wanted(3, std::vector<bool>(100'000));
    for (auto& destination : destinations) {
      const size_t file = random() % 3;
      const size_t offset = random() % 90'000;
      destination.resize(random() % 9000);
      reads.push_back({files_[file].get(), static_cast<int64_t>(offset), destination});
      for (size_t i = 0; i < destination.size(); ++i) wanted[file][offset + i] = true;
    }
    const RangeReadStats stats = read_ranges(reads, options);
    for (const RangeRead& read : reads) {
      const size_t file = static_cast<size_t>(std::stoi(read.file->path().filename()));
      ASSERT_EQ(std::memcmp(read.destination.data(), contents_[file].data() + read.offset, read.destination.size()), 0);
    }
    int64_t distinct = 0;
    for (const auto& bits : wanted) distinct += std::ranges::count(bits, true);
    EXPECT_EQ(stats.bytes_wanted, distinct);
    EXPECT_GE(stats.bytes_read, distinct);
    const std::vector<RangeRequest> requests = plan_requests(reads, options);
    EXPECT_EQ(stats.requests, std::ssize(requests));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_LE(requests[i].end - requests[i].begin, options.max_request);
      if (i > 0 && requests[i].file == requests[i - 1].file) {
        EXPECT_GE(requests[i].begin, requests[i - 1].end);
      }
    }
    if (options.merge_gap == 0) {
      EXPECT_EQ(stats.bytes_read, distinct);
    }
  }
}

TEST_F(RangeReads, EndOfFileIsAnErrorThatNamesTheFile) {
  std::vector<std::byte> out(10);
  const RangeRead read{files_[1].get(), 99'995, out};
  const auto failure = guard([&] { (void)read_ranges(std::span(&read, 1)); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, testing::HasSubstr(files_[1]->path().string()));
}

}  // namespace
}  // namespace weft
