// The faults of K3 spec 8.4, each switched on in the five-layer golden model: its logits are those of the table, and the gate
// (docs/compare.md) notices it.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/fault.h"
#include "parallel/communicator.h"
#include "pipeline/compare.h"
#include "pipeline/layer_run.h"

#include "support/golden_model.h"
#include "support/models.h"

namespace weft {
namespace {
Fault active = Fault::none;
}  // namespace

bool on(Fault fault) { return fault == active; }

namespace {

using namespace testing_support;
using golden::Variant;

constexpr double kTolerance = 4e-4;  // 1e-4 of the largest logit, as the goldens
constexpr double kMoves = 0.02;      // issue M2: a fault that moves L2 by more than 2 % must break the gate

// A row of the table: logits 0 and 1, L2 and argmax at position 5 of the golden prompt.
struct Row {
  std::string name;
  double logit0, logit1, l2;
  int32_t argmax;
  Fault fault = Fault::none;                  // switched on in the code, or
  std::function<void(Variant&)> change = {};  // another reading of the checkpoint, as a changed checkpoint
};

Json& text(Variant& variant) { return variant.config["text_config"]; }

// Every tensor whose name holds `part` passes through `change`.
void edit(Variant& variant, const std::string& part, const std::function<void(std::vector<std::byte>&)>& change) {
  variant.bytes = [part, change](const TensorSpec& spec) {
    std::vector<std::byte> bytes = golden::bytes_of(spec);
    if (spec.name.find(part) != std::string::npos) change(bytes);
    return bytes;
  };
}

void read_lists_from_zero(Variant& variant) {
  // kda_layers [1, 2, 4] of layers 0 to 4; the others are MLA. The lists of a file are 1-based.
  text(variant)["linear_attn_config"]["kda_layers"] = {2, 3, 5};
  text(variant)["linear_attn_config"]["full_attn_layers"] = {1, 4};
  variant.mla_layers = {0, 3};
}

void reverse_taps(std::vector<std::byte>& bytes) {
  constexpr size_t kTaps = 4 * sizeof(float);
  for (size_t at = 0; at < bytes.size(); at += kTaps) {
    std::array<float, 4> taps{};
    std::memcpy(taps.data(), &bytes[at], kTaps);
    std::ranges::reverse(taps);
    std::memcpy(&bytes[at], taps.data(), kTaps);
  }
}

// Per head 8 rows of keys and 8 of values, 8 bfloat16 each.
void swap_key_and_value_rows(std::vector<std::byte>& bytes) {
  constexpr ptrdiff_t kPart = 8 * 8 * 2;
  for (auto head = bytes.begin(); head != bytes.end(); head += 2 * kPart) std::swap_ranges(head, head + kPart, head + kPart);
}

void swap_nibbles(std::vector<std::byte>& bytes) {
  for (std::byte& byte : bytes) byte = (byte << 4) | (byte >> 4);
}

void swap_w1_and_w3(Variant& variant) {
  variant.bytes = [](TensorSpec spec) {
    const size_t at = std::min(spec.name.find(".w1."), spec.name.find(".w3."));
    if (spec.name.find("experts.") != std::string::npos && at != std::string::npos) spec.name[at + 2] ^= '1' ^ '3';
    return golden::bytes_of(spec);
  };
}

std::vector<Row> rows() {
  return {
      {"none", +1.078060, -0.954964, 7.045097, 20},
      {"softplus decay gate", +1.230855, -1.066146, 7.049091, 20, Fault::none,
       [](Variant& v) { text(v)["linear_attn_config"]["gate_lower_bound"] = nullptr; }},
      {"A_log read per channel", +1.008307, -0.550806, 6.753324, 20, Fault::a_log_per_channel},
      {"dt_bias added after exp(A)", +1.019165, -1.029327, 6.628056, 20, Fault::dt_bias_after_exp},
      {"delta from undecayed state", +1.020029, -0.987258, 7.120033, 20, Fault::delta_from_undecayed_state},
      {"output read before update", +0.971362, -1.598004, 7.036029, 11, Fault::output_before_update},
      {"no SiLU after convolution", +0.466589, -0.487221, 6.719522, 8, Fault::no_silu_after_convolution},
      {"convolution taps reversed", +0.882072, -0.926039, 7.137409, 29, Fault::none,
       [](Variant& v) { edit(v, "_conv1d.", reverse_taps); }},
      {"gate before o_norm", +1.067583, -0.578915, 6.684607, 20, Fault::gate_before_o_norm},
      {"SiLU output gate", +1.323804, -1.209906, 7.233515, 20, Fault::silu_output_gate},
      {"MLA scale from dn", +1.079281, -0.956119, 7.043134, 20, Fault::mla_scale_from_nope},
      {"k_r dropped", +1.075577, -0.948788, 7.033905, 20, Fault::k_rope_dropped},
      {"MLA gate missing", +1.040387, -0.945640, 7.024233, 20, Fault::none,
       [](Variant& v) { text(v)["mla_use_output_gate"] = false; }},
      {"kv_b split value-first", +1.188705, -1.018015, 6.998123, 20, Fault::none,
       [](Variant& v) { edit(v, "kv_b_proj.", swap_key_and_value_rows); }},
      {"0-based layer lists", +0.716642, -0.760893, 7.319803, 29, Fault::none, read_lists_from_zero},
      {"w1/w3 swapped", +1.629226, -1.272259, 7.144975, 20, Fault::none, swap_w1_and_w3},
      {"up branch not clipped", +1.076593, -0.955710, 7.044701, 20, Fault::none,
       [](Variant& v) { text(v)["activation_situ_linear_beta"] = nullptr; }},
      {"plain SwiGLU", +1.088836, -0.781146, 6.979906, 20, Fault::none, [](Variant& v) { text(v)["hidden_act"] = "silu"; }},
      {"high nibble first", +1.476905, -1.153477, 7.112943, 20, Fault::none,
       [](Variant& v) { edit(v, "weight_packed", swap_nibbles); }},
      {"weights from biased scores", +0.511478, -0.930513, 6.772694, 29, Fault::weights_from_biased_scores},
      {"router bias ignored", +1.229759, -1.347848, 7.207007, 20, Fault::router_bias_ignored},
      {"routed_expert_norm missing", +0.586928, -0.032815, 5.851706, 29, Fault::none,
       [](Variant& v) { text(v)["latent_moe_use_norm"] = false; }},
      {"AttnRes mixes normalised vectors", +1.210450, +0.036519, 7.194091, 29, Fault::mix_of_normalised_vectors},
      {"block stored before the attention mix", +1.082906, -0.969225, 7.026340, 20, Fault::block_before_attention_mix},
      {"running sum not restarted", +0.237848, -0.464622, 6.507741, 29, Fault::sum_not_restarted},
      {"MLP mix skipped", +0.821185, -0.251925, 7.614068, 22, Fault::mlp_mix_skipped},
      {"output mix skipped", +0.530619, -0.861375, 5.502388, 31, Fault::output_mix_skipped},
      {"MLA norm epsilon 1e-5", +1.078061, -0.954964, 7.045096, 20, Fault::mla_norm_epsilon},
      {"l2norm epsilon on the mean", +1.078057, -0.954981, 7.045103, 20, Fault::l2norm_epsilon_on_mean},
      {"no renormalisation", +1.078060, -0.954964, 7.045097, 20, Fault::none,
       [](Variant& v) { text(v)["moe_renormalize"] = false; }},
  };
}

class Faults : public testing::TestWithParam<Row> {
 protected:
  // The reference backend throughout: a fault of arithmetic gives the same numbers in every back end.
  Faults() : sound_(open({})), reference_(whole_run(sound_)) {
    Variant variant;
    if (GetParam().change) GetParam().change(variant);
    faulty_ = open(variant);
    active = GetParam().fault;
  }
  ~Faults() override { active = Fault::none; }

  std::shared_ptr<const Checkpoint> open(const Variant& variant) {
    const auto dir = folder_.path() / std::to_string(++models_);
    golden::write(dir, variant);
    return std::make_shared<const Checkpoint>(dir, CheckpointOptions{.allow_unknown_tensors = true});
  }
  static Trace whole_run(const std::shared_ptr<const Checkpoint>& checkpoint) {
    const auto executor = open_executor(checkpoint, {.backend = ops::Backend::reference});
    TraceCollector collector;
    return run_trace(*executor, golden::kPrompt, {}, collector);
  }
  [[nodiscard]] Comparison gate(const std::shared_ptr<const Checkpoint>& checkpoint) const {
    return compare_traces(
        run_layers(checkpoint, {.backend = ops::Backend::reference, .profile = ops::Profile::bf16}, reference_), reference_);
  }
  // Names of the outputs that failed; a failed flip counts as "flip".
  static std::vector<std::string> failures(const Comparison& comparison) {
    std::vector<std::string> names;
    for (const OutputDifference& output : comparison.outputs) {
      if (!output.passed()) names.push_back(output.name);
    }
    if (!std::ranges::all_of(comparison.flips, &Flip::passed)) names.emplace_back("flip");
    return names;
  }

  TemporaryFolder folder_;
  int models_ = 0;
  std::shared_ptr<const Checkpoint> sound_;
  Trace reference_;
  std::shared_ptr<const Checkpoint> faulty_;
};

TEST_P(Faults, GivesTheLogitsOfTheTable) {
  const Row& row = GetParam();
  const Trace trace = whole_run(faulty_);
  const std::span<const float> logits = trace.logits.as<float>().subspan(5 * golden::kVocab, golden::kVocab);
  double square = 0.0;
  for (const float logit : logits) square += static_cast<double>(logit) * static_cast<double>(logit);
  EXPECT_NEAR(logits[0], row.logit0, kTolerance);
  EXPECT_NEAR(logits[1], row.logit1, kTolerance);
  EXPECT_NEAR(std::sqrt(square), row.l2, kTolerance);
  EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), row.argmax);
  EXPECT_EQ(same_bits(trace.logits.as<float>(), reference_.logits.as<float>()), row.name == "none");
}

// "Moves L2" in the widest reading: the L2 norm of the table's logits, or the relative L2 difference of any output of the
// float32 run over all tokens. Rounding alone puts layers 0 and 1 of this model, which is 32 wide, at L2 1.1e-2 and 1.3e-2:
// they are left out, and a fault has to show in the other layers, the logits, or a flip.
TEST_P(Faults, BreaksTheGateWhereItMovesL2) {
  const Row& row = GetParam();
  double moved = std::fabs(row.l2 / 7.045097 - 1.0);
  for (const OutputDifference& output : compare_traces(whole_run(faulty_), reference_).outputs)
    moved = std::max(moved, output.l2);
  const Comparison comparison = gate(faulty_);
  active = Fault::none;
  for (const std::string& failure : failures(gate(sound_))) {
    EXPECT_TRUE(failure == "layer 0" || failure == "layer 1") << "without a fault: " << failure;
  }
  active = row.fault;
  bool broken = false;
  for (const std::string& failure : failures(comparison)) broken = broken || (failure != "layer 0" && failure != "layer 1");
  if (moved > kMoves || row.name == "none") {
    EXPECT_EQ(broken, row.name != "none") << comparison.to_text();
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Faults, testing::ValuesIn(rows()), [](const auto& tested) {
  std::string name = tested.param.name;
  std::ranges::replace_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// A common factor of the weights is nearly invisible in the logits (K3 spec 3.7): the unit vector of 8.3, and the gate's look
// at the weights themselves.
TEST(NoRenormalisation, ShowsInTheRouter) {
  WorkerPool pool(1);
  SingleRank single_rank;
  ops::Context context{.backend = ops::Backend::reference, .pool = &pool, .comm = &single_rank};
  Tensor logits = Tensor::zeros(DType::f32, {1, 6});
  std::ranges::copy(std::array{0.2F, -1.0F, 1.5F, 0.0F, 0.7F, -0.3F}, logits.as<float>().begin());
  Tensor bias = Tensor::zeros(DType::f32, {6});
  std::ranges::copy(std::array{0.0F, 0.5F, -0.3F, 0.1F, 0.0F, 0.05F}, bias.as<float>().begin());
  Tensor ids = Tensor::zeros(DType::i32, {1, 2});
  Tensor weights = Tensor::zeros(DType::f32, {1, 2});
  const auto route = [&](bool renormalize) {
    ops::route(context, {.experts_per_token = 2, .renormalize = renormalize}, logits.view(), bias.view(), ids.mutable_view(),
               weights.mutable_view());
    EXPECT_EQ(ids.as<int32_t>()[0], 1);
    EXPECT_EQ(ids.as<int32_t>()[1], 4);
    return std::array{weights.as<float>()[0], weights.as<float>()[1]};
  };
  const auto sound = route(true);
  EXPECT_NEAR(sound[0], 0.286984359, 1e-6);
  EXPECT_NEAR(sound[1], 0.713015641, 1e-6);
  const auto faulty = route(false);
  EXPECT_NEAR(faulty[0], 0.268941421, 1e-6);
  EXPECT_NEAR(faulty[1], 0.668187772, 1e-6);
}

}  // namespace
}  // namespace weft
