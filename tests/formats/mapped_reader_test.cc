#include "formats/mapped_reader.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/pages.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using Range = std::pair<int64_t, int64_t>;

std::vector<Range> planned(const std::vector<Range>& ranges, int64_t limit) {
  static const std::vector<std::byte> memory(1000);
  std::vector<MappedPart> parts;
  for (const auto& [begin, end] : ranges) parts.emplace_back(memory.data() + begin, static_cast<size_t>(end - begin));
  std::vector<Range> made;
  for (const MappedPart request : plan_mapped_requests(parts, {.max_request = limit, .in_flight = 1}))
    made.emplace_back(request.data() - memory.data(), request.data() - memory.data() + std::ssize(request));
  return made;
}

TEST(MappedReader, RequestsCoverThePartsOnce) {
  EXPECT_THAT(planned({}, 100), ElementsAre());
  EXPECT_THAT(planned({{5, 5}}, 100), ElementsAre());
  EXPECT_THAT(planned({{20, 30}, {0, 10}}, 100), ElementsAre(Range(0, 10), Range(20, 30)));
  EXPECT_THAT(planned({{10, 20}, {0, 10}}, 100), ElementsAre(Range(0, 20)));
  EXPECT_THAT(planned({{0, 10}, {2, 5}, {4, 12}}, 100), ElementsAre(Range(0, 12)));
  EXPECT_THAT(planned({{0, 250}}, 100), ElementsAre(Range(0, 100), Range(100, 200), Range(200, 250)));
  EXPECT_THAT(planned({{0, 60}, {60, 130}}, 100), ElementsAre(Range(0, 100), Range(100, 130)));
  EXPECT_THAT(planned({{0, 100}, {50, 220}, {220, 230}}, 100), ElementsAre(Range(0, 100), Range(100, 200), Range(200, 230)));
}

// Whoever is told may end the reading.
TEST(MappedReader, AnErrorOfTheListenerEndsIt) {
  static const std::vector<std::byte> memory(1000);
  std::vector<MappedPart> parts;
  for (size_t at = 0; at < memory.size(); at += 2) parts.emplace_back(memory.data() + at, 1);
  int told = 0;
  EXPECT_THROW(read_mapped(parts, {.max_request = 1, .in_flight = 1},
                           [&](int64_t) {
                             if (++told == 3) throw std::runtime_error("enough");
                           }),
               std::runtime_error);
  EXPECT_EQ(told, 3);
}

// In the build folder: a temporary folder may lie in memory, whose pages cannot be dropped.
TEST(MappedReader, BringsInThePartsAndNothingElse) {
  const std::filesystem::path path = "mapped_reader_test.bin";
  const int64_t page = page_bytes();
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(64 * page), 'x');
  evict_pages(path);
  EXPECT_THAT(cached_pages(path), ::testing::Each(false));
  {
    const MappedFile file(path);
    read_pages_singly(file.bytes());
    const auto part = [&](int64_t begin, int64_t end) {
      return file.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    };
    read_mapped({part(3 * page + 100, 5 * page + 1), part(40 * page, 41 * page)});
    std::vector<bool> wanted(64, false);
    for (const size_t i : {3U, 4U, 5U, 40U}) wanted[i] = true;
    EXPECT_EQ(cached_pages(path), wanted);
    EXPECT_EQ(file.bytes()[static_cast<size_t>(10 * page)], std::byte{'x'});
    wanted[10] = true;
    EXPECT_EQ(cached_pages(path), wanted) << "a touched page comes alone";
    EXPECT_THROW(evict_pages(path), Error) << "mapped pages stay";
  }
  evict_pages(path);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace weft
