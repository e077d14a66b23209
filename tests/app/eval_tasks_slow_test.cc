// The bundled model on its own tasks; the run that made eval.json met 53 of the 64.
#include <gmock/gmock.h>

#include "base/json.h"

#include "program.h"

namespace weft::app_test {
namespace {

TEST(EvalTasks, MeetsWhatTheReferenceMet) {
  const Outcome outcome = run({"eval", "tasks", mini_dir() + "/eval.json", "-m", mini_dir(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["total"], 64);
  EXPECT_EQ(json["reference_passed"], 53);
  EXPECT_GE(json["passed"], 51);
  ASSERT_EQ(json["prompts"].size(), 64U);
  int64_t differ = 0;
  for (const Json& prompt : json["prompts"]) {
    EXPECT_EQ(prompt["prompt_ids_equal"], true) << prompt["name"];
    EXPECT_EQ(prompt["passed"].get<bool>(), prompt["missed"].empty()) << prompt["name"];
    if (!prompt.contains("differs")) continue;
    ++differ;
    // Another token than the reference's is chosen only where the two were close.
    EXPECT_LT(prompt["differs"]["margin_to_reference"].get<double>(), 0.25) << prompt["name"];
  }
  EXPECT_LE(differ, 16);
}

}  // namespace
}  // namespace weft::app_test
