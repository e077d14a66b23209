// Every split of the small models into 2, 3 and 4 stages, over worker processes, gives the bits of one process (K13).
#include <gtest/gtest.h>

#include "base/file.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/local_cluster.h"
#include "pipeline/remote/remote_executor.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

std::vector<int32_t> prompt_of(int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % 101));
  return ids;
}

ops::SamplingParams sampled(uint64_t seed) {
  ops::SamplingParams params;
  params.temperature = 0.9F;
  params.top_p = 0.95F;
  params.seed = seed;
  return params;
}

struct Outcome {
  std::vector<float> logits;
  std::vector<int32_t> alone;
  std::vector<std::vector<int32_t>> batch;  // of four

  bool operator==(const Outcome& other) const {
    return same_bits(logits, other.logits) && alone == other.alone && batch == other.batch;
  }
};

Outcome run(Executor& executor) {
  Outcome outcome;
  outcome.logits = logits_of(executor, prompt_of(21), 16);
  outcome.alone = generate(executor, prompt_of(9), 5, 512, sampled(3));
  std::vector<SequenceId> sequences;
  outcome.batch.resize(4);
  for (int i = 0; i < 4; ++i) sequences.push_back(executor.create());
  for (int at = 0; at < 4; ++at) {
    Step step;
    for (size_t i = 0; i < 4; ++i) {
      Rows rows;
      rows.sequence = sequences[i];
      rows.ids = at == 0 ? prompt_of(1 + 5 * static_cast<int64_t>(i)) : std::vector<int32_t>{outcome.batch[i].back()};
      rows.sample = SampleRequest{};
      rows.sample->params = sampled(i);
      step.rows.push_back(std::move(rows));
    }
    const std::vector<RowsResult> results = executor.run(std::move(step));
    for (size_t i = 0; i < 4; ++i) outcome.batch[i].push_back(results[i].sampled->id);
  }
  for (const SequenceId sequence : sequences) executor.release(sequence);
  return outcome;
}

// All splits of [0, layers) into that many stages, as --pp-layers takes them.
void splits_of(int64_t begin, int64_t layers, int64_t stages, const std::string& before, std::vector<std::string>& all) {
  const std::string comma = before.empty() ? "" : ",";
  if (stages == 1) {
    all.push_back(fmt::format("{}{}{}-{}", before, comma, begin, layers - 1));
    return;
  }
  for (int64_t end = begin + 1; end + stages - 1 <= layers; ++end) {
    splits_of(end, layers, stages - 1, fmt::format("{}{}{}-{}", before, comma, begin, end - 1), all);
  }
}

class Processes {
 public:
  Processes(std::filesystem::path dir, int64_t stages)
      : dir_(std::move(dir)),
        cluster_({.program = std::filesystem::absolute(WEFT_PROGRAM),
                  .stages = stages,
                  .arguments = {"-m", std::filesystem::absolute(dir_).string(), "--threads", "1"},
                  .timeouts = {}}) {}

  std::unique_ptr<RemoteExecutor> executor(const std::string& layers, ops::Profile profile,
                                           Compression compression = Compression::none) {
    RemoteOptions options;
    options.cluster = cluster_.config();
    options.build = "test";
    options.config_text = read_text_file(dir_ / "config.json");
    options.config = load_model_config(dir_);
    options.link = link_options();
    options.link.compression = compression;
    options.plan = [&, profile](const std::vector<int64_t>&) {
      PlanOptions wanted;
      wanted.layers = layers;
      wanted.tokens = TokenCount(1024);
      wanted.profile = profile;
      return make_plan(plan_model(Checkpoint(dir_)), wanted);
    };
    options.connect = [](const NodeAddress& to, double timeout, const std::function<bool()>& give_up) {
      return connect_grpc(to, {}, timeout, give_up);
    };
    options.before_connect = [&](int64_t stage) { cluster_.check(stage); };
    return std::make_unique<RemoteExecutor>(std::move(options));
  }

 private:
  std::filesystem::path dir_;
  LocalCluster cluster_;
};

std::map<ops::Profile, Outcome> one_process(const std::filesystem::path& dir) {
  std::map<ops::Profile, Outcome> made;
  for (const ops::Profile profile : {ops::Profile::exact, ops::Profile::bf16}) {
    ModelSetup setup;
    setup.profile = profile;
    made.emplace(profile, run(*open_executor(dir, setup)));
  }
  return made;
}

void expect_splits(const std::filesystem::path& dir, int64_t stages, const std::vector<std::string>& splits) {
  const std::map<ops::Profile, Outcome> wanted = one_process(dir);
  Processes processes(dir, stages);
  for (const std::string& split : splits) {
    for (const auto& [profile, outcome] : wanted) {
      const auto executor = processes.executor(split, profile);
      EXPECT_TRUE(run(*executor) == outcome) << dir << " " << split << " " << ops::to_string(profile);
    }
  }
}

class EverySplit : public testing::TestWithParam<int64_t> {};

TEST_P(EverySplit, K13TinyK3) {
  std::vector<std::string> splits;
  splits_of(0, 8, GetParam(), "", splits);
  EXPECT_EQ(splits.size(), (std::map<int64_t, size_t>{{2, 7}, {3, 21}, {4, 35}}).at(GetParam()));
  expect_splits(fixture("tiny-k3-8l"), GetParam(), splits);
}

INSTANTIATE_TEST_SUITE_P(Stages, EverySplit, testing::Values(2, 3, 4));

// Across its blocks of 12: at 11, 12, 13, 23, 24 and 25.
TEST(Splits, TinyK3AcrossBlocks) {
  expect_splits(fixture("tiny-k3-26l"), 2, {"0-10,11-25", "0-11,12-25", "0-12,13-25", "0-22,23-25", "0-23,24-25", "0-24,25"});
  expect_splits(fixture("tiny-k3-26l"), 4, {"0-11,12-23,24,25", "0-5,6-11,12-17,18-25"});
}

TEST(Splits, Q8QwenAndKimiLinear) {
  expect_splits(fixture("tiny-qwen3-next-8l"), 2, {"0-2,3-7", "0-3,4-7", "0-6,7"});
  expect_splits(fixture("tiny-qwen3-next-8l"), 3, {"0-2,3,4-7", "0-3,4-6,7"});  // linear layers alone
  expect_splits(fixture("tiny-qwen3-next-tied-mlponly"), 2, {"0,1-5", "0-2,3-5"});
  expect_splits(fixture("tiny-kimi-linear-hf"), 2, {"0,1-7", "0-2,3-7"});
}

// Four sequences of one prompt have equal rows, which lz4 sends once; other rows are too dense for it. Neither changes a bit.
TEST(Splits, Lz4GivesTheSameBitsInFewerBytes) {
  const std::filesystem::path dir = fixture("tiny-k3-8l");
  const std::map<ops::Profile, Outcome> wanted = one_process(dir);
  Processes processes(dir, 3);
  for (const auto& [profile, outcome] : wanted) {
    // Of each stage: all that it sent, boundaries and little else.
    const auto bytes_sent = [&](Executor& executor) {
      std::vector<int64_t> bytes;
      for (const Json& stage : dynamic_cast<RemoteExecutor&>(executor).stage_report())
        bytes.push_back(stage.at("bytes_sent").get<int64_t>());
      return bytes;
    };
    std::map<Compression, std::vector<int64_t>> bytes;
    std::map<Compression, std::vector<std::vector<int32_t>>> drawn;
    for (const Compression compression : {Compression::none, Compression::lz4}) {
      const auto executor = processes.executor("0-2,3-4,5-7", profile, compression);
      EXPECT_TRUE(run(*executor) == outcome) << ops::to_string(profile);
      const std::vector<int64_t> before = bytes_sent(*executor);
      Step step;
      for (int i = 0; i < 4; ++i) {
        Rows& rows = step.rows.emplace_back();
        rows.sequence = executor->create();
        rows.ids = prompt_of(40);  // within the reach of a match, 64 KiB
        rows.sample = SampleRequest{};
        rows.sample->params = sampled(static_cast<uint64_t>(i));
      }
      for (const RowsResult& result : executor->run(std::move(step))) drawn[compression].push_back({result.sampled->id});
      bytes[compression] = bytes_sent(*executor);
      for (size_t s = 0; s < 3; ++s) bytes[compression][s] -= before[s];
    }
    EXPECT_EQ(drawn[Compression::lz4], drawn[Compression::none]);
    for (size_t s = 0; s < 2; ++s) EXPECT_LT(2 * bytes[Compression::lz4][s], bytes[Compression::none][s]) << s;
  }
}

TEST(Splits, Mini) { expect_splits(k3_mini(), 3, {"0-3,4-7,8-11", "0-2,3-10,11"}); }

}  // namespace
}  // namespace weft
