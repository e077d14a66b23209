#include "tensor/device.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/workspace.h"

namespace weft {
namespace {

TEST(HostDevice, CopiesBetweenItsMemoryAndTheHost) {
  HostDevice device;
  std::byte* const a = device.take(ByteCount(12));
  std::byte* const b = device.take(ByteCount(12));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0U);
  Tensor values = Tensor::uninitialized(DType::f32, {3});
  for (size_t i = 0; i < 3; ++i) values.as<float>()[i] = static_cast<float>(i) + 0.5F;
  device.upload(a, values.data(), 12);
  values.as<float>()[0] = 7.0F;  // the upload is done
  device.copy(b, a, 12);
  const Tensor found = device.fetch({DType::f32, {3}, b});
  EXPECT_THAT(found.as<float>(), testing::ElementsAre(0.5F, 1.5F, 2.5F));
}

TEST(Workspace, TheSameTakesGiveTheSameAddresses) {
  HostDevice device;
  Workspace workspace(device);
  const auto take = [&] {
    const Workspace::Scope scope(workspace);
    std::vector<std::byte*> addresses = {workspace.take({5}).data, workspace.take({1 << 20}).data};
    {
      const Workspace::Scope inner(workspace);
      addresses.push_back(workspace.take({3}).data);
    }
    addresses.push_back(workspace.take({9}, DType::u8).data);
    EXPECT_EQ(addresses[2], addresses[3]) << "a scope gives back what was taken in it";
    return addresses;
  };
  (void)take();
  const std::vector<std::byte*> second = take();
  EXPECT_EQ(take(), second);
}

TEST(Workspace, KeepsAPlannedStepInOnePiece) {
  HostDevice device;
  Workspace workspace(device, ByteCount(8 << 20));
  EXPECT_EQ(device.taken(), ByteCount(0));
  {
    const Workspace::Scope scope(workspace);
    (void)workspace.take({2 << 20}, DType::u8);
    EXPECT_EQ(device.taken(), ByteCount(8 << 20));
    for (int i = 0; i < 3; ++i) (void)workspace.take({2 << 20}, DType::u8);
    EXPECT_EQ(device.taken(), ByteCount(8 << 20));
  }
  (void)workspace.take({1}, DType::u8);
  EXPECT_EQ(workspace.most_used(), ByteCount(8 << 20));
  (void)workspace.take({8 << 20}, DType::u8);  // beyond the plan
  EXPECT_EQ(workspace.most_used(), ByteCount(16 << 20));
  EXPECT_EQ(workspace.bytes_allocated(), ByteCount(16 << 20));
}

TEST(BorrowedTensor, LeavesTheMemoryToItsOwner) {
  std::array<float, 2> memory = {1.0F, 2.0F};
  {
    Tensor tensor = Tensor::borrowed({DType::f32, {2}, reinterpret_cast<std::byte*>(memory.data())});
    tensor.as<float>()[1] = 3.0F;
    const Tensor moved = std::move(tensor);
    EXPECT_EQ(moved.view().data, reinterpret_cast<std::byte*>(memory.data()));
  }
  EXPECT_EQ(memory[1], 3.0F);
}

}  // namespace
}  // namespace weft
