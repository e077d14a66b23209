// What the tests of stored states share: a model that answers in an engine, cold answers, comparison bit by bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"

#include "executors.h"
#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {

using testing_support::fixture;
using testing_support::open_executor;
using testing_support::TemporaryFolder;

constexpr int64_t kInterval = 16;
constexpr int64_t kAnswer = 12;  // tokens of each answer

inline EngineOptions grid_options() {
  EngineOptions made;
  made.max_context = 1024;
  made.state_memory = ByteCount(256 << 20);
  made.keep_every = kInterval;
  made.keep_prompt_end = false;  // the grid and the ends of turns only, unless a test says otherwise
  return made;
}

inline EngineOptions without_store() {
  EngineOptions made = grid_options();
  made.keep_states = false;
  return made;
}

inline EngineOptions in_folder(const TemporaryFolder& folder) {
  EngineOptions made = grid_options();
  made.folder = folder.path();
  return made;
}

// A model in which all draws leave their logits in a log.
struct Served {
  explicit Served(const EngineOptions& engine_options, const std::vector<int64_t>& cuts = {})
      : stages(open_executor(fixture("tiny-k3-8l"), {.cuts = cuts})), logged(*stages), engine(logged, engine_options) {}

  std::unique_ptr<LocalExecutor> stages;
  LoggingExecutor logged;
  Engine engine;
};

struct Answer {
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> logits;  // behind each id
  RequestReport report;
  int64_t fed = 0;  // rows that the executor was given
};

inline Answer ask_ids(Served& served, const std::vector<int32_t>& prompt, int64_t max_tokens = kAnswer) {
  served.logged.logits.clear();
  served.logged.fed.clear();
  const auto sink = answer(served.engine, request_of(prompt, max_tokens));
  Answer made{sink->ids, served.logged.logits, sink->report.value(), std::ssize(served.logged.fed)};
  EXPECT_EQ(made.report.reused_tokens + made.report.computed_tokens, std::ssize(prompt));
  EXPECT_EQ(made.report.computed_tokens + made.report.generated_tokens - 1, made.fed);  // what is reported is what was done
  return made;
}

inline Answer cold(const std::vector<int32_t>& prompt, int64_t max_tokens = kAnswer) {
  static Served served(without_store());
  Answer made = ask_ids(served, prompt, max_tokens);
  EXPECT_EQ(made.report.reused_tokens, 0);
  return made;
}

inline void expect_cold(const Answer& warm, const std::vector<int32_t>& prompt, const std::string& where) {
  const Answer again = cold(prompt, std::ssize(warm.ids));
  EXPECT_EQ(warm.ids, again.ids) << where;
  ASSERT_EQ(warm.logits.size(), again.logits.size()) << where;
  for (size_t i = 0; i < again.logits.size(); ++i)
    EXPECT_TRUE(same_bits(warm.logits[i], again.logits[i])) << where << ", " << i;
}

inline std::vector<int32_t> extended(std::vector<int32_t> ids, int64_t count, uint32_t seed) {
  const std::vector<int32_t> more = random_ids(count, seed);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

}  // namespace weft::engine_test
