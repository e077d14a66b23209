#include "model/step_buffer.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;

TEST(StepBuffer, TablesArriveWithOneSend) {
  HostDevice device;
  StepBuffer buffer(device);
  buffer.begin(100, 2);
  const std::span<const int32_t> ids = buffer.add(std::vector<int32_t>{3, 1, 4});
  const StepTable<int64_t> rows = buffer.place<int64_t>(2);
  rows.here[0] = 5;
  rows.here[1] = 9;
  buffer.send();
  EXPECT_THAT(ids, ElementsAre(3, 1, 4));
  EXPECT_THAT(rows.there, ElementsAre(5, 9));
}

TEST(StepBuffer, EqualSizesGiveEqualAddressesUntilItGrows) {
  HostDevice device;
  StepBuffer buffer(device);
  const auto add = [&](size_t first, size_t second) {
    buffer.begin(static_cast<int64_t>(4 * (first + second)), 2);
    (void)buffer.add(std::vector<int32_t>(first));
    return buffer.add(std::vector<int32_t>(second)).data();
  };
  const std::byte* const address = buffer.address();
  const int32_t* const before = add(3, 7);
  EXPECT_NE(buffer.address(), address);
  EXPECT_EQ(add(3, 500), before) << "what comes last moves nothing before it";
  const std::byte* const small = buffer.address();
  (void)add(3, 1 << 20);
  EXPECT_NE(buffer.address(), small);
}

TEST(StepBuffer, RefusesMoreThanWasAnnounced) {
  HostDevice device;
  StepBuffer buffer(device);
  buffer.begin(16, 1);
  EXPECT_THROW((void)buffer.place<std::byte>(1 << 20), Error);
}

}  // namespace
}  // namespace weft
