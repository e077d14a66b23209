// The operator suite on the CPU: every operator under every dispatch target and in both profiles against the scalar reference.
#include "ops/suite/suite.h"

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/ops_test_util.h"
#include "ops/suite_test_util.h"
#include "ops/targets_test_util.h"

namespace weft::ops {
namespace {

class Suite : public testing::TestWithParam<std::tuple<std::string, int64_t, Profile>> {};

INSTANTIATE_TEST_SUITE_P(Awkward, Suite,
                         testing::Combine(testing::ValuesIn(suite_operators()), testing::ValuesIn(dispatch_targets()),
                                          testing::Values(Profile::exact, Profile::bf16)),
                         [](const auto& each) {
                           return fmt::format("{}_{}_{}", std::get<0>(each.param), hwy::TargetName(std::get<1>(each.param)),
                                              to_string(std::get<2>(each.param)));
                         });

TEST_P(Suite, AgreesWithTheReference) {
  const auto& [op, target, profile] = GetParam();
  const UseTarget use(target);
  TestContext reference{Backend::reference, profile};
  TestContext cpu{Backend::cpu, profile, 2};
  int count = 0;
  for (const CaseSpec& spec : cases(CaseSet::awkward)) {
    if (spec.op != op) continue;
    SCOPED_TRACE(spec.op + " " + spec.sizes);
    const Case made = spec.make(profile);
    HostOperands wanted(made, 1);
    HostOperands found(made, 1);
    made.call(reference, wanted.operands());
    made.call(cpu, found.operands());
    expect_agreement(made, profile, found, wanted);
    ++count;
  }
  EXPECT_GT(count, 0);
}

// The suite's own promises.
TEST(SuiteItself, MakesTheSameCaseEachTime) {
  for (const CaseSpec& spec : cases(CaseSet::awkward)) {
    const Case first = spec.make(Profile::exact);
    const Case second = spec.make(Profile::exact);
    ASSERT_EQ(first.tensors.size(), second.tensors.size());
    for (size_t i = 0; i < first.tensors.size(); ++i) {
      expect_same_bits(first.tensors[i].initial.view(), second.tensors[i].initial.view(), spec.sizes.c_str());
    }
  }
}

TEST(SuiteItself, NamesEveryCaseOnce) {
  for (const CaseSet set : {CaseSet::awkward, CaseSet::k3}) {
    std::set<std::string> names;
    for (const CaseSpec& spec : cases(set)) EXPECT_TRUE(names.insert(spec.op + " " + spec.sizes).second) << spec.sizes;
  }
}

TEST(SuiteItself, SeesDifferences) {
  const auto fault = [](const Tolerance& tolerance, Profile profile, float found, float wanted) {
    CaseTensor tensor{"y", Role::output, Tensor(), tolerance};
    return difference(tensor, profile, f32({2}, {8, found}).view(), f32({2}, {8, wanted}).view()).has_value();
  };
  const Tolerance loose{1e-3, 0, 1, 0};
  EXPECT_FALSE(fault({}, Profile::exact, 1, 1));
  EXPECT_TRUE(fault({}, Profile::exact, 0.0F, -0.0F));
  EXPECT_FALSE(fault(loose, Profile::exact, 1.0079F, 1));  // 1e-3 of the largest value, 8
  EXPECT_TRUE(fault(loose, Profile::exact, 1.0081F, 1));
  EXPECT_FALSE(fault(loose, Profile::bf16, 1.0078125F, 1));  // one bfloat16 value of the element
  EXPECT_TRUE(fault(loose, Profile::bf16, 1.015625F, 1));
  EXPECT_TRUE(fault(loose, Profile::exact, NAN, 1));
  EXPECT_TRUE(fault(loose, Profile::exact, 1, NAN));
  EXPECT_TRUE(fault(loose, Profile::bf16, INFINITY, 1));
  EXPECT_TRUE(fault(loose, Profile::bf16, 1, INFINITY));
  EXPECT_FALSE(fault(loose, Profile::exact, INFINITY, INFINITY));
}

}  // namespace
}  // namespace weft::ops
