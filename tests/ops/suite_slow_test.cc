// The operator suite at the sizes of Kimi K3: every dispatch target against the scalar reference.
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/ops_test_util.h"
#include "ops/suite/suite.h"
#include "ops/suite_test_util.h"
#include "ops/targets_test_util.h"

namespace weft::ops {
namespace {

class SuiteK3 : public testing::TestWithParam<std::tuple<std::string, Profile>> {};

INSTANTIATE_TEST_SUITE_P(K3, SuiteK3,
                         testing::Combine(testing::ValuesIn(suite_operators()), testing::Values(Profile::exact, Profile::bf16)),
                         [](const auto& each) {
                           return fmt::format("{}_{}", std::get<0>(each.param), to_string(std::get<1>(each.param)));
                         });

TEST_P(SuiteK3, AgreesWithTheReference) {
  const auto& [op, profile] = GetParam();
  TestContext reference{Backend::reference, profile, 2};
  TestContext cpu{Backend::cpu, profile, 2};
  int count = 0;
  for (const CaseSpec& spec : cases(CaseSet::k3)) {
    if (spec.op != op) continue;
    const Case made = spec.make(profile);
    HostOperands wanted(made);
    made.call(reference, wanted.operands());
    for (const int64_t target : dispatch_targets()) {
      SCOPED_TRACE(spec.op + " " + spec.sizes + " " + hwy::TargetName(target));
      const UseTarget use(target);
      HostOperands found(made);
      made.call(cpu, found.operands());
      expect_agreement(made, profile, found, wanted);
    }
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace weft::ops
