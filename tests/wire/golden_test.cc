// Golden bytes of every type of frame, in both directions. tools/make_wire_goldens.py wrote them, with an encoder of its own.
#include <bit>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/boundary.h"

#include "wire/wire_test_util.h"

namespace weft {
namespace {

using wire_test::add;
using wire_test::encoded;
using wire_test::expect_same;
using wire_test::message_of;
using wire_test::tensor_of;

using Bytes = std::vector<std::byte>;

const std::filesystem::path kFolder = std::filesystem::path(WEFT_SOURCE_DIR) / "tests/wire/golden";

// The messages of a file: "message" begins one, '#' a comment.
std::vector<Bytes> read_golden(const std::string& name) {
  std::vector<Bytes> messages;
  std::istringstream lines(read_text_file(kFolder / (name + ".hex")));
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    while (words >> word) {
      if (word == "message") {
        messages.emplace_back();
      } else {
        messages.at(messages.size() - 1).push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
      }
    }
  }
  return messages;
}

FrameTensor tensor(TensorKind kind, std::shared_ptr<const Tensor> values) { return FrameTensor::of(kind, std::move(values)); }

std::vector<SequenceRow> rows() { return {{0x1122334455667788, 5, 2, 0, 1, 1, 9}, {2, 1000, 1, 2, 2, 3, 0}}; }

Frame header(FrameType type, uint32_t epoch, uint16_t source, uint16_t destination, uint64_t step) {
  Frame frame;
  frame.type = type;
  frame.epoch = epoch;
  frame.source = source;
  frame.destination = destination;
  frame.step = step;
  return frame;
}

struct Golden {
  Frame frame;
  int64_t chunk = FrameLimits().chunk;
  Checksum checksum = Checksum::on;
  Compression compression = Compression::none;
};

std::map<std::string, Golden> goldens() {
  std::map<std::string, Golden> made;
  Frame frame = header(FrameType::step, 3, kCoordinator, 1, 7);
  frame.micro_batch = 2;
  frame.tensors = {message_of("a decision")};
  made["step"].frame = frame;

  frame = header(FrameType::payload, 3, 0, 1, 0x0102030405060708);
  frame.micro_batch = 0xA1A2A3A4;
  frame.rows = rows();
  frame.tensors = {
      tensor(TensorKind::hidden, tensor_of(DType::f32, {3, 2}, std::vector<float>{1.0F, -2.0F, 0.5F, 4.0F, -0.0F, 8.0F})),
      tensor(TensorKind::token_ids, tensor_of(DType::u32, {3}, std::vector<uint32_t>{1, 163'585, 0xFFFFFFFF})),
      tensor(TensorKind::positions, tensor_of(DType::i32, {3}, std::vector<int32_t>{5, 6, -1}))};
  made["payload"].frame = frame;

  frame = header(FrameType::tokens, 3, 2, kCoordinator, 7);
  frame.tensors = {message_of("done"),
                   tensor(TensorKind::logits, tensor_of(DType::f32, {1, 3}, std::vector<float>{0.25F, -1.5F, 3.0F}))};
  made["tokens"].frame = frame;

  frame = header(FrameType::logits, 3, 2, kCoordinator, 7);
  frame.tensors = {tensor(TensorKind::logits, tensor_of(DType::bf16, {2}, std::vector<uint16_t>{0x3F80, 0xC000}))};
  made["logits"].frame = frame;

  made["credit"] = {header(FrameType::credit, 3, 1, 0, 3), FrameLimits().chunk, Checksum::off, Compression::none};

  frame = header(FrameType::abort, 3, 1, 2, 8);
  frame.tensors = {message_of("[stage] failed")};
  made["abort"].frame = frame;

  made["ping"] = {header(FrameType::ping, 0, kCoordinator, kCoordinator, 41), FrameLimits().chunk, Checksum::off,
                  Compression::none};
  made["pong"] = {header(FrameType::pong, 0, kCoordinator, kCoordinator, 41), FrameLimits().chunk, Checksum::off,
                  Compression::none};

  frame = header(FrameType::control, 0, kCoordinator, kCoordinator, 0);
  frame.tensors = {message_of(""), tensor(TensorKind::cache, tensor_of(DType::f32, {}, std::vector<float>{1.5F})),
                   tensor(TensorKind::embeddings, tensor_of(DType::bf16, {0, 7}, std::vector<uint16_t>{}))};
  made["control"].frame = frame;

  frame = header(FrameType::payload, 1, 0, 1, 5);
  frame.rows = {rows().front()};
  std::vector<uint16_t> rising(10);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<uint16_t>(0x3F80 + i);
  frame.tensors = {tensor(TensorKind::hidden, tensor_of(DType::bf16, {2, 5}, rising)),
                   tensor(TensorKind::positions, tensor_of(DType::i32, {4}, std::vector<int32_t>{1, 2, 3, 4}))};
  made["chunks"].frame = frame;
  made["chunks"].chunk = 16;

  frame = header(FrameType::payload, 2, 0, 1, 6);
  frame.rows = {rows().front()};
  constexpr std::array<uint16_t, 4> kPeriod = {0x3F80, 0xC000, 0x0001, 0x7F81};
  std::vector<uint16_t> periodic;
  for (size_t i = 0; i < 320; ++i) periodic.push_back(kPeriod[i % kPeriod.size()]);
  frame.tensors = {tensor(TensorKind::hidden, tensor_of(DType::bf16, {2, 160}, periodic)),
                   tensor(TensorKind::positions, tensor_of(DType::i32, {4}, std::vector<int32_t>{1, 2, 3, 4}))};
  made["lz4"].frame = frame;
  made["lz4"].compression = Compression::lz4;
  return made;
}

// K3's before layer s with blocks of 12 layers: 3 rows of D = 4. Value (plane * 32 + row * 8 + column), negative in odd
// columns.
constexpr int64_t kBlock = 12;
constexpr int64_t kRows = 3;
constexpr int64_t kWidth = 4;

std::shared_ptr<const Tensor> plane_of(int64_t plane) {
  std::vector<float> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kWidth; ++column) {
      const auto value = static_cast<float>(plane * 32 + row * 8 + column);
      values.push_back(column % 2 == 0 ? value : -value);
    }
  }
  return tensor_of(DType::f32, {kRows, kWidth}, values);
}

Boundary boundary_before(int64_t layer) {
  Boundary boundary;
  boundary.layer = LayerIndex(layer);
  boundary.sealed = layer % kBlock == 0;
  boundary.hidden = plane_of(0);
  for (int64_t plane = 1; plane <= (layer + kBlock - 1) / kBlock; ++plane) boundary.blocks.push_back(plane_of(plane));
  return boundary;
}

Frame frame_of(const Boundary& boundary, DType activation) {
  Frame frame = header(FrameType::payload, 1, 0, 1, 1);
  SequenceRow row;
  row.sequence = 1;
  row.count = kRows;
  frame.rows = {row};
  frame.tensors = {FrameTensor::of(boundary.sealed ? TensorKind::sealed : TensorKind::hidden,
                                   std::make_shared<const Tensor>(pack_boundary(boundary, activation)))};
  return frame;
}

std::string boundary_name(int64_t layer, DType activation) {
  return "k3_boundary_" + std::to_string(layer) + (activation == DType::bf16 ? "_bf16" : "_f32");
}

// Blocks that exist on either side once the boundary has crossed: a sealed running sum is one of them.
int64_t blocks_of(const Boundary& boundary) { return static_cast<int64_t>(boundary.blocks.size()) + (boundary.sealed ? 1 : 0); }

Frame decode(const std::vector<Bytes>& messages) {
  FrameDecoder decoder({});
  std::optional<Frame> whole;
  for (const Bytes& message : messages) {
    EXPECT_FALSE(whole.has_value());
    whole = add(decoder, message);
  }
  EXPECT_TRUE(whole.has_value());
  return whole.value_or(Frame());
}

TEST(Golden, D5EveryFrameEncodesToItsBytes) {
  for (const auto& [name, golden] : goldens()) {
    if (golden.compression != Compression::none) continue;  // how a block is made is the library's choice
    FrameLimits limits;
    limits.chunk = golden.chunk;
    EXPECT_TRUE(encoded(golden.frame, limits, golden.checksum) == read_golden(name)) << name;
  }
}

TEST(Golden, D5EveryFrameIsDecodedFromItsBytes) {
  std::set<int> types;
  for (const auto& [name, golden] : goldens()) {
    SCOPED_TRACE(name);
    const Frame found = decode(read_golden(name));
    expect_same(found, golden.frame);
    types.insert(static_cast<int>(found.type));
  }
  EXPECT_EQ(types.size(), 9U);  // all there are
}

TEST(Golden, D5K3BoundariesBeforeAtAndAfterABlock) {
  const std::map<int64_t, int64_t> blocks_after = {{kBlock - 1, 1}, {kBlock, 2}, {kBlock + 1, 2}, {2 * kBlock, 3}};
  for (const auto& [layer, blocks] : blocks_after) {
    for (const DType activation : {DType::bf16, DType::f32}) {
      const std::string name = boundary_name(layer, activation);
      SCOPED_TRACE(name);
      const Boundary sent = boundary_before(layer);
      EXPECT_EQ(blocks_of(sent), blocks);
      EXPECT_EQ(blocks_of(sent), layer / kBlock + 1);  // ruling R1
      const std::vector<Bytes> golden = read_golden(name);
      EXPECT_TRUE(encoded(frame_of(sent, activation)) == golden);

      const Frame frame = decode(golden);
      ASSERT_EQ(frame.tensors.size(), 1U);
      EXPECT_EQ(frame.tensors[0].kind == TensorKind::sealed, layer % kBlock == 0);
      const BoundaryForm form{LayerIndex(layer), (layer + kBlock - 1) / kBlock, layer % kBlock == 0, kWidth, activation};
      const Boundary found = unpack_boundary(frame.tensors[0].view, frame.tensors[0].kind == TensorKind::sealed, form, kRows);
      EXPECT_EQ(blocks_of(found), blocks);
      EXPECT_EQ(found.sealed, sent.sealed);
      ASSERT_EQ(found.planes(), sent.planes());
      EXPECT_TRUE(wire_test::same_bytes(found.hidden->view(), sent.hidden->view()));
      for (size_t i = 0; i < sent.blocks.size(); ++i)
        EXPECT_TRUE(wire_test::same_bytes(found.blocks[i]->view(), sent.blocks[i]->view())) << i;
    }
  }
}

TEST(Golden, D5ThePayloadOfASealedBoundaryIsTheRunningSumFirst) {
  // Row 1 before layer 12, BF16: plane 0 (8, -9, 10, -11), then block 0 (40, -41, 42, -43).
  const Bytes message = read_golden("k3_boundary_12_bf16").front();
  const std::vector<uint16_t> wanted = {0x4100, 0xC110, 0x4120, 0xC130, 0x4220, 0xC224, 0x4228, 0xC22C};
  const size_t payload = 64 + 32 + 48;
  ASSERT_EQ(message.size(), payload + 3 * 2 * 4 * 2);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(wire_layout::get<uint16_t>(message.data() + payload + 16 + 2 * i), wanted[i]) << i;
  EXPECT_EQ(std::to_integer<int>(message[64 + 32]), 1);  // sealed
}

TEST(Golden, D5NoFileIsForgotten) {
  std::set<std::string> wanted;
  for (const auto& [name, golden] : goldens()) wanted.insert(name);
  for (const int64_t layer : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock})
    for (const DType activation : {DType::bf16, DType::f32}) wanted.insert(boundary_name(layer, activation));
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) found.insert(entry.path().stem().string());
  EXPECT_TRUE(found == wanted) << testing::PrintToString(found);
}

}  // namespace
}  // namespace weft
