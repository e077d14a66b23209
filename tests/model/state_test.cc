#include <array>
#include <cstring>
#include <map>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/sequence_state.h"
#include "model/state_pool.h"

namespace weft {
namespace {

using testing::HasSubstr;

StateLayout small_layout() {
  StateLayout layout({LayerIndex(3), LayerIndex(5)});
  layout.add_slot_layer(LayerIndex(3), {{"S", {2, 3, 3}}, {"conv_q", {3, 6}}});
  layout.add_page_layer(LayerIndex(4), {{"latent", 5}, {"pe", 2}});
  return layout;
}

class States : public testing::Test {
 protected:
  StatePool pool{small_layout(), [] { return std::string("model-a"); }, {.slots = 4, .pages = 8}};

  // Writes `value` as the state and the page rows of a step, as a stage would.
  void fill(const RowGroup& group, float value) {
    pool.data(group.slot_out)[0] = value;
    for (const CheckpointSlot& checkpoint : group.checkpoints) pool.data(checkpoint.slot)[0] = value - 0.5F;
    const LayerState& layer = pool.layout().at(LayerIndex(4));
    for (int64_t i = 0; i < group.row_count; ++i) {
      const int64_t position = group.start.value + i;
      pool.data(
          group.pages[static_cast<size_t>(position / ops::kPageTokens)])[(position % ops::kPageTokens) * layer.page_width] =
          value;
    }
  }
  void advance(SequenceState& state, int64_t rows, float value) {
    fill(state.extend(0, rows), value);
    EXPECT_TRUE(state.commit().empty());
  }
};

TEST_F(States, TheCountMovesOnlyWithACommittedStep) {
  SequenceState state(pool);
  const RowGroup group = state.extend(7, 5);
  EXPECT_EQ(group.first_row, 7);
  EXPECT_EQ(group.start, TokenCount(0));
  EXPECT_FALSE(group.slot_in);
  EXPECT_EQ(state.consumed(), TokenCount(0));
  EXPECT_THROW((void)state.extend(0, 1), Error);  // a step is open
  (void)state.commit();
  EXPECT_EQ(state.consumed(), TokenCount(5));
  EXPECT_EQ(state.extend(0, 1).slot_in, group.slot_out);
}

TEST_F(States, MemoryGoesBackWhenTheHandleDies) {
  {
    SequenceState state(pool);
    advance(state, 65, 1);
    (void)state.extend(0, 100);
    EXPECT_EQ(pool.slots_held(), 1);
    EXPECT_EQ(pool.pages_held(), 3);
  }
  EXPECT_EQ(pool.slots_held(), 0);
  EXPECT_EQ(pool.pages_held(), 0);
}

TEST_F(States, AForkWritesToItsOwnMemory) {
  SequenceState a(pool);
  advance(a, 70, 1);  // one full page, one partial
  SequenceState b = a.fork();
  EXPECT_EQ(b.consumed(), TokenCount(70));
  EXPECT_EQ(pool.slots_held(), 1);
  EXPECT_EQ(pool.pages_held(), 2);

  const RowGroup group = b.extend(0, 3);
  EXPECT_NE(group.slot_out, *group.slot_in);
  fill(group, 2);
  (void)b.commit();
  EXPECT_EQ(pool.pages_held(), 3);  // the full page is shared, the partial one was copied
  EXPECT_EQ(a.export_tensors().at("layers.3.S").as<float>()[0], 1.0F);
  EXPECT_EQ(b.export_tensors().at("layers.3.S").as<float>()[0], 2.0F);
  const Tensor latent = b.export_tensors().at("layers.4.latent");
  EXPECT_EQ(latent.shape(), Shape({73, 5}));
  EXPECT_EQ(latent.as<float>()[69 * 5], 1.0F);
  EXPECT_EQ(latent.as<float>()[70 * 5], 2.0F);

  advance(a, 1, 3);  // nobody shares a's partial page any more, so it is written in place
  EXPECT_EQ(pool.pages_held(), 3);
  EXPECT_EQ(b.export_tensors().at("layers.4.latent").as<float>()[70 * 5], 2.0F);
}

TEST_F(States, CheckpointsAreStatesOfTheirOwnCount) {
  SequenceState state(pool);
  const std::array<int64_t, 2> offsets = {1, 64};
  fill(state.extend(0, 66, offsets), 4);
  std::vector<SequenceState> checkpoints = state.commit();
  ASSERT_EQ(checkpoints.size(), 2U);
  EXPECT_EQ(checkpoints[0].consumed(), TokenCount(1));
  EXPECT_EQ(checkpoints[1].consumed(), TokenCount(64));
  EXPECT_EQ(checkpoints[1].export_tensors().at("layers.3.S").as<float>()[0], 3.5F);
  EXPECT_EQ(checkpoints[1].export_tensors().at("layers.4.latent").shape(), Shape({64, 5}));
  EXPECT_EQ(pool.pages_held(), 2);
  checkpoints.clear();
  EXPECT_EQ(pool.slots_held(), 1);
  const std::array<int64_t, 1> outside = {4};
  EXPECT_THROW((void)state.extend(0, 3, outside), Error);
  advance(state, 3, 5);  // the refused call left nothing open
}

TEST_F(States, ACheckpointBehindTheLastRowIsAFork) {
  SequenceState state(pool);
  const std::array<int64_t, 2> offsets = {2, 3};
  const RowGroup group = state.extend(0, 3, offsets);
  EXPECT_EQ(group.checkpoints.size(), 1U);  // the other one costs the stage nothing
  fill(group, 4);
  std::vector<SequenceState> checkpoints = state.commit();
  ASSERT_EQ(checkpoints.size(), 2U);
  EXPECT_EQ(checkpoints[1].consumed(), TokenCount(3));
  EXPECT_EQ(checkpoints[1].export_tensors().at("layers.3.S").as<float>()[0], 4.0F);
  EXPECT_EQ(pool.slots_held(), 2);
  advance(state, 1, 5);
  EXPECT_EQ(checkpoints[1].export_tensors().at("layers.3.S").as<float>()[0], 4.0F);
}

TEST_F(States, AFullPoolRefusesAndLeavesTheStateAsItWas) {
  SequenceState a(pool);
  advance(a, 64 * 7, 1);
  SequenceState b(pool);
  try {
    (void)b.extend(0, 65);
    FAIL() << "wanted an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("page"));
  }
  EXPECT_EQ(pool.slots_held(), 1);
  EXPECT_EQ(pool.pages_held(), 7);
  advance(b, 64, 2);
}

TEST_F(States, AFailedStepBreaksOnlyWhatItMayHaveOverwritten) {
  SequenceState a(pool);
  (void)a.extend(0, 3);
  a.fail_step();
  advance(a, 3, 1);  // the first step wrote to memory of its own
  SequenceState b = a.fork();
  (void)b.extend(0, 1);
  b.fail_step();
  advance(b, 1, 2);
  (void)a.extend(0, 1);
  a.fail_step();  // in place: half written
  EXPECT_THROW((void)a.extend(0, 1), Error);
  EXPECT_THROW((void)a.fork(), Error);
  EXPECT_THROW((void)a.export_tensors(), Error);
}

TEST_F(States, ExportAndImportAreInverse) {
  SequenceState state(pool);
  advance(state, 130, 1.25F);
  const SequenceState::Tensors tensors = state.export_tensors();
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : tensors) views.emplace(name, tensor.view());
  const Tensor foreign = Tensor::zeros(DType::f32, {1});
  views.emplace("layers.9.S", foreign.view());  // a layer of another stage

  StatePool other(small_layout(), [] { return std::string("model-a"); }, {.slots = 1, .pages = 3});
  const SequenceState loaded = SequenceState::import_tensors(other, TokenCount(130), views);
  EXPECT_EQ(loaded.consumed(), TokenCount(130));
  const SequenceState::Tensors again = loaded.export_tensors();
  ASSERT_EQ(again.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    // Bits: what no step wrote is undefined, and may be NaN.
    ASSERT_EQ(tensor.bytes(), again.at(name).bytes());
    EXPECT_EQ(std::memcmp(tensor.view().data, again.at(name).view().data, static_cast<size_t>(tensor.bytes())), 0) << name;
  }
}

TEST_F(States, ImportNamesWhatIsMissingOrWrong) {
  SequenceState state(pool);
  advance(state, 3, 1);
  const SequenceState::Tensors tensors = state.export_tensors();
  const auto message = [&](auto change) -> std::string {
    std::map<std::string, TensorView> views;
    for (const auto& [name, tensor] : tensors) views.emplace(name, tensor.view());
    change(views);
    try {
      (void)SequenceState::import_tensors(pool, TokenCount(3), views);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([](auto& views) { views.erase("layers.4.pe"); }), HasSubstr("'layers.4.pe': wanted F32 [3, 2]"));
  EXPECT_THAT(message([](auto& views) { views.at("layers.3.S").shape = Shape{2, 9}; }),
              HasSubstr("wanted F32 [2, 3, 3], found F32 [2, 9]"));
  EXPECT_EQ(pool.slots_held(), 1);
}

}  // namespace
}  // namespace weft
