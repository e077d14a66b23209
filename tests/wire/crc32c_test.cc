// CRC32C against the vectors of RFC 3720, B.4, and against a bit-by-bit form.
#include "pipeline/wire/crc32c.h"

#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

uint32_t plain(std::span<const std::byte> data) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const std::byte byte : data) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

TEST(Crc32c, VectorsOfRfc3720) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\xFF'))), 0x62A8AB43U);
  std::string rising(32, '\0');
  std::iota(rising.begin(), rising.end(), '\0');
  EXPECT_EQ(crc32c(bytes(rising)), 0x46DD794EU);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, PartsGiveTheSameAsTheWholeAndCopiesAreTrue) {
  std::vector<std::byte> data(100'000);
  uint32_t state = 7;
  for (std::byte& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  const std::span<const std::byte> all = data;
  const uint32_t wanted = plain(all);
  EXPECT_EQ(crc32c(all), wanted);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{32'768}, size_t{65'537}, data.size()}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), wanted) << cut;
    std::vector<std::byte> copy(data.size());
    const uint32_t head = crc32c_copy(all.first(cut), copy.data());
    EXPECT_EQ(crc32c_copy(all.subspan(cut), copy.data() + cut, head), wanted) << cut;
    EXPECT_TRUE(copy == data) << cut;
  }
}

}  // namespace
}  // namespace weft
