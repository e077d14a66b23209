// Sampling: prompt_and_api spec 7.2. The generator is checked against the known answers that its authors publish (Random123,
// kat_vectors).
#include "ops/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/ops_test_util.h"
#include "ops/philox.h"

namespace weft::ops {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Sampled draw(const std::vector<float>& logits, const SampleRow& row) {
  TestContext context{Backend::cpu};
  Tensor tensor = empty({1, static_cast<int64_t>(logits.size())});
  std::ranges::copy(logits, tensor.as<float>().begin());
  Sampled out;
  sample(context, tensor.view(), {&row, 1}, {&out, 1});
  return out;
}

// How often each id is drawn at positions [0, draws).
std::vector<int> counts(const std::vector<float>& logits, SampleRow row, int draws) {
  std::vector<int> result(logits.size());
  TestContext context{Backend::cpu, Profile::exact, 2};
  Tensor tensor = empty({draws, static_cast<int64_t>(logits.size())});
  std::vector<SampleRow> rows;
  for (int i = 0; i < draws; ++i) {
    std::ranges::copy(logits, tensor.as<float>().begin() + i * static_cast<int64_t>(logits.size()));
    row.position = i;
    rows.push_back(row);
  }
  std::vector<Sampled> out(rows.size());
  sample(context, tensor.view(), rows, out);
  for (const Sampled& sampled : out) ++result[static_cast<size_t>(sampled.id)];
  return result;
}

// Ids that 400 draws reach.
std::vector<int32_t> support(const std::vector<float>& logits, const SampleRow& row) {
  const std::vector<int> found = counts(logits, row, 400);
  std::vector<int32_t> ids;
  for (size_t id = 0; id < found.size(); ++id) {
    if (found[id] > 0) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<float> log_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

using Ids = std::vector<int32_t>;

TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  // (0x6627e8d5e169c58d >> 11) * 2^-53
  EXPECT_EQ(uniform_draw(0, 0), static_cast<double>(0x6627e8d5e169c58dULL >> 11) * 0x1p-53);
}

TEST(Sample, GreedyTakesTheLowestIdOfATie) {
  SampleRow row;
  row.params.temperature = 0.0F;
  const Sampled sampled = draw({1, 3, 3, 2}, row);
  EXPECT_EQ(sampled.id, 1);
  EXPECT_NEAR(sampled.logprob, 3 - std::log(std::exp(1) + 2 * std::exp(3) + std::exp(2)), 1e-6);
}

TEST(Sample, DrawsFollowTheProbabilities) {
  const std::vector<double> p = {0.5, 0.3, 0.15, 0.05};
  constexpr int kDraws = 20000;
  for (const uint64_t seed : {0ULL, 1ULL, 0xdeadbeefcafeULL}) {
    SampleRow row;
    row.params.seed = seed;
    const std::vector<int> found = counts(log_of({0.5, 0.3, 0.15, 0.05}), row, kDraws);
    double chi2 = 0.0;
    for (size_t i = 0; i < p.size(); ++i) chi2 += std::pow(found[i] - p[i] * kDraws, 2) / (p[i] * kDraws);
    EXPECT_LT(chi2, 16.3) << "seed " << seed;  // 3 degrees of freedom, 0.1 %; fixed seeds, so this never varies
  }
}

TEST(Sample, TemperatureSharpensBeforeTheFilters) {
  // At temperature 0.5 the probabilities 0.5, 0.3, 0.2 become 25/38, 9/38, 4/38.
  SampleRow row;
  row.params.temperature = 0.5F;
  constexpr int kDraws = 20000;
  const std::vector<int> found = counts(log_of({0.5, 0.3, 0.2}), row, kDraws);
  EXPECT_NEAR(found[0], kDraws * 25.0 / 38, 4 * std::sqrt(kDraws * 0.25));
  EXPECT_NEAR(found[2], kDraws * 4.0 / 38, 4 * std::sqrt(kDraws * 0.1));
  // 0.65 of the mass is the first id alone at temperature 0.5 and two ids at temperature 1.
  row.params.top_p = 0.65F;
  EXPECT_EQ(support(log_of({0.5, 0.3, 0.2}), row), (Ids{0}));
  row.params.temperature = 1.0F;
  EXPECT_EQ(support(log_of({0.5, 0.3, 0.2}), row), (Ids{0, 1}));
}

TEST(Sample, TopK) {
  SampleRow row;
  const std::vector<float> logits = log_of({0.1, 0.3, 0.3, 0.3});
  row.params.top_k = 1;
  EXPECT_EQ(support(logits, row), (Ids{1}));  // ties by id
  row.params.top_k = 2;
  EXPECT_EQ(support(logits, row), (Ids{1, 2}));
  row.params.top_k = 100;
  EXPECT_EQ(support(logits, row), (Ids{0, 1, 2, 3}));
  row.params.top_k = 0;
  EXPECT_EQ(support(logits, row), (Ids{0, 1, 2, 3}));
}

TEST(Sample, TopPKeepsTheTokenThatCrosses) {
  SampleRow row;
  const std::vector<float> logits = log_of({0.125, 0.5, 0.25, 0.125});
  for (const auto& [p, wanted] : std::vector<std::pair<float, Ids>>{{0.0F, {1}},
                                                                    {0.4F, {1}},
                                                                    {0.51F, {1, 2}},
                                                                    {0.74F, {1, 2}},
                                                                    {0.76F, {0, 1, 2}},  // ties by id
                                                                    {0.99F, {0, 1, 2, 3}},
                                                                    {1.0F, {0, 1, 2, 3}}}) {
    row.params.top_p = p;
    EXPECT_EQ(support(logits, row), wanted) << "top_p " << p;
  }
  // Of what top-k left: 0.5 / 0.75 is already above 0.6.
  row.params.top_k = 2;
  row.params.top_p = 0.6F;
  EXPECT_EQ(support(logits, row), (Ids{1}));
}

TEST(Sample, TopPOfALargeFlatVocabulary) {
  // 3000 equal ids: half of the mass is the 1500 lowest ids (the sort works in parts of 256 and more).
  SampleRow row;
  row.params.top_p = 0.5F;
  const std::vector<int> found = counts(std::vector<float>(3000, 0.25F), row, 2000);
  EXPECT_EQ(std::accumulate(found.begin() + 1500, found.end(), 0), 0);
  EXPECT_GT(std::accumulate(found.begin() + 1400, found.begin() + 1500, 0), 0);
}

TEST(Sample, MinP) {
  SampleRow row;
  const std::vector<float> logits = log_of({0.5, 0.3, 0.15, 0.05});
  for (const auto& [p, wanted] : std::vector<std::pair<float, Ids>>{
           {0.0F, {0, 1, 2, 3}}, {0.09F, {0, 1, 2, 3}}, {0.11F, {0, 1, 2}}, {0.31F, {0, 1}}, {1.0F, {0}}}) {
    row.params.min_p = p;
    EXPECT_EQ(support(logits, row), wanted) << "min_p " << p;
  }
}

TEST(Sample, Penalties) {
  SampleRow row;
  row.params.temperature = 0.0F;
  const Ids history = {0, 0, 1};
  row.history = history;
  // Repetition: positive logits are divided, negative ones multiplied.
  row.params.repetition_penalty = 2.0F;
  EXPECT_EQ(draw({4, 3, 2.5F}, row).id, 2);
  EXPECT_EQ(draw({-1, -1, -1.5F}, row).id, 2);
  row.params.repetition_penalty = 1.0F;
  // Frequency counts, presence does not: 4 - 2 * 1 = 2 < 3.5 - 1 = 2.5; with presence 3 > 2.5.
  row.params.frequency_penalty = 1.0F;
  EXPECT_EQ(draw({4, 3.5F, 0}, row).id, 1);
  row.params.frequency_penalty = 0.0F;
  row.params.presence_penalty = 1.0F;
  EXPECT_EQ(draw({4, 3.5F, 0}, row).id, 0);
  EXPECT_EQ(draw({4, 3.5F, 3.25F}, row).id, 2);
  // Control tokens are exempt from all three.
  const Ids exempt = {0};
  row.never_penalised = exempt;
  row.params = {.temperature = 0.0F, .repetition_penalty = 10.0F, .frequency_penalty = 2.0F, .presence_penalty = 2.0F};
  EXPECT_EQ(draw({4, 3.5F, 3.25F}, row).id, 0);
  // The log probability is that of the raw logits.
  EXPECT_NEAR(draw({4, 3.5F, 3.25F}, row).logprob, -std::log(1 + std::exp(-0.5) + std::exp(-0.75)), 1e-6);
}

TEST(Sample, PromptCountsForRepetitionOnly) {
  SampleRow row;
  row.params.temperature = 0.0F;
  const Ids prompt = {0};
  row.prompt = prompt;
  row.params.frequency_penalty = 2.0F;
  row.params.presence_penalty = 2.0F;
  EXPECT_EQ(draw({4, 3}, row).id, 0);
  row.params.repetition_penalty = 2.0F;
  EXPECT_EQ(draw({4, 3}, row).id, 1);
}

TEST(Sample, Mask) {
  std::vector<float> logits(70, 0.0F);
  logits[3] = 9.0F;
  std::vector<uint32_t> allowed(3);
  allowed[0] = 1U << 5U;
  allowed[2] = 1U << 1U;  // id 65
  SampleRow row;
  row.allowed = allowed;
  EXPECT_EQ(support(logits, row), (Ids{5, 65}));
  row.params.temperature = 0.0F;
  EXPECT_EQ(draw(logits, row).id, 5);
  // Bits beyond the vocabulary mean nothing.
  allowed = {0, 0, 1U << 31U};
  EXPECT_THAT([&] { (void)draw(logits, row); }, ThrowsMessage<Error>(HasSubstr("row 0: wanted at least one allowed id")));
  allowed.resize(2);
  row.allowed = allowed;
  EXPECT_THAT([&] { (void)draw(logits, row); }, ThrowsMessage<Error>(HasSubstr("allowed: wanted 3 words, found 2")));
}

TEST(Sample, SameIdAloneAndInABatch) {
  Random random_values(5);
  const int64_t rows = 33;
  const int64_t vocabulary = 1000;
  const Tensor logits = random(random_values, {rows, vocabulary}, 4.0);
  std::vector<SampleRow> all(rows);
  for (size_t r = 0; r < all.size(); ++r) {
    all[r].params = {
        .temperature = 0.8F, .top_k = static_cast<int64_t>(r % 3) * 40, .top_p = 0.9F, .min_p = 0.01F, .seed = r / 2};
    all[r].position = static_cast<int64_t>(r) * 7;
  }
  std::vector<Sampled> together(rows);
  TestContext two{Backend::cpu, Profile::exact, 2};
  sample(two, logits.view(), all, together);
  for (int64_t r = 0; r < rows; ++r) {
    TestContext reference{Backend::reference};
    Sampled alone;
    const auto i = static_cast<size_t>(r);
    sample(reference, rows_of(logits, r, r + 1), {&all[i], 1}, {&alone, 1});
    EXPECT_EQ(alone.id, together[i].id);
    EXPECT_EQ(alone.logprob, together[i].logprob);
  }
}

TEST(Sample, ErrorsNameTheFirstFaultyRow) {
  TestContext context{Backend::cpu, Profile::exact, 2};
  std::vector<SampleRow> rows(4);
  std::vector<Sampled> out(4);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Tensor logits = empty({4, 8});
    logits.as<float>()[8 * 2 + 5] = bad;
    logits.as<float>()[8 * 3] = bad;
    EXPECT_THAT([&] { sample(context, logits.view(), rows, out); },
                ThrowsMessage<Error>(HasSubstr("row 2, id 5: wanted a finite logit")));
  }
  const Tensor logits = empty({4, 8});
  const Ids outside = {8};
  rows[1].history = outside;
  EXPECT_THAT([&] { sample(context, logits.view(), rows, out); },
              ThrowsMessage<Error>(HasSubstr("row 1, history: wanted ids in [0, 8), found 8")));
}

TEST(Sample, RepetitionPenaltyThatOverflowsIsAnError) {
  SampleRow row;
  const Ids history = {0};
  row.history = history;
  row.params.repetition_penalty = 1e-30F;
  EXPECT_THAT([&] { (void)draw({1e20F, 0}, row); }, ThrowsMessage<Error>(HasSubstr("repetition_penalty")));
}

TEST(Sample, ValidateNamesTheField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<SamplingParams, std::string>> bad = {{{.temperature = -0.1F}, "temperature"},
                                                                   {{.temperature = 2.1F}, "temperature"},
                                                                   {{.temperature = nan}, "temperature"},
                                                                   {{.top_k = -1}, "top_k"},
                                                                   {{.top_p = 1.1F}, "top_p"},
                                                                   {{.top_p = nan}, "top_p"},
                                                                   {{.min_p = -0.1F}, "min_p"},
                                                                   {{.repetition_penalty = 0.0F}, "repetition_penalty"},
                                                                   {{.frequency_penalty = 2.5F}, "frequency_penalty"},
                                                                   {{.presence_penalty = -3.0F}, "presence_penalty"}};
  for (const auto& [params, field] : bad) {
    EXPECT_THAT([&] { params.validate(); }, ThrowsMessage<Error>(HasSubstr(field + ": wanted")));
  }
  EXPECT_NO_THROW(SamplingParams{}.validate());
}

TEST(Sample, BiasComesBeforeThePenalties) {
  const std::vector<float> logits = {1.0F, 2.0F, 0.5F};
  const std::vector<LogitBias> bias = {{0, -0.5F}, {2, 1.6F}};
  SampleRow row;
  row.params.temperature = 0.0F;
  row.bias = bias;
  EXPECT_EQ(draw(logits, row).id, 2);  // 0.5, 2, 2.1
  // 2.1 / 1.2 is below 2: the penalty divides what the bias has made of the logit.
  const std::vector<int32_t> history = {2};
  row.history = history;
  row.params.repetition_penalty = 1.2F;
  EXPECT_EQ(draw(logits, row).id, 1);
  // The log probability is that of the raw logits.
  row.params.repetition_penalty = 1.0F;
  EXPECT_FLOAT_EQ(draw(logits, row).logprob, log_probability(logits, 2));
  EXPECT_NEAR(log_probability(logits, 2), 0.5 - std::log(std::exp(1.0) + std::exp(2.0) + std::exp(0.5)), 1e-6);
}

TEST(Sample, ABiasThatBansLeavesTheOthers) {
  const std::vector<float> logits = {3.0F, 2.0F, 1.0F};
  const std::vector<LogitBias> bias = {{0, -100.0F}};
  SampleRow row;
  row.bias = bias;
  EXPECT_EQ(support(logits, row), (std::vector<int32_t>{1, 2}));
}

TEST(Sample, BiasOutOfOrderIsAnError) {
  const std::vector<LogitBias> bias = {{1, 1.0F}, {1, 2.0F}};
  SampleRow row;
  row.bias = bias;
  EXPECT_THAT([&] { draw({1.0F, 2.0F}, row); }, ThrowsMessage<Error>(HasSubstr("bias: wanted each id once, ascending")));
}

TEST(Sample, MostLikelyIdsInOrder) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 3.0F};
  const std::vector<Sampled> top = most_likely(logits, 3);
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_EQ(top[1].id, 3);
  EXPECT_EQ(top[2].id, 2);
  SampleRow row;
  row.params.temperature = 0.0F;
  EXPECT_EQ(top[0].logprob, draw(logits, row).logprob) << "the same bits as the draw's";
  EXPECT_TRUE(most_likely(logits, 0).empty());
  EXPECT_EQ(most_likely(logits, 9).size(), logits.size());
}

}  // namespace
}  // namespace weft::ops
