// Packed integers pass a session file as they pass the wire: byte by byte, in the type they have.
#include <filesystem>
#include <string>

#include <unistd.h>

#include "model/state_file.h"

#include "wire/wire_test_util.h"

namespace weft {
namespace {

TEST(StateFileTypes, PackedWeightsAndScalesComeBackByteByByte) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("weft-state-dtype-" + std::to_string(::getpid()) + ".safetensors");
  SequenceState::Tensors tensors;
  tensors.emplace("layers.0.packed", Tensor(*wire_test::pattern(DType::u32, {2, 3, 448}, 1)));
  tensors.emplace("layers.0.scales", Tensor(*wire_test::pattern(DType::u8, {2, 3, 112}, 2)));
  tensors.emplace("layers.1.bf16", Tensor(*wire_test::pattern(DType::bf16, {2, 3, 7}, 3)));
  tensors.emplace("layers.1.f32", Tensor(*wire_test::tensor_of(
                                      DType::f32, {5}, std::vector<uint32_t>{0x80000000, 1, 0x807FFFFF, 0, 0x3F800000})));
  StateFileHeader header;
  header.fingerprint = "model";
  header.consumed = TokenCount(7);
  header.layer_count = 2;
  write_state_file(path, header, tensors);
  const StateFile file(path);
  std::filesystem::remove(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  Frame frame;
  for (const auto& [name, tensor] : tensors) {
    const TensorView& found = file.tensors().at(name);
    EXPECT_EQ(std::string(to_string(found.dtype)), std::string(to_string(tensor.dtype()))) << name;
    EXPECT_EQ(to_string(found.shape), to_string(tensor.shape())) << name;
    EXPECT_TRUE(wire_test::same_bytes(found, tensor.view())) << name;
    frame.tensors.push_back(FrameTensor::of(TensorKind::cache, std::make_shared<const Tensor>(Tensor::copy_of(found))));
  }
  wire_test::expect_same(wire_test::passed(frame), frame);  // from a file to another host
}

}  // namespace
}  // namespace weft
