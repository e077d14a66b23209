// What the program holds in memory, and what it leaves on the disk: experts that were not named stay unread, the peak is what
// the engine states, a limit is kept (C10), and plan and generate agree on bytes.
//
// The models are written into the build folder: a temporary folder may lie in memory, whose pages cannot be dropped.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/exit_codes.h"
#include "app/program.h"
#include "base/json.h"
#include "base/pages.h"
#include "engine/executor_loader.h"
#include "model/checkpoint.h"
#include "model/trunk.h"
#include "pipeline/trace.h"

#include "support/sanitizer.h"
#include "support/small_synth.h"

namespace weft::app_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing_support::kSanitizer;

constexpr int64_t kMiB = 1 << 20;

// 256 experts of about 100 KiB in each of five layers, 2 of them for a token; the text side is that of k3-mini.
class ManyExperts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fs::remove_all(dir());
    const Json mini = read_json_file(mini_dir() + "/config.json");
    SynthOptions options = testing_support::small_synth(dir());
    options.layers = 6;
    for (const std::string& key :
         {std::string("hidden_size=256"), std::string("intermediate_size=512"), std::string("num_experts=256"),
          std::string("moe_intermediate_size=256"), std::string("routed_expert_hidden_size=256"),
          fmt::format("vocab_size={}", mini.at("text_config").at("vocab_size").get<int64_t>()),
          std::string("max_position_embeddings=1024")})
      options.set.push_back(key);
    (void)synthesize(options);
    for (const char* name : {"tiktoken.model", "tokenizer_config.json", "config_ids.json"}) {
      if (fs::exists(fs::path(mini_dir()) / name)) fs::copy(fs::path(mini_dir()) / name, dir() / name);
    }
  }
  static void TearDownTestSuite() { fs::remove_all(dir()); }
  static fs::path dir() { return fmt::format("many-experts-{}", ::getpid()); }  // tests run side by side

  static std::vector<std::string> ask(int tokens, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"generate",      "-m", dir().string(), "-p", "Hello",
                                      "--temperature", "0",  "--json",       "-n", std::to_string(tokens)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(ManyExperts, ThoseThatWereNotNamedStayUnread) {
  for (const auto& file : fs::directory_iterator(dir())) {
    if (file.path().extension() == ".safetensors") evict_pages(file.path());
  }
  ModelOptions options;
  options.dir = dir();
  const LoadedExecutor loaded = load_executor(options);
  const Checkpoint& checkpoint = *loaded.checkpoint;
  TraceCollector collector;
  const Trace made = run_trace(*loaded.executor, std::vector<int32_t>{1, 2, 3}, {}, collector);

  const Inventory& inventory = checkpoint.inventory();
  std::vector<std::vector<bool>> cached;
  for (uint32_t file = 0; file < inventory.files().size(); ++file) cached.push_back(cached_pages(inventory.path_of(file)));
  // Of the pages that a tensor has for itself: how many there are, and how many of them are in memory.
  const auto pages_of = [&](TensorId id) {
    const int64_t page = page_bytes();
    const int64_t begin = (inventory.begin(id) + page - 1) / page;
    const int64_t end = (inventory.begin(id) + inventory.bytes(id)) / page;
    const std::vector<bool>& flags = cached[inventory.file_index(id)];
    const int64_t count = std::max<int64_t>(0, end - begin);
    return std::pair(count, count == 0 ? 0 : std::count(flags.begin() + begin, flags.begin() + end, true));
  };
  int64_t read = 0;
  int64_t unread = 0;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (spec.copies == 1) continue;
    const std::span<const int32_t> chosen = made.routing.at(spec.layer).experts.as<int32_t>();
    for (int64_t e = 0; e < spec.copies; ++e) {
      const bool named = std::ranges::find(chosen, e) != chosen.end();
      for (const TensorId id : checkpoint.stored(spec, e)) {
        const auto [count, in_memory] = pages_of(id);
        EXPECT_EQ(in_memory, named ? count : 0) << inventory.name(id);
        (named ? read : unread) += count;
      }
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(unread, 20 * read);
  for (const StoredPart& part : trunk_parts(checkpoint, checkpoint.all_layers())) {
    const TensorId id = part.tensor;
    const auto [count, in_memory] = pages_of(id);
    EXPECT_EQ(in_memory, count) << inventory.name(id);
  }
}

TEST_F(ManyExperts, ThePeakIsWhatTheEngineStates) {
  const Outcome outcome = run(ask(8));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json memory = Json::parse(outcome.out).at("weft").at("memory");
  const auto of = [&](const char* name) { return memory.at(name).get<int64_t>(); };
  const int64_t stated = of("trunk_bytes") + of("expert_bytes") + of("state_bytes") + of("workspace_bytes");
  const int64_t weights = Json::parse(outcome.out).at("weft").at("weight_bytes").get<int64_t>();
  EXPECT_LT(of("trunk_bytes") + of("expert_bytes"), weights / 2);
  EXPECT_LE(stated, of("peak_bytes"));
  // Beside it: the program itself, its libraries, tokenizer and tables, which the plan states, and pages that two experts
  // share.
  const Json plan = Json::parse(run({"plan", "-m", dir().string(), "--memory", "1TiB", "--json"}).out);
  if (!kSanitizer) {
    EXPECT_LE(of("peak_bytes"), stated + plan.at("process_bytes").get<int64_t>());
  }
}

// colibri#720: the planner left 28 GB idle.
TEST_F(ManyExperts, C10TheLimitIsUsedAndKept) {
  const int64_t limit = 80 * kMiB;
  const Outcome planned = run({"plan", "-m", dir().string(), "--memory", "80MiB", "--prefill-chunk", "64", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  EXPECT_GT(plan.at("weight_bytes").get<int64_t>(), limit);
  EXPECT_GE(plan.at("used_bytes").get<int64_t>(), limit * 85 / 100);
  EXPECT_LE(plan.at("used_bytes").get<int64_t>(), limit);

  const Outcome free = run(ask(64));
  const Outcome limited = run(ask(64, {"--memory", "80MiB", "--prefill-chunk", "64"}));
  ASSERT_EQ(limited.code, 0) << limited.err;
  const Json answer = Json::parse(limited.out);
  EXPECT_EQ(answer.at("usage"), Json::parse(free.out).at("usage"));
  EXPECT_EQ(answer.at("reasoning_content"), Json::parse(free.out).at("reasoning_content"));
  const Json& memory = answer.at("weft").at("memory");
  const int64_t kept = plan.at("stages").at(0).at("expert_bytes_kept").get<int64_t>();
  EXPECT_LE(memory.at("expert_bytes").get<int64_t>(), kept);
  EXPECT_GT(memory.at("expert_bytes").get<int64_t>(), kept * 9 / 10) << "what is free is used";
  if (!kSanitizer) {
    EXPECT_LT(memory.at("peak_bytes").get<int64_t>(), limit);
  }
  EXPECT_GT(Json::parse(free.out).at("weft").at("memory").at("expert_bytes").get<int64_t>(), kept) << "the limit mattered";
  EXPECT_THAT(limited.err, HasSubstr("of routed experts of layers 0 to 5 stay in memory"));
}

TEST_F(ManyExperts, ALimitThatCannotBeKeptIsRefused) {
  for (const char* command : {"plan", "generate"}) {
    std::vector<std::string> words = {command, "-m", dir().string(), "--memory", "40MiB"};
    if (std::string(command) == "generate") words.insert(words.end(), {"-p", "Hello"});
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, kExitPlan) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("P09"));
  }
}

// Weights, bytes of a token and state, to the byte.
TEST(Bytes, PlanAndGenerateAgree) {
  const Outcome answer =
      run({"generate", "-m", mini_dir(), "-p", "What is 17 * 23?", "--temperature", "0", "-n", "100", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const Json result = Json::parse(answer.out);
  // The last token was drawn and not consumed.
  const int64_t tokens = result.at("usage").at("total_tokens").get<int64_t>() - 1;
  const int64_t whole_pages = (tokens + 63) / 64 * 64;
  const Json plan = Json::parse(
      run({"plan", "-m", mini_dir(), "--pp-max-sequences", "1", "--tokens", std::to_string(whole_pages), "--json"}).out);
  const Json& own = result.at("weft");
  EXPECT_EQ(plan.at("weight_bytes"), own.at("weight_bytes"));
  EXPECT_EQ(plan.at("read_bytes_per_token"), own.at("bytes_per_token"));
  EXPECT_EQ(plan.at("stages").at(0).at("state_bytes_reserved"), own.at("memory").at("state_bytes"));
  EXPECT_THAT(answer.err, HasSubstr(human_bytes(plan.at("read_bytes_per_token").get<int64_t>()) + " per token"));
}

}  // namespace
}  // namespace weft::app_test
