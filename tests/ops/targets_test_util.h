// Runs a test under each of Highway's dispatch targets that this machine supports and the build contains.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/cpu/targets.h"
// Highway's list depends on the line above.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "ops/cpu/dense.h"

namespace weft::ops {

inline std::vector<int64_t> dispatch_targets() { return hwy::SupportedAndGeneratedTargets(); }

// All operators use `target` from here to the end of the scope.
class UseTarget {
 public:
  explicit UseTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_TRUE(std::string_view(cpu::dispatch_target()).starts_with(hwy::TargetName(target)));  // AVX3: also AVX3_BF16
  }
  ~UseTarget() { hwy::SetSupportedTargetsForTest(0); }
  UseTarget(const UseTarget&) = delete;
  UseTarget& operator=(const UseTarget&) = delete;
};

}  // namespace weft::ops
