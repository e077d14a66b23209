// What the tests of the operator suite share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/suite/suite.h"

namespace weft::ops {

inline std::vector<std::string> suite_operators() {
  std::vector<std::string> names;
  for (const CaseSpec& spec : cases(CaseSet::awkward)) {
    if (names.empty() || names.back() != spec.op) names.push_back(spec.op);
  }
  return names;
}

inline void expect_agreement(const Case& made, Profile profile, const HostOperands& found, const HostOperands& wanted) {
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    if (!made.tensors[i].written()) continue;
    const auto fault = difference(made.tensors[i], profile, found.view(i), wanted.view(i));
    EXPECT_FALSE(fault.has_value()) << *fault;
  }
}

}  // namespace weft::ops
