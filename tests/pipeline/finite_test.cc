// C9 (ggml-org/llama.cpp#23606): a value that is not finite is an error that names the layer and the position, wherever it
// comes from, in models with and without experts.
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/worker_pool.h"
#include "formats/safetensors.h"
#include "model/sequence_state.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "parallel/communicator.h"
#include "tensor/workspace.h"

#include "support/models.h"
#include "support/small_synth.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::open_executor;
using testing_support::TemporaryFolder;

// The GPU tests compile this file too.
#ifdef WEFT_GPU_TESTS
constexpr ops::Backend kBackend = ops::Backend::cuda;
#else
constexpr ops::Backend kBackend = ops::Backend::cpu;
#endif

constexpr const char* kDense = "first_k_dense_replace=5";

void write_synthetic(const fs::path& dir, const std::vector<std::string>& more = {}) {
  SynthOptions options = testing_support::small_synth(dir);
  options.set.insert(options.set.end(), more.begin(), more.end());
  (void)synthesize(options);
}

// Overwrites one bf16 element of a stored tensor.
void poison(const fs::path& dir, const std::string& name, int64_t index, const char* bits) {
  for (const auto& file : fs::directory_iterator(dir)) {
    if (file.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard(file.path());
    const TensorEntry* entry = shard.find("language_model." + name);
    if (entry == nullptr) continue;
    std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(entry->begin + 2 * index).write(bits, 2);
    return;
  }
  FAIL() << "no tensor " << name;
}

constexpr const char* kNan = "\xc0\x7f";
constexpr const char* kInfinity = "\x80\x7f";

enum class Wanted : uint8_t { logits, draw, nothing };

std::string fault_of(const fs::path& dir, const std::vector<int32_t>& ids, Wanted wanted = Wanted::logits,
                     const std::vector<int64_t>& cuts = {}) {
  const auto executor = open_executor(dir, {.cuts = cuts, .backend = kBackend});
  Rows rows;
  rows.sequence = executor->create();
  rows.ids = ids;
  if (wanted == Wanted::logits) rows.logits = Rows::Logits::last;
  if (wanted == Wanted::draw) rows.sample = SampleRequest{};
  Step step;
  step.rows.push_back(std::move(rows));
  (void)executor->submit(std::move(step));
  const Completion completion = executor->next();
  if (!completion.failure) return "no error";
  EXPECT_EQ(completion.failure->kind, ErrorKind::bad_checkpoint);
  return completion.failure->message;
}

TEST(C9, AWeightThatIsNotFiniteIsNamedByLayerAndPosition) {
  for (const std::vector<std::string>& kind : {std::vector<std::string>{kDense}, std::vector<std::string>{}}) {
    const TemporaryFolder folder;
    const fs::path dir = folder.path() / "m";
    write_synthetic(dir, kind);
    EXPECT_EQ(fault_of(dir, {1, 2, 3, 4, 5}), "no error");
    poison(dir, "model.layers.2.self_attn.o_proj.weight", 5, kNan);
    // Whatever is asked for, and on one stage or several.
    for (const Wanted wanted : {Wanted::logits, Wanted::draw, Wanted::nothing}) {
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{}, std::vector<int64_t>{1, 3}}) {
        EXPECT_THAT(fault_of(dir, {1, 2, 3, 4, 5}, wanted, cuts),
                    AllOf(HasSubstr("[stage] layer 2: [attention] position 0, element 0"), HasSubstr("nan")));
      }
    }
    // Earlier in the model, and only at the token that has this row.
    poison(dir, "model.embed_tokens.weight", 4 * 64 + 7, kInfinity);
    EXPECT_THAT(fault_of(dir, {1, 2, 3, 4, 5}), HasSubstr("layer 0: [attention] position 3"));
  }
}

TEST(C9, AnMlpWeightToo) {
  const TemporaryFolder folder;
  const fs::path dir = folder.path() / "m";
  write_synthetic(dir, {kDense});
  poison(dir, "model.layers.3.mlp.down_proj.weight", 96 * 9, kNan);
  EXPECT_THAT(fault_of(dir, {1, 2}), HasSubstr("layer 3: [MLP] position 0, element 9"));
}

TEST(C9, AStateThatIsNotFiniteIsNamedByLayerAndPosition) {
  const TemporaryFolder folder;
  const fs::path dir = folder.path() / "m";
  write_synthetic(dir);
  const auto checkpoint = std::make_shared<const Checkpoint>(dir);
  StageOptions options;
  options.layers = checkpoint->all_layers();
  if (kBackend == ops::Backend::cuda) options.device = open_cuda_device();
  const std::unique_ptr<Stage> stage = make_stage(checkpoint, options);
  WorkerPool pool(1);
  SingleRank ranks;
  Workspace workspace(stage->device());
  ops::Context context;
  context.backend = kBackend;
  context.pool = &pool;
  context.comm = &ranks;
  context.device = &stage->device();
  context.workspace = &workspace;
  SequenceState sequence(stage->states());
  const auto step = [&](std::vector<int32_t> ids) {
    Batch batch;
    batch.groups.push_back(sequence.extend(0, std::ssize(ids)));
    batch.ids = std::move(ids);
    batch.logits_rows = {batch.rows() - 1};
    (void)stage->forward(context, batch, std::nullopt);
    (void)sequence.commit();
    stage->settle(batch);
    return batch.groups.front().slot_out;
  };
  (void)step({1, 2, 3});
  (void)step({4});
  const SlotId slot = step({5});  // on a GPU the recorded step from here on
  EXPECT_EQ(stage->replayed_steps(), kBackend == ops::Backend::cuda ? 1 : 0);
  const SlotTensor& state = stage->states().layout().at(LayerIndex(4 - 2)).slot.front();
  ASSERT_EQ(state.name, "S");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  stage->device().upload(reinterpret_cast<std::byte*>(stage->states().data(slot) + state.offset),
                         reinterpret_cast<const std::byte*>(&nan), sizeof nan);
  EXPECT_THAT([&] { (void)step({6}); },
              ::testing::ThrowsMessage<Error>(HasSubstr("[stage] layer 2: [attention] position 5, element 0")));
  // What one step met does not stay.
  SequenceState other(stage->states());
  Batch batch;
  batch.groups.push_back(other.extend(0, 1));
  batch.ids = {7};
  batch.logits_rows = {0};
  (void)stage->forward(context, batch, std::nullopt);
  (void)other.commit();
  EXPECT_NO_THROW(stage->settle(batch));
}

}  // namespace
}  // namespace weft
