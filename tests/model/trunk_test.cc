#include "model/trunk.h"

#include <vector>

#include <gmock/gmock.h>

#include "support/models.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing_support::k3_mini;

TEST(Trunk, ReadingSaysHowFarItIs) {
  const Checkpoint checkpoint(k3_mini());
  const LayerRange layers{LayerIndex(0), LayerIndex(checkpoint.config().layer_count)};
  std::vector<int64_t> told;
  read_trunk(checkpoint, layers, [&](int64_t done) { told.push_back(done); });
  ASSERT_FALSE(told.empty());
  for (size_t i = 1; i < told.size(); ++i) EXPECT_GT(told[i], told[i - 1]);
  EXPECT_GT(told.front(), 0);
  EXPECT_EQ(told.back(), trunk_bytes(checkpoint, layers).value);
}

TEST(Trunk, WhoIsToldMayEndTheReading) {
  const Checkpoint checkpoint(k3_mini());
  const LayerRange layers{LayerIndex(0), LayerIndex(2)};
  const auto failure =
      guard([&] { read_trunk(checkpoint, layers, [](int64_t) { fail(ErrorKind::unavailable, "test", "enough"); }); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unavailable);
  EXPECT_THAT(failure->message, HasSubstr("enough"));
}

}  // namespace
}  // namespace weft
