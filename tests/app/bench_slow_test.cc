// weft bench: that every subcommand runs and records what docs/benchmarks.md says. Its figures have no expected value.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/exit_codes.h"
#include "app/program.h"
#include "base/json.h"

#include "support/sanitizer.h"

namespace weft::app_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Json record_of(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"--repeats", "2", "--json"});
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, kExitSuccess) << outcome.err;
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_EQ(json.at("bench"), words[1]);
  EXPECT_THAT(json.at("command").get<std::string>(), HasSubstr("weft bench " + words[1]));
  EXPECT_FALSE(json.at("commit").get<std::string>().empty());
  EXPECT_FALSE(json.at("figures").empty());
  for (const Json& figure : json.at("figures")) {
    EXPECT_GT(figure.at("median").get<double>(), 0.0) << figure;
    EXPECT_EQ(figure.at("repeats"), 2);
    EXPECT_LE(figure.at("spread").at(0), figure.at("median"));
    EXPECT_GE(figure.at("spread").at(1), figure.at("median"));
  }
  return json;
}

// Other tests have the model itself mapped, so its pages cannot be evicted.
class Copy : public testing::Test {
 protected:
  Copy() { fs::copy(mini_dir(), dir_, fs::copy_options::recursive | fs::copy_options::overwrite_existing); }
  ~Copy() override { fs::remove_all(dir_); }
  fs::path dir_ = fmt::format("bench-model-{}", ::getpid());  // tests run side by side
};

TEST(Bench, Mem) {
  const Json json = record_of({"mem", "--threads", "1"});
  EXPECT_EQ(json.at("figures").size(), 3U);
}

TEST(Bench, Ops) {
  const Json json = record_of({"ops", "--op", "route"});
  for (size_t i = 2; i < json.at("figures").size(); ++i) EXPECT_GT(json.at("figures").at(i).at("share"), 0.0);
  EXPECT_EQ(run({"bench", "ops", "--op", "nothing"}).code, kExitUsage);
}

TEST_F(Copy, DiskAndLoad) {
  const Json disk = record_of({"disk", (dir_ / "model-00001-of-000002.safetensors").string()});
  EXPECT_EQ(disk.at("file_bytes"), fs::file_size(dir_ / "model-00001-of-000002.safetensors"));
  const Json load = record_of({"load", "-m", dir_.string()});
  EXPECT_EQ(load.at("figures").back().at("name"), "load");
  EXPECT_GT(load.at("figures").back().at("share"), 0.0);
  EXPECT_EQ(run({"bench", "disk", (dir_ / "absent").string()}).code, kExitUsage);
  EXPECT_EQ(run({"bench", "load", "-m", (dir_ / "absent").string()}).code, kExitModel);
}

TEST_F(Copy, DiskWantsFilesThatTakeATime) {
  const std::string shard = (dir_ / "model-00001-of-000002.safetensors").string();
  const Outcome twice = run({"bench", "disk", shard, dir_.string() + "/./model-00001-of-000002.safetensors"});
  EXPECT_EQ(twice.code, kExitUsage);
  EXPECT_THAT(twice.err, HasSubstr("wanted different files"));
  std::ofstream(dir_ / "short") << "abc";
  const Outcome tiny = run({"bench", "disk", (dir_ / "short").string()});
  EXPECT_EQ(tiny.code, kExitUsage);
  EXPECT_THAT(tiny.err, HasSubstr("found 3 bytes"));
}

TEST_F(Copy, ARecordReplacesNothingButARecord) {
  const fs::path config = dir_ / "config.json";
  const Json before = read_json_file(config);
  const Outcome refused = run({"bench", "ops", "--op", "add", "--repeats", "1", "--out", config.string()});
  EXPECT_EQ(refused.code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("wanted a new file or the record of an earlier"));
  EXPECT_EQ(read_json_file(config), before);
  const std::string out = (dir_ / "ops.json").string();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run({"bench", "ops", "--op", "add", "--repeats", "1", "--out", out}).code, 0);
}

TEST_F(Copy, DecodeAndPrefill) {
  const Json decode = record_of({"decode", "-m", dir_.string(), "--tokens", "4"});
  if (!testing_support::kSanitizer) {
    EXPECT_LT(decode.at("memory").at("peak_bytes"), 256 << 20) << "without the buffer of the reads";
  }
  EXPECT_THAT(decode.at("figures").back().at("name").get<std::string>(), HasSubstr("first token"));
  EXPECT_GT(decode.at("memory").at("trunk_bytes"), 0);
  fs::remove(dir_ / "tiktoken.model");
  EXPECT_THAT(record_of({"decode", "-m", dir_.string(), "--tokens", "4"}).at("notes").dump(), HasSubstr("no tokenizer"));
  const std::string out = (dir_ / "prefill.json").string();
  const Json prefill = record_of({"prefill", "-m", dir_.string(), "--tokens", "16", "--out", out});
  EXPECT_EQ(read_json_file(out), prefill);
  EXPECT_GT(prefill.at("operations"), 0.0);
}

}  // namespace
}  // namespace weft::app_test
