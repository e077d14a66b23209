#include "formats/logical_prefix.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Stored {
  std::vector<float> values;
  Shape shape;
  [[nodiscard]] TensorView view() const { return {DType::f32, shape, reinterpret_cast<const std::byte*>(values.data())}; }
};

Stored vector_of(std::vector<float> values) {
  const auto size = static_cast<int64_t>(values.size());
  return {std::move(values), {size}};
}

std::string message_of(const Stored& stored, int64_t heads) {
  const auto failure = guard([&] { (void)logical_prefix(stored.view(), heads, "layers.0.A_log"); });
  if (!failure) return "no error";
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
  return failure->message;
}

TEST(LogicalPrefix, AcceptsExactAndZeroPaddedForms) {
  EXPECT_THAT(logical_prefix(vector_of({1, 2}).view(), 2, "a"), ElementsAre(1, 2));
  EXPECT_THAT(logical_prefix(vector_of({1, 2, 0, -0.0F, 0}).view(), 2, "a"), ElementsAre(1, 2));
  EXPECT_THAT(logical_prefix(Stored{{1, 2}, {1, 1, 2, 1}}.view(), 2, "a"), ElementsAre(1, 2));
  EXPECT_THAT(logical_prefix(vector_of({1, 0, 0}).view(), 2, "a"), ElementsAre(1, 0));
  const uint16_t bf16[] = {0x3f80, 0x4000, 0x8000};
  EXPECT_THAT(logical_prefix({DType::bf16, {3}, reinterpret_cast<const std::byte*>(bf16)}, 2, "a"), ElementsAre(1, 2));
}

TEST(LogicalPrefix, RefusesEverythingElseWithLengthAndHeads) {
  EXPECT_THAT(message_of(vector_of({1}), 2), HasSubstr("layers.0.A_log: length 1, expected at least 2 per-head values"));
  EXPECT_THAT(message_of(vector_of({1, 2, 0, 0.5F}), 2),
              HasSubstr("layers.0.A_log: length 4, expected Hk=2 per-head values followed by zeros, found 0.5 at index 3"));
  EXPECT_THAT(message_of(vector_of({1, 2, std::numeric_limits<float>::quiet_NaN()}), 2),
              HasSubstr("length 3, expected Hk=2 per-head values followed by zeros, found nan at index 2"));
  EXPECT_THAT(message_of(vector_of({1, 2, std::numeric_limits<float>::denorm_min()}), 2), HasSubstr("at index 2"));
  EXPECT_THAT(message_of(Stored{{1, 2, 0, 0}, {2, 2}}, 2), HasSubstr("[2, 2]"));
  EXPECT_THAT(message_of(Stored{{1, 2, 0, 0}, {1, 1, 4, 1}}, 2), HasSubstr("[1, 1, 4, 1]"));
  const auto failure = guard([] {
    const int32_t values[] = {1, 2};
    (void)logical_prefix({DType::i32, {2}, reinterpret_cast<const std::byte*>(values)}, 2, "x");
  });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("found I32"));
}

}  // namespace
}  // namespace weft
