// weft plan over cluster files, weft certs, --families and --adapter, as a user calls them.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/exit_codes.h"
#include "app/program.h"
#include "base/file.h"
#include "base/json.h"
#include "pipeline/remote/cluster_config.h"

#include "support/models.h"

namespace weft::app_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::TemporaryFolder;

// Two stages of k3-mini; `more` goes before the nodes.
std::string cluster_text(const std::string& more = "") {
  return "[cluster]\nname = \"mini\"\npipeline_parallel_size = 2\n" + more + R"(
[[nodes]]
id = "front"
address = "127.0.0.1:19000"
role = "hybrid"
[[nodes]]
id = "a"
address = "127.0.0.1:19001"
role = "pipeline"
stage = 0
resources.memory_bytes = 1000000000
[[nodes]]
id = "b"
address = "127.0.0.1:19002"
role = "pipeline"
stage = 1
resources.memory_bytes = 2000000000
)";
}

struct File {
  explicit File(const TemporaryFolder& dir, const std::string& text, const std::string& name = "cluster.toml")
      : path((dir.path() / name).string()) {
    write_file_atomic(path, text);
  }
  std::string path;
};

Json plan_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  arguments.emplace_back("--json");
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? parse_json(outcome.out, "output") : Json();
}

TEST(ClusterProgram, K1FamiliesAreListedByName) {
  const Json expected = {"kimi_k3", "kimi_linear", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"};
  const Outcome json = run({"plan", "--families", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.err, "");
  EXPECT_EQ(parse_json(json.out, "output"), expected);
  std::string lines;
  for (const Json& name : expected) lines += name.get<std::string>() + "\n";
  EXPECT_EQ(run({"plan", "--families"}).out, lines);
}

TEST(ClusterProgram, K2AdaptersAreRefusedBeforeAnythingIsLoaded) {
  // No tensors: what would be loaded is not there.
  const TemporaryFolder dir;
  std::filesystem::copy_file(std::string(WEFT_SOURCE_DIR) + "/tests/fixtures/kimi-k3-config.json", dir.path() / "config.json");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"plan"}, {"generate", "-p", "x"}, {"generate", "-p", "x", "--pp-size", "2"}}) {
    std::vector<std::string> all = arguments;
    for (const char* const more : {"-m", dir.path().c_str(), "--adapter", "some/adapter"}) all.push_back(more);
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, kExitUsage) << arguments.front();
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("--adapter"), HasSubstr("kimi_k3"), HasSubstr("'some/adapter'")));
  }
  EXPECT_THAT(run({"plan", "-m", mini_dir(), "--adapter", "x"}).err, HasSubstr("takes no adapters"));
}

TEST(ClusterProgram, PlanOfAClusterFile) {
  const TemporaryFolder dir;
  const File file(dir, cluster_text("[partition]\nkv_tokens = 100\nkv_sequences = 3\nreserve_fraction = 0.25\n"));
  const std::vector<std::string> base = {"-m", mini_dir(), "--distributed-config", file.path};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return plan_json(more);
  };
  const Json plan = with({});
  ASSERT_EQ(plan["stages"].size(), 2U);
  EXPECT_EQ(plan["stages"][0]["node"], "a (127.0.0.1:19001)");
  EXPECT_EQ(plan["stages"][0]["budget_bytes"], 750'000'000);
  EXPECT_EQ(plan["stages"][1]["budget_bytes"], 1'500'000'000);
  const auto& stage = plan["stages"][1];
  EXPECT_EQ(stage["state_bytes_reserved"],
            3 * (stage["state_bytes_per_sequence"].get<int64_t>() + 100 * stage["state_bytes_per_token"].get<int64_t>()));
  EXPECT_TRUE(plan["stages"][0].contains("hop_seconds"));
  // The command line wins.
  EXPECT_EQ(with({"--reserve-fraction", "0"})["stages"][0]["budget_bytes"], 1'000'000'000);
  EXPECT_EQ(with({"--node-memory", "3000000000"})["stages"][0]["budget_bytes"], 2'250'000'000);
  EXPECT_EQ(with({"--pp-balance", "latency"})["balance"], "latency");
  EXPECT_EQ(with({"--pp-layers", "0-1,2-11"})["stages"][0]["layers"], (Json{0, 1}));
  EXPECT_EQ(with({"--pp-max-sequences", "1", "--tokens", "7"})["stages"][1]["state_bytes_reserved"],
            stage["state_bytes_per_sequence"].get<int64_t>() + 7 * stage["state_bytes_per_token"].get<int64_t>());
  EXPECT_NEAR(with({"--link-latency", "7"})["stages"][0]["hop_seconds"].get<double>(),
              7e-6 + plan["stages"][0]["boundary"]["bytes_per_token"].get<double>() / 1e9, 1e-12);
  EXPECT_EQ(with({"--pp-size", "2"}), plan);

  const Outcome three = run({"plan", "-m", mini_dir(), "--distributed-config", file.path, "--pp-size", "3"});
  EXPECT_EQ(three.code, kExitUsage);
  EXPECT_THAT(three.err, AllOf(HasSubstr("P07"), HasSubstr("--pp-size 3")));
  EXPECT_THAT(run({"plan", "-m", mini_dir(), "--distributed-config", file.path, "--node-memory", "1,2,3"}).err,
              HasSubstr("P07"));
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--distributed-config", file.path, "--node-memory", "5000000"}).code, kExitPlan);
}

TEST(ClusterProgram, PlanTakesTheModelOfTheFile) {
  const TemporaryFolder dir;
  const File file(dir, cluster_text("model = \"" + mini_dir() + "\"\n"));
  EXPECT_EQ(plan_json({"--distributed-config", file.path})["stages"].size(), 2U);
  const File none(dir, cluster_text(), "none.toml");
  const Outcome outcome = run({"plan", "--distributed-config", none.path});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--model"), HasSubstr("found none")));
  EXPECT_EQ(run({"plan"}).code, kExitUsage);
}

TEST(ClusterProgram, WrongFilesAreRefusedWithTheirCodes) {
  const TemporaryFolder dir;
  const File unknown(dir, cluster_text("nome = 3\n"));
  const Outcome outcome = run({"plan", "-m", mini_dir(), "--distributed-config", unknown.path});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(unknown.path), HasSubstr("nome"), HasSubstr("closest known one is name")));
  std::string far = cluster_text();
  far.replace(far.find("127.0.0.1:19001"), 15, "10.0.0.1:19001");
  const File plain(dir, far, "plain.toml");
  // D13.
  const Outcome refused = run({"plan", "-m", mini_dir(), "--distributed-config", plain.path});
  EXPECT_EQ(refused.code, kExitSecurity);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(plain.path), HasSubstr("10.0.0.1:19001")));
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--distributed-config", plain.path, "--insecure"}).code, 0);
}

// D3.
TEST(ClusterProgram, PlansAreWrittenByteForByte) {
  const TemporaryFolder dir;
  const File file(dir, cluster_text("[partition]\nkv_tokens = 100\n"));
  const std::string out = (dir.path() / "manual.toml").string();
  const std::vector<std::string> write = {"plan", "-m", mini_dir(), "--distributed-config", file.path, "--plan-out"};
  const auto written = [&](const std::string& to) {
    std::vector<std::string> arguments = write;
    arguments.push_back(to);
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_text_file(to);
  };
  const std::string text = written(out);
  EXPECT_EQ(written((dir.path() / "again.toml").string()), text);
  const ClusterConfig manual = read_cluster_config(out);
  ASSERT_TRUE(manual.layers);
  EXPECT_EQ(manual.to_toml(), text);
  EXPECT_EQ(plan_json({"-m", mini_dir(), "--distributed-config", out}),
            plan_json({"-m", mini_dir(), "--distributed-config", file.path}));
  // Without a file: nodes on this host.
  const std::string local = (dir.path() / "local.toml").string();
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--pp-size", "3", "--plan-out", local}).code, 0);
  const ClusterConfig made = read_cluster_config(local);
  EXPECT_EQ(made.stages, 3);
  EXPECT_EQ(made.model, mini_dir());
  EXPECT_EQ(plan_json({"--distributed-config", local})["stages"].size(), 3U);
  // A plan that does not fit writes nothing.
  const std::string never = (dir.path() / "never.toml").string();
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--node-memory", "4000000", "--plan-out", never}).code, kExitPlan);
  EXPECT_FALSE(std::filesystem::exists(never));
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--plan-out", "no/such/folder.toml"}).code, kExitUsage);
}

TEST(ClusterProgram, CertsTeachAndWrite) {
  const Outcome help = run({"certs", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("Examples:"), HasSubstr("weft certs -o certs --node"), HasSubstr("ca.key")));
  const TemporaryFolder dir;
  const std::string out = (dir.path() / "certs").string();
  const std::vector<std::string> arguments = {
      "certs", "-o", out, "--node", "front=127.0.0.1", "--node", "a=127.0.0.1,host.example", "--days", "30"};
  const Outcome made = run(arguments);
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out,
              AllOf(HasSubstr("cluster.token"), HasSubstr("front.pem 127.0.0.1:DIR/node.pem"), HasSubstr("[security]")));
  for (const char* name : {"ca.pem", "ca.key", "front.pem", "front.key", "a.pem", "a.key", "cluster.token"})
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(out) / name)) << name;
  const Outcome again = run(arguments);
  EXPECT_EQ(again.code, kExitUsage);
  EXPECT_THAT(again.err, HasSubstr("absent or empty"));
  EXPECT_EQ(run({"certs", "-o", out, "--add", "--node", "b=other.example"}).code, 0);
  EXPECT_EQ(run({"certs", "-o", (dir.path() / "x").string()}).code, kExitUsage);
  EXPECT_THAT(run({"certs", "-o", (dir.path() / "x").string(), "--node", "front"}).err, HasSubstr("ID=HOST[,HOST]"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "x"));
}

}  // namespace
}  // namespace weft::app_test
