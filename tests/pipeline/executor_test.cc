// The executor's contract: failures are whole, named and contained; states of other models are refused.
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapping_guard.h"
#include "model/state_file.h"
#include "pipeline/check.h"
#include "pipeline/plan.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;
using testing::HasSubstr;

const std::vector<int32_t> kPrompt = {3, 14, 15, 92, 65, 35, 89};

Step step_of(SequenceId sequence, std::vector<int32_t> ids) {
  Rows rows;
  rows.sequence = sequence;
  rows.ids = std::move(ids);
  rows.logits = Rows::Logits::last;
  Step step;
  step.rows.push_back(std::move(rows));
  return step;
}

std::string message_of(const std::function<void()>& body) {
  const std::optional<Failure> failure = guard(body);
  return failure ? failure->message : "no error";
}

// A copy of a fixture that a test may damage.
std::filesystem::path copy_of(const std::string& name, const TemporaryFolder& folder) {
  const auto to = folder.path() / name;
  std::filesystem::copy(fixture(name), to, std::filesystem::copy_options::recursive);
  return to;
}

class Splits : public testing::TestWithParam<std::vector<int64_t>> {
 protected:
  std::unique_ptr<LocalExecutor> executor = open_executor(fixture("tiny-k3-8l"), {.cuts = GetParam()});
};

TEST_P(Splits, ABadTokenFailsItsStepOnly) {
  const std::vector<float> alone = logits_of(*executor, kPrompt, 512);
  const SequenceId good = executor->create();
  const SequenceId bad = executor->create();
  (void)executor->submit(step_of(good, {kPrompt.begin(), kPrompt.end() - 1}));
  (void)executor->submit(step_of(bad, {1, 2, 512}));
  (void)executor->submit(step_of(bad, {5}));
  (void)executor->submit(step_of(good, {kPrompt.back()}));
  EXPECT_FALSE(executor->next().failure);
  const Completion failed = executor->next();
  ASSERT_TRUE(failed.failure);
  EXPECT_EQ(failed.failure->kind, ErrorKind::bad_input);
  EXPECT_THAT(failed.failure->message, HasSubstr("row 2: wanted an id in [0, 512), found 512"));
  EXPECT_TRUE(executor->next().failure);  // the sequence of a failed step refuses further steps
  const Completion fine = executor->next();
  ASSERT_FALSE(fine.failure);
  const std::span<const float> last = fine.results.front().logits.as<float>();
  EXPECT_TRUE(same_bits(last, std::span(alone).last(last.size())));
  executor->release(bad);
  executor->release(good);
  EXPECT_TRUE(same_bits(alone, logits_of(*executor, kPrompt, 3)));
}

TEST_P(Splits, SeveralStepsMayBeOpen) {
  const std::vector<float> whole = logits_of(*executor, kPrompt, 512);
  const SequenceId sequence = executor->create();
  for (const int32_t id : kPrompt) (void)executor->submit(step_of(sequence, {id}));
  EXPECT_EQ(executor->consumed(sequence), TokenCount(static_cast<int64_t>(kPrompt.size())));
  const auto vocab = static_cast<size_t>(executor->vocab_size());
  for (size_t i = 0; i < kPrompt.size(); ++i) {
    const Completion completion = executor->next();
    ASSERT_FALSE(completion.failure);
    EXPECT_TRUE(same_bits(completion.results.front().logits.as<float>(), std::span(whole).subspan(i * vocab, vocab))) << i;
  }
}

TEST_P(Splits, MisuseIsNamed) {
  const SequenceId sequence = executor->create();
  EXPECT_THAT(message_of([&] { (void)executor->submit({}); }), HasSubstr("found none"));
  EXPECT_THAT(message_of([&] { (void)executor->submit(step_of(SequenceId(99), {1})); }), HasSubstr("found id 99"));
  EXPECT_THAT(message_of([&] { (void)executor->submit(step_of(sequence, {})); }), HasSubstr("at least one token"));
  Step twice = step_of(sequence, {1});
  twice.rows.push_back(twice.rows.front());
  EXPECT_THAT(message_of([&] { (void)executor->submit(std::move(twice)); }), HasSubstr("twice"));
  Step hot = step_of(sequence, {1});
  hot.rows.front().sample = SampleRequest{};
  hot.rows.front().sample->params.temperature = -1.0F;
  EXPECT_THAT(message_of([&] { (void)executor->submit(std::move(hot)); }), HasSubstr("temperature"));
  EXPECT_THAT(message_of([&] { (void)executor->fork(SequenceId(99)); }), HasSubstr("found id 99"));
  (void)executor->run(step_of(sequence, {1}));  // nothing of that harmed the sequence
}

INSTANTIATE_TEST_SUITE_P(Cuts, Splits,
                         testing::Values(std::vector<int64_t>{}, std::vector<int64_t>{4}, std::vector<int64_t>{1, 7}));

// What the plan says of a model and what the running model says are the same numbers.
TEST(Plan, AgreesWithTheRunningModel) {
  for (const auto& dir : {fixture("tiny-k3-8l"), fixture("tiny-kimi-linear"), fixture("tiny-qwen3-next-8l"),
                          fixture("tiny-qwen3-next-tied-mlponly"), k3_mini()}) {
    const auto checkpoint = std::make_shared<const Checkpoint>(dir);
    const auto executor = open_executor(checkpoint, {.cuts = {2}});
    PlanOptions whole;
    whole.stages = 1;
    const Plan plan = make_plan(plan_model(*checkpoint), whole);
    EXPECT_EQ(plan.read_per_token, executor->bytes_per_token().value) << dir;
    StageOptions options;
    options.layers = checkpoint->all_layers();
    const StateLayout layout = make_stage(checkpoint, options)->states().layout();
    EXPECT_EQ(plan.stages[0].state_fixed, layout.slot_floats() * 4) << dir;
    EXPECT_EQ(plan.stages[0].state_per_token * ops::kPageTokens, layout.page_floats() * 4) << dir;
  }
}

TEST(States, KeepTheirIdsInTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "state.safetensors";
  const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = {4}});
  const SequenceId sequence = executor->create();
  (void)feed(*executor, sequence, kPrompt, 512);
  executor->save(sequence, path, kPrompt);
  const StateFileHeader header = read_state_header(path);
  EXPECT_EQ(header.ids, kPrompt);
  EXPECT_EQ(header.consumed, TokenCount(static_cast<int64_t>(kPrompt.size())));
  EXPECT_EQ(header.fingerprint, executor->fingerprint());
  EXPECT_EQ(executor->consumed(executor->load(path)), header.consumed);
  executor->save(sequence, path, std::span(kPrompt).first(3));
  EXPECT_THAT(message_of([&] { (void)read_state_header(path); }), HasSubstr("tensor 'ids': wanted I32 [7], found I32 [3]"));
}

// Stages before the one that failed have made the checkpoints that nobody will hear of.
TEST(States, CheckpointsOfAFailedStepAreReleased) {
  const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = {4}});
  const SequenceId sequence = executor->create();
  Step step = step_of(sequence, {1, 2, 3});
  step.rows.front().checkpoints = {1, 3};
  step.rows.front().sample = SampleRequest{};
  step.rows.front().sample->allowed.assign(16, 0);  // no id may be drawn
  (void)executor->submit(std::move(step));
  EXPECT_EQ(executor->states().held(), (StateUse{2, 1}));
  EXPECT_TRUE(executor->next().failure);
  executor->release(sequence);
  EXPECT_EQ(executor->states().held(), StateUse{});
}

TEST(States, OfAnotherModelOrProfileAreRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "state.safetensors";
  const auto executor = open_executor(fixture("tiny-k3-8l"));
  const SequenceId sequence = executor->create();
  (void)feed(*executor, sequence, kPrompt, 512);
  executor->save(sequence, path, {});
  (void)executor->load(path);

  const auto other_profile = open_executor(fixture("tiny-k3-8l"), {.profile = ops::Profile::bf16});
  EXPECT_THAT(message_of([&] { (void)other_profile->load(path); }), HasSubstr("wanted the state of model"));
  const auto other_model = open_executor(fixture("tiny-k3-26l"));
  EXPECT_THAT(message_of([&] { (void)other_model->load(path); }), HasSubstr("26 layers, found 8"));

  // The same shapes and one other weight byte: another model.
  const auto changed = copy_of("tiny-k3-8l", folder);
  const auto shard = changed / "model-00002-of-000003.safetensors";
  const int64_t at = SafetensorsFile(shard).entries().front().begin;
  std::fstream(shard, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put('\x01');
  const auto other_weights = open_executor(changed);
  EXPECT_THAT(message_of([&] { (void)other_weights->load(path); }), HasSubstr("wanted the state of model"));

  // Tensors that no layer has, and a count without its tensors.
  const auto rewritten = [&](const std::string& consumed, const std::string& extra) {
    const StateFile file(path);
    SequenceState::Tensors tensors;
    for (const auto& [name, view] : file.tensors()) tensors.emplace(name, Tensor::copy_of(view));
    if (!extra.empty()) tensors.emplace(extra, Tensor::zeros(DType::f32, {1}));
    const auto to = folder.path() / "rewritten.safetensors";
    write_state_file(to, {file.header().fingerprint, TokenCount(std::stoll(consumed)), file.header().layer_count}, tensors);
    return message_of([&] { (void)executor->load(to); });
  };
  EXPECT_EQ(rewritten("7", ""), "no error");
  EXPECT_THAT(rewritten("0", ""), HasSubstr("state of 0 tokens"));
  EXPECT_THAT(rewritten("7", "layers.0.other"), HasSubstr("'layers.0.other'"));
  EXPECT_THAT(rewritten("7", "layers.8.S"), HasSubstr("'layers.8.S'"));
  EXPECT_THAT(rewritten("7", "other"), HasSubstr("'other'"));

  // Damage.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(message_of([&] { (void)executor->load(path); }), HasSubstr("state.safetensors"));
  EXPECT_THAT(message_of([&] { (void)executor->load(folder.path() / "absent"); }), HasSubstr("absent"));
  (void)executor->run(step_of(sequence, {1}));
}

// Ruling R6: a NaN scale is an error naming tensor, row and block before any result uses it; experts not routed to stay unread.
TEST(Experts, ANanScaleIsFoundAtFirstTouch) {
  const TemporaryFolder folder;
  const auto dir = copy_of("tiny-k3-8l", folder);
  int64_t damaged = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (!file.path().filename().string().starts_with("model-")) continue;
    const SafetensorsFile shard(file.path());
    for (const TensorEntry& entry : shard.entries()) {
      if (!entry.name.ends_with("layers.5.block_sparse_moe.experts.0.w2.weight_scale")) continue;
      std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary)
          .seekp(entry.begin + entry.shape[1] + 1)
          .put('\xff');
      ++damaged;
    }
  }
  ASSERT_EQ(damaged, 1);
  const auto executor = open_executor(dir);  // opening reads no expert
  int64_t failures = 0;
  int64_t successes = 0;
  for (int32_t id = 0; id < 40; ++id) {
    const SequenceId sequence = executor->create();
    (void)executor->submit(step_of(sequence, {id}));
    const Completion completion = executor->next();
    if (completion.failure) {
      ++failures;
      EXPECT_EQ(completion.failure->kind, ErrorKind::bad_checkpoint);
      EXPECT_THAT(completion.failure->message, HasSubstr("layers.5.block_sparse_moe.experts.0.w2.weight_scale"));
      EXPECT_THAT(completion.failure->message, HasSubstr("row 1"));
      EXPECT_THAT(completion.failure->message, HasSubstr("block 1"));
    } else {
      ++successes;
    }
    executor->release(sequence);
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(successes, 0);
}

TEST(Files, ThatShrinkWhileTheyAreUsedFailTheStep) {
  guard_mappings();
  const TemporaryFolder folder;
  const std::filesystem::path dir = copy_of("tiny-k3-8l", folder);
  const auto executor = open_executor(dir);
  const SequenceId sequence = executor->create();
  (void)executor->submit(step_of(sequence, kPrompt));
  EXPECT_FALSE(executor->next().failure);
  for (const auto& item : std::filesystem::directory_iterator(dir)) {
    if (item.path().extension() == ".safetensors") std::filesystem::resize_file(item.path(), 4096);
  }
  (void)executor->submit(step_of(sequence, {1}));
  const Completion failed = executor->next();
  ASSERT_TRUE(failed.failure);
  EXPECT_EQ(failed.failure->kind, ErrorKind::unavailable);
  EXPECT_THAT(failed.failure->message, AllOf(HasSubstr(".safetensors"), HasSubstr("shrank")));
}

TEST(Check, PassesOnGoodModelsAndNamesTheFirstBadLayer) {
  for (const std::string name : {"tiny-k3-8l", "tiny-kimi-linear"}) {
    for (const CheckLine& line : check_model(*open_executor(fixture(name), {.cuts = {3}}), {})) {
      EXPECT_TRUE(line.passed) << name << ": " << line.what << ": " << line.found;
    }
  }
  // The largest scales make an expert overflow; the check says where.
  const TemporaryFolder folder;
  const auto dir = copy_of("tiny-k3-8l", folder);
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (!file.path().filename().string().starts_with("model-")) continue;
    const SafetensorsFile shard(file.path());
    for (const TensorEntry& entry : shard.entries()) {
      if (entry.name.find("layers.5.") == std::string::npos || !entry.name.ends_with(".w2.weight_scale")) continue;
      std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary)
          .seekp(entry.begin)
          .write(std::string(static_cast<size_t>(entry.bytes()), '\xfe').data(), entry.bytes());
    }
  }
  const std::vector<CheckLine> lines = check_model(*open_executor(dir), {});
  const auto layers = std::ranges::find(lines, std::string("finite layer outputs"), &CheckLine::what);
  ASSERT_NE(layers, lines.end());
  EXPECT_FALSE(layers->passed);
  EXPECT_THAT(layers->found, HasSubstr("layer 5, position"));
}

}  // namespace
}  // namespace weft
