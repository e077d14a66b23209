// The bit promise on the CPU (ARCHITECTURE.md, "Numbers"): the same request gives the same bits whatever the chunks of prefill,
// the batch, the stage split, the thread count, and whether the prefix was saved and loaded.
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/targets_test_util.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

std::vector<int32_t> prompt_of(int64_t length, uint32_t seed, int64_t vocab) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761U + 1;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 1664525U + 1013904223U;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
  }
  return ids;
}

ops::SamplingParams sampled() {
  ops::SamplingParams params;
  params.temperature = 0.8F;
  params.top_p = 0.95F;
  params.seed = 20260101;
  return params;
}

struct Case {
  std::string name;
  ops::Backend backend;
  ops::Profile profile;
  int64_t target = 0;  // of the fast operators; 0: the best of this machine
};

class Bits : public testing::TestWithParam<Case> {
 protected:
  static std::optional<ops::UseTarget> target() {
    if (GetParam().target == 0) return std::nullopt;
    return std::optional<ops::UseTarget>(std::in_place, GetParam().target);
  }
  [[nodiscard]] ModelSetup setup(std::vector<int64_t> cuts = {}, int threads = 1) const {
    return {std::move(cuts), threads, GetParam().backend, GetParam().profile};
  }
  std::optional<ops::UseTarget> use_target = target();
  std::shared_ptr<const Checkpoint> checkpoint = std::make_shared<const Checkpoint>(fixture(GetParam().name));
  std::unique_ptr<LocalExecutor> executor = open_executor(checkpoint, setup());
  std::vector<int32_t> prompt = prompt_of(200, 7, executor->vocab_size());
};

TEST_P(Bits, ChunksAndThreads) {
  const std::vector<float> whole = logits_of(*executor, prompt, 200);
  const auto two_threads = open_executor(checkpoint, setup({}, 2));
  const std::vector<int32_t> drawn = generate(*executor, prompt, 16, 200, sampled());
  for (const int64_t chunk : {1, 2, 7, 16, 63, 64, 65, 200}) {
    EXPECT_TRUE(same_bits(whole, logits_of(*executor, prompt, chunk))) << "chunk " << chunk;
    EXPECT_TRUE(same_bits(whole, logits_of(*two_threads, prompt, chunk))) << "chunk " << chunk << ", two threads";
    EXPECT_EQ(drawn, generate(*executor, prompt, 16, chunk, sampled())) << "chunk " << chunk;
  }
  EXPECT_EQ(drawn, generate(*two_threads, prompt, 16, 33, sampled()));
}

// Sequences of mixed lengths advance together, prefill and decode rows in one step.
TEST_P(Bits, Batches) {
  const std::vector<int64_t> lengths = {70, 1, 17, 64, 33};
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<int32_t>> drawn_alone;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back(prompt_of(lengths[i], static_cast<uint32_t>(i + 1), executor->vocab_size()));
    alone.push_back(logits_of(*executor, prompts[i], 512));
    drawn_alone.push_back(generate(*executor, prompts[i], 12, 512, sampled()));
  }
  for (const size_t size : {size_t{1}, size_t{2}, size_t{5}}) {
    for (const int threads : {1, 2}) {
      const auto batched = open_executor(checkpoint, setup({}, threads));
      std::vector<SequenceId> sequences;
      std::vector<size_t> fed(size, 0);
      std::vector<std::vector<float>> logits(size);
      std::vector<std::vector<int32_t>> drawn(size);
      for (size_t i = 0; i < size; ++i) sequences.push_back(batched->create());
      for (;;) {
        Step step;
        std::vector<size_t> who;
        for (size_t i = 0; i < size; ++i) {
          Rows rows;
          rows.sequence = sequences[i];
          rows.logits = Rows::Logits::all;
          if (fed[i] < prompts[i].size()) {
            const size_t take = std::min(prompts[i].size() - fed[i], 5 + 8 * i);  // every sequence has chunks of its own
            rows.ids.assign(prompts[i].begin() + static_cast<int64_t>(fed[i]),
                            prompts[i].begin() + static_cast<int64_t>(fed[i] + take));
            fed[i] += take;
          } else if (drawn[i].size() < 12) {
            rows.ids = {drawn[i].back()};
          } else {
            continue;
          }
          if (fed[i] == prompts[i].size()) {
            rows.sample = SampleRequest{};
            rows.sample->params = sampled();
            rows.sample->history = drawn[i];
          }
          step.rows.push_back(std::move(rows));
          who.push_back(i);
        }
        if (who.empty()) break;
        const std::vector<RowsResult> results = batched->run(std::move(step));
        for (size_t j = 0; j < who.size(); ++j) {
          const size_t i = who[j];
          const std::span<const float> values = std::as_const(results[j].logits).as<float>();
          if (drawn[i].empty()) logits[i].insert(logits[i].end(), values.begin(), values.end());
          if (results[j].sampled) drawn[i].push_back(results[j].sampled->id);
        }
      }
      for (size_t i = 0; i < size; ++i) {
        EXPECT_TRUE(same_bits(alone[i], logits[i])) << "batch " << size << ", threads " << threads << ", sequence " << i;
        EXPECT_EQ(drawn_alone[i], drawn[i]) << "batch " << size << ", threads " << threads << ", sequence " << i;
      }
    }
  }
}

TEST_P(Bits, ResumeFromASavedStateAtEveryToken) {
  const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + 70);
  const auto vocab = static_cast<size_t>(executor->vocab_size());
  const std::vector<float> whole = logits_of(*executor, ids, 512);
  const std::vector<int32_t> drawn = generate(*executor, ids, 8, 512, sampled());
  const auto rest_of = [&](size_t at) { return std::span(whole).subspan(at * vocab); };

  // A checkpoint inside one step after every token: the state there is a sequence of its own.
  Rows rows;
  rows.sequence = executor->create();
  rows.ids = ids;
  rows.checkpoints.resize(69);
  std::iota(rows.checkpoints.begin(), rows.checkpoints.end(), 1);
  Step step;
  step.rows.push_back(std::move(rows));
  const std::vector<RowsResult> results = executor->run(std::move(step));
  ASSERT_EQ(results.front().checkpoints.size(), 69U);

  const TemporaryFolder folder;
  const auto path = folder.path() / "state.safetensors";
  const auto other = open_executor(checkpoint, setup({executor->layer_count() / 2}));  // loads under another stage split
  for (size_t at = 1; at < 70; ++at) {
    const SequenceId checkpointed = results.front().checkpoints[at - 1];
    ASSERT_EQ(executor->consumed(checkpointed), TokenCount(static_cast<int64_t>(at)));
    executor->save(checkpointed, path, {});
    const SequenceId loaded = other->load(path);
    ASSERT_EQ(other->consumed(loaded), TokenCount(static_cast<int64_t>(at)));
    const auto rest = std::span(ids).subspan(at);
    EXPECT_TRUE(same_bits(rest_of(at), feed(*executor, checkpointed, rest, 512))) << "checkpoint at " << at;
    EXPECT_TRUE(same_bits(rest_of(at), feed(*other, loaded, rest, 16))) << "file at " << at;
    executor->release(checkpointed);
    other->release(loaded);
  }
  EXPECT_EQ(drawn, generate(*other, ids, 8, 13, sampled()));
}

TEST_P(Bits, AForkAndItsOriginGoTheirOwnWays) {
  const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + 100);
  const auto vocab = static_cast<size_t>(executor->vocab_size());
  std::vector<int32_t> changed = ids;
  for (size_t i = 70; i < 100; ++i) changed[i] = (changed[i] + 1) % static_cast<int32_t>(vocab);
  const std::vector<float> a = logits_of(*executor, ids, 512);
  const std::vector<float> b = logits_of(*executor, changed, 512);
  const SequenceId origin = executor->create();
  (void)feed(*executor, origin, std::span(ids).first(70), 512);
  const SequenceId fork = executor->fork(origin);
  EXPECT_TRUE(same_bits(std::span(b).subspan(70 * vocab), feed(*executor, fork, std::span(changed).subspan(70), 11)));
  EXPECT_TRUE(same_bits(std::span(a).subspan(70 * vocab), feed(*executor, origin, std::span(ids).subspan(70), 7)));
}

TEST_P(Bits, EverySplitIntoTwoAndThreeStages) {
  const std::vector<int32_t> ids(prompt.begin(), prompt.begin() + 20);
  const std::vector<float> whole = logits_of(*executor, ids, 512);
  const std::vector<int32_t> drawn = generate(*executor, ids, 6, 512, sampled());
  const int64_t layers = executor->layer_count();
  const auto check = [&](const std::vector<int64_t>& cuts) {
    const auto split = open_executor(checkpoint, setup(cuts));
    const std::string where = fmt::format("cuts {}", fmt::join(cuts, ", "));
    EXPECT_TRUE(same_bits(whole, logits_of(*split, ids, 9))) << where;
    EXPECT_EQ(drawn, generate(*split, ids, 6, 512, sampled())) << where;
  };
  for (int64_t first = 1; first < layers; ++first) {
    check({first});
    for (int64_t second = first + 1; second < layers; ++second) check({first, second});
  }
}

std::vector<Case> cases() {
  std::vector<Case> made;
  for (const ops::Profile profile : {ops::Profile::exact, ops::Profile::bf16}) {
    for (const std::string name : {"tiny-k3-8l", "tiny-kimi-linear", "tiny-qwen3-next-8l"}) {
      made.push_back({name, ops::Backend::reference, profile});
      for (const int64_t target : ops::dispatch_targets()) made.push_back({name, ops::Backend::cpu, profile, target});
    }
    for (const std::string name : {"tiny-k3-26l", "tiny-kimi-linear-hf", "tiny-qwen3-next-tied-mlponly"}) {
      made.push_back({name, ops::Backend::cpu, profile});
    }
  }
  return made;
}

std::string case_name(const testing::TestParamInfo<Case>& tested) {
  const Case& param = tested.param;
  std::string name = fmt::format("{}_{}_{}", param.name, ops::to_string(param.backend), ops::to_string(param.profile));
  if (param.target != 0) name += fmt::format("_{}", hwy::TargetName(param.target));
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Bits, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace weft
