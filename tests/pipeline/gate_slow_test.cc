// The gate (docs/compare.md): profile bf16 on the fast operators of a CPU or a GPU against the scalar reference in float32.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/synth.h"
#include "pipeline/compare.h"
#include "pipeline/layer_run.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

// The GPU tests compile this file too.
#ifdef WEFT_GPU_TESTS
constexpr ops::Backend kBackend = ops::Backend::cuda;
constexpr int kThreads = 8;  // of the reference
#else
constexpr ops::Backend kBackend = ops::Backend::cpu;
constexpr int kThreads = 2;
#endif

Trace reference_run(const std::shared_ptr<const Checkpoint>& checkpoint, const std::vector<int32_t>& ids) {
  const auto executor = open_executor(checkpoint, {.threads = kThreads, .backend = ops::Backend::reference});
  TraceCollector collector;
  return run_trace(*executor, ids, {}, collector);
}

Comparison gate(const std::shared_ptr<const Checkpoint>& checkpoint, const Trace& reference) {
  return compare_traces(
      run_layers(checkpoint, {.threads = kThreads, .backend = kBackend, .profile = ops::Profile::bf16}, reference), reference);
}

struct Case {
  std::string name;
  std::filesystem::path model;
  std::filesystem::path ids_file;  // a prompt of the goldens; empty: kTokens ids from anywhere in the vocabulary
};

// In random models single tokens are ill conditioned (docs/compare.md): few tokens measure those, many measure the layer.
constexpr int64_t kTokens = 512;

std::vector<int32_t> scattered_ids(int64_t vocab_size) {
  std::mt19937 draw(1);  // its numbers are the same everywhere
  std::vector<int32_t> ids(kTokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(static_cast<int64_t>(draw()) % vocab_size);
  return ids;
}

class Gate : public testing::TestWithParam<Case> {};

TEST_P(Gate, Bf16) {
  const auto checkpoint = std::make_shared<const Checkpoint>(GetParam().model);
  const Trace reference =
      reference_run(checkpoint, GetParam().ids_file.empty() ? scattered_ids(checkpoint->config().vocab_size)
                                                            : Goldens(GetParam().ids_file).ids("input_ids"));
  const Comparison layers = gate(checkpoint, reference);
  EXPECT_TRUE(layers.passed()) << layers.to_text();
}

std::vector<Case> cases() {
  std::vector<Case> made;
  for (const std::string prompt : {"demo-multiply", "demo-weather", "code-4"}) {
    made.push_back({"k3_mini_" + prompt, k3_mini(), k3_mini() / "goldens" / (prompt + ".safetensors")});
  }
  for (const std::string name : {"tiny-k3-8l", "tiny-k3-26l", "tiny-kimi-linear", "tiny-kimi-linear-hf"}) {
    made.push_back({name, fixture(name), {}});
  }
  return made;
}

INSTANTIATE_TEST_SUITE_P(Models, Gate, testing::ValuesIn(cases()), [](const auto& tested) {
  std::string name = tested.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
});

// One KDA-MoE and one MLA-MoE layer at K3's published widths, with 32 of its experts.
TEST(GateAtPublishedWidths, Bf16) {
  const TemporaryFolder folder;
  SynthOptions options;
  options.out = folder.path() / "model";
  options.layers = 2;  // the last layer is MLA
  options.vision = false;
  options.set = {"first_k_dense_replace=0", "num_experts=32", "vocab_size=512"};
  (void)synthesize(options);
  const auto checkpoint = std::make_shared<const Checkpoint>(options.out);
  const Comparison comparison = gate(checkpoint, reference_run(checkpoint, {1, 200, 7, 99}));
  EXPECT_TRUE(comparison.passed()) << comparison.to_text();
}

}  // namespace
}  // namespace weft
