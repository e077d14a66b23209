// The program as a user runs it: status, doctor, --record, --stats, --debug-pp-trace.
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>

#include "app/program.h"
#include "base/json.h"

#include "remote/cluster_files.h"
#include "support/models.h"

namespace weft {
namespace {

using app_test::mini_dir;
using app_test::Outcome;
using app_test::run;
using remote_test::write_cluster;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

TEST(SeeingProgram, StatusOfStagesThatAreNotThere) {
  const TemporaryFolder folder;
  const std::string file = write_cluster(folder.path());
  const Outcome text = run({"status", "--distributed-config", file});
  EXPECT_EQ(text.code, 5);
  EXPECT_THAT(text.out, AllOf(HasSubstr("stage-0"), HasSubstr("stage-1"), HasSubstr("unreachable")));
  const Outcome json = run({"status", "--distributed-config", file, "--json"});
  EXPECT_EQ(json.code, 5);
  EXPECT_EQ(parse_json(json.out, "output")["stages"].size(), 2U);
}

TEST(SeeingProgram, DoctorOfStagesThatAreNotThere) {
  const TemporaryFolder folder;
  const std::string file = write_cluster(folder.path());
  const Outcome text = run({"doctor", "--distributed-config", file, "-m", mini_dir()});
  EXPECT_EQ(text.code, 5);
  EXPECT_THAT(text.out, AllOf(HasSubstr("error: stage-0: "), HasSubstr("error: stage-1: "), HasSubstr("not all is well")));
  const Outcome unknown = run({"doctor", "--distributed-config", file, "--node-id", "nobody"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("nobody"));
}

TEST(SeeingProgram, ATraceNeedsStagesElsewhere) {
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "Hello", "-n", "1", "--debug-pp-trace", "trace.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--debug-pp-trace"));
}

TEST(SeeingProgram, ARecordOfOneProcess) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "record.json";
  const Outcome outcome = run({"generate", "-m", mini_dir() + "/", "-p", "Hello", "-n", "4", "--temperature", "0", "--record",
                               file.string(), "--stats"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stages in this process: 1"));
  const Json record = read_json_file(file);
  EXPECT_EQ(record["model"]["name"], "k3-mini");
  EXPECT_EQ(record["topology"]["kind"], "one process");
  EXPECT_THAT(record["split"], ElementsAre("0-11"));
  EXPECT_TRUE(record["stages"].empty());
  EXPECT_GT(record["process"]["resident_bytes"], 1 << 20);
  EXPECT_EQ(record["usage"]["completion_tokens"], 4);
}

// What a trace must add up to (D14). The times of a stage's compute thread are told without a gap: computing, waiting for a
// boundary, answering, idle between steps. So their sum is the time from the moment when the stages were connected to the end
// of the run, which the coordinator measures with its own clock. Compute and wait alone are less: a stage that has no step has
// nothing to wait for.
struct Traced {
  double wall = 0.0;                                                        // seconds, of the span "run"
  std::map<int64_t, std::map<std::string, double>> sums;                    // of each stage and kind
  std::map<int64_t, std::map<int64_t, std::pair<double, double>>> compute;  // begin and end of each stage's step
  std::map<int64_t, double> last;  // end of the last span of a stage's compute thread, to find overlaps
};

Traced read_trace_file(const std::filesystem::path& file) {
  Traced made;
  for (const Json& event : read_json_file(file, ErrorKind::bad_input)) {
    if (event.at("ph") == "M") continue;
    EXPECT_EQ(event.at("ph"), "X");
    const int64_t stage = event.at("pid").get<int64_t>() - 1;
    const std::string kind = event.at("name");
    const double begin = event.at("ts").get<double>() / 1e6;
    const double seconds = event.at("dur").get<double>() / 1e6;
    EXPECT_GT(seconds, 0.0);
    if (stage < 0) {
      if (kind == "run") made.wall = seconds;
      continue;
    }
    made.sums[stage][kind] += seconds;
    if (kind == "compute") made.compute[stage][event.at("args").at("step").get<int64_t>()] = {begin, begin + seconds};
    if (kind == "send") continue;  // on a thread of its own
    EXPECT_GE(begin, made.last[stage] - 1e-6) << kind << " of stage " << stage << " overlaps the span before";
    made.last[stage] = begin + seconds;
  }
  return made;
}

TEST(SeeingProgram, D14TheTraceAddsUpAndAgreesWithTheRecord) {
  const TemporaryFolder folder;
  const std::filesystem::path trace = folder.path() / "trace.json";
  const std::filesystem::path file = folder.path() / "record.json";
  // Long enough that the start of a thread does not count.
  std::string prompt;
  for (int i = 0; i < 150; ++i) prompt += "How many apples are there? ";
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", prompt, "-n", "20", "--temperature", "0", "--pp-size", "2",
                               "--threads", "1", "--debug-pp-trace", trace.string(), "--record", file.string(), "--stats"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("bubble"), HasSubstr("stage-0"), HasSubstr("stage-1"), HasSubstr("first token after")));

  const Traced traced = read_trace_file(trace);
  const Json record = read_json_file(file);
  ASSERT_EQ(traced.sums.size(), 2U);
  ASSERT_GT(traced.wall, 0.0);
  EXPECT_LE(record["seconds"]["answer"], traced.wall);
  const int64_t steps = record["stages"][0]["steps"];
  EXPECT_EQ(steps, 22) << "1,135 tokens of prompt in chunks of 512, and a step for each token but the first";
  for (const auto& [stage, sums] : traced.sums) {
    double whole = 0.0;
    for (const auto& [kind, seconds] : sums) whole += kind == "send" ? 0.0 : seconds;
    EXPECT_NEAR(whole, traced.wall, 0.05 * traced.wall) << "stage " << stage;
    for (const char* kind : {"compute", "wait", "idle", "answer"}) EXPECT_TRUE(sums.contains(kind)) << kind;
    EXPECT_EQ(sums.contains("send"), stage == 0) << "the last stage has nobody to send boundaries to";
    // The stage's own counters say the same.
    const Json& measured = record["stages"][static_cast<size_t>(stage)];
    EXPECT_NEAR(sums.at("compute"), measured["seconds"]["compute"].get<double>(), 1e-3);
    EXPECT_NEAR(sums.at("wait"), measured["seconds"]["wait"].get<double>(), 1e-3);
    EXPECT_EQ(traced.compute.at(stage).size(), static_cast<size_t>(steps)) << "a span for each step";
  }
  EXPECT_NEAR(traced.sums.at(0).at("send"), record["stages"][0]["seconds"]["send"].get<double>(), 1e-3);
  // One sequence: the second stage cannot begin before the first one has ended. Clocks are aligned to a few milliseconds.
  for (const auto& [step, span] : traced.compute.at(0)) {
    ASSERT_TRUE(traced.compute.at(1).contains(step));
    EXPECT_GE(traced.compute.at(1).at(step).first, span.second - 0.1);
  }

  EXPECT_EQ(record["topology"]["kind"], "processes of one host");
  EXPECT_EQ(record["topology"]["hosts_of_stages"], 1);
  EXPECT_EQ(record["topology"]["nodes"].size(), 2U);
  EXPECT_EQ(record["split"].size(), 2U);
  int64_t weights = 0;
  for (const Json& stage : record["stages"]) {
    weights += stage["weight_bytes"].get<int64_t>();
    EXPECT_GT(stage["measured"]["resident_bytes"], stage["measured"]["trunk_bytes"]) << "measured, not planned";
    EXPECT_GT(stage["planned"]["used_bytes"], 0);
    EXPECT_GE(stage["bubble_share"], 0.0);
    EXPECT_LE(stage["bubble_share"], 1.0);
    EXPECT_EQ(record["split"][stage["stage"].get<size_t>()], stage["layers"]);
  }
  EXPECT_EQ(weights, record["model"]["weight_bytes"]);
  EXPECT_EQ(record["output"].get<std::string>(), outcome.out);
  EXPECT_EQ(record["prompt"], prompt);
}

}  // namespace
}  // namespace weft
