// The wire form of a boundary: ruling R1, distributed.md 5.7.
#include "model/boundary.h"

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<Tensor> plane(int64_t rows, int64_t width, float first) {
  Tensor made = Tensor::zeros(DType::f32, {rows, width});
  const std::span<float> values = made.as<float>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return std::make_shared<Tensor>(std::move(made));
}

std::string message(const std::function<void()>& body) {
  const auto failure = guard(body);
  return failure ? std::string(to_string(failure->kind)) + ": " + failure->message : "no error";
}

TEST(Boundary, PacksHiddenFirstThenTheBlocks) {
  const Boundary boundary{LayerIndex(5), plane(2, 3, 100), {plane(2, 3, 0), plane(2, 3, 10)}, false};
  const Tensor packed = pack_boundary(boundary, DType::f32);
  ASSERT_EQ(packed.shape(), Shape({2, 9}));
  EXPECT_THAT(packed.as<float>(), ElementsAre(100, 101, 102, 0, 1, 2, 10, 11, 12, 103, 104, 105, 3, 4, 5, 13, 14, 15));
  const BoundaryForm form{LayerIndex(5), 2, false, 3, DType::f32};
  EXPECT_EQ(form.planes(), boundary.planes());
  const Boundary again = unpack_boundary(packed.view(), false, form, 2);
  EXPECT_EQ(again.layer, LayerIndex(5));
  EXPECT_FALSE(again.sealed);
  EXPECT_TRUE(std::ranges::equal(again.hidden->as<float>(), boundary.hidden->as<float>()));
  ASSERT_EQ(again.blocks.size(), 2U);
  EXPECT_TRUE(std::ranges::equal(again.blocks[1]->as<float>(), boundary.blocks[1]->as<float>()));
}

// All 65,536 values of bf16 cross, infinities, NaN and subnormal values too.
TEST(Boundary, Bf16LosesNoBit) {
  Tensor all = Tensor::zeros(DType::f32, {64, 1024});
  for (uint32_t i = 0; i < 65536; ++i) all.as<float>()[i] = std::bit_cast<float>(i << 16U);
  const Boundary boundary{LayerIndex(8), std::make_shared<Tensor>(std::move(all)), {plane(64, 1024, -128)}, true};
  Tensor rounded = *boundary.blocks[0];  // small integers need more than eight bits only above 256
  for (float& value : rounded.as<float>()) value = bf16_to_f32(f32_to_bf16(value));
  const Boundary exact{LayerIndex(8), boundary.hidden, {std::make_shared<Tensor>(rounded)}, true};
  const Tensor packed = pack_boundary(exact, DType::bf16);
  EXPECT_EQ(packed.dtype(), DType::bf16);
  EXPECT_EQ(packed.shape(), Shape({64, 2048}));
  const BoundaryForm form{LayerIndex(8), 1, true, 1024, DType::bf16};
  // At an odd address, as in a received message.
  std::vector<std::byte> moved(static_cast<size_t>(packed.bytes()) + 1);
  std::memcpy(moved.data() + 1, packed.view().data, static_cast<size_t>(packed.bytes()));
  const Boundary again = unpack_boundary({DType::bf16, packed.shape(), moved.data() + 1}, true, form, 64);
  EXPECT_TRUE(again.sealed);
  EXPECT_EQ(std::memcmp(again.hidden->view().data, exact.hidden->view().data, 4 * 65536), 0);
  EXPECT_EQ(std::memcmp(again.blocks[0]->view().data, exact.blocks[0]->view().data, 4 * 65536), 0);
}

TEST(Boundary, NothingIsRounded) {
  const auto with = [](int64_t p, int64_t row, float value) {
    const std::vector<std::shared_ptr<Tensor>> planes = {plane(3, 40, 0), plane(3, 40, 8), plane(3, 40, 16)};
    planes[static_cast<size_t>(p)]->as<float>()[static_cast<size_t>(row * 40 + 17)] = value;
    return message([&] { (void)pack_boundary({LayerIndex(7), planes[0], {planes[1], planes[2]}, false}, DType::bf16); });
  };
  EXPECT_EQ(with(0, 0, 1.0F), "no error");
  EXPECT_EQ(with(0, 2, 1.00390625F),
            "internal: [boundary] before layer 7: wanted values of bf16, found 1.00390625 in plane 0 (the running sum), row 2, "
            "column 17");
  EXPECT_THAT(with(2, 1, 257.0F),
              HasSubstr("before layer 7: wanted values of bf16, found 257 in plane 2 (block 1), row 1, column 17"));
  EXPECT_THAT(with(1, 0, std::numeric_limits<float>::denorm_min()), HasSubstr("plane 1 (block 0), row 0, column 17"));
  EXPECT_THAT(with(1, 0, std::bit_cast<float>(0x7FC00001U)), HasSubstr("found nan in plane 1"));
  EXPECT_THAT(message([] { (void)pack_boundary({LayerIndex(7), plane(1, 2, 0), {}, false}, DType::f16); }),
              HasSubstr("unsupported: [boundary] wanted F32 or BF16 as the type that crosses, found F16"));
}

TEST(Boundary, AnotherFormIsRefused) {
  const Tensor packed = pack_boundary({LayerIndex(5), plane(2, 3, 0), {plane(2, 3, 0), plane(2, 3, 10)}, false}, DType::f32);
  const BoundaryForm form{LayerIndex(5), 2, false, 3, DType::f32};
  const auto received = [&](BoundaryForm wanted, int64_t rows, bool sealed = false) {
    return message([&] { (void)unpack_boundary(packed.view(), sealed, wanted, rows); });
  };
  EXPECT_EQ(received(form, 2), "no error");
  BoundaryForm other = form;
  other.blocks = 1;
  EXPECT_EQ(
      received(other, 2),
      "bad_input: [boundary] before layer 5: wanted F32 [rows, (K + 1) * 3] = [2, 6] with K = 1 blocks, found F32 [2, 9]");
  other = form;
  other.hidden_size = 4;
  EXPECT_THAT(received(other, 2), HasSubstr("wanted F32 [rows, (K + 1) * 4] = [2, 12] with K = 2 blocks, found F32 [2, 9]"));
  EXPECT_THAT(received(form, 3), HasSubstr("= [3, 9] with K = 2 blocks, found F32 [2, 9]"));
  other = form;
  other.activation = DType::bf16;
  EXPECT_THAT(received(other, 2), HasSubstr("wanted BF16 [rows, (K + 1) * 3] = [2, 9] with K = 2 blocks, found F32 [2, 9]"));
  EXPECT_THAT(received(form, 2, true), HasSubstr("found F32 [2, 9] with plane 0 sealed"));
  other = form;
  other.sealed = true;
  EXPECT_THAT(received(other, 2), HasSubstr("with K = 2 blocks and plane 0 sealed, found F32 [2, 9] with plane 0 not sealed"));
  const TensorView flat{DType::f32, {18}, packed.view().data};
  EXPECT_THAT(message([&] { (void)unpack_boundary(flat, false, form, 2); }), HasSubstr("found F32 [18]"));
}

}  // namespace
}  // namespace weft
