// What can be seen of running stages: status, doctor, metrics, progress.
#include <arpa/inet.h>
#include <chrono>
#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "base/file.h"
#include "pipeline/remote/diagnosis.h"
#include "pipeline/remote/messages.h"
#include "pipeline/remote/remote_executor.h"
#include "pipeline/remote/stage_metrics.h"

#include "remote/live_cluster.h"
#include "remote/test_certs.h"

namespace weft {
namespace {

using namespace remote_test;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::k3_mini;
using testing_support::TemporaryFolder;

const std::vector<int32_t> kPrompt = {1, 5, 9, 200, 31, 7};

RemoteExecutor& remote(const LoadedExecutor& loaded) { return dynamic_cast<RemoteExecutor&>(*loaded.executor); }

// A prompt and two tokens: three steps.
void run_three_steps(Executor& executor) {
  static_cast<void>(testing_support::generate(executor, kPrompt, 3, 512, testing_support::greedy()));
}

std::vector<std::string> errors_of(const Diagnosis& diagnosis) {
  std::vector<std::string> made;
  for (const Finding& finding : diagnosis.findings) {
    if (!finding.warning) made.push_back(fmt::format("{}: {}", finding.place, finding.failure.message));
  }
  return made;
}

DiagnosisOptions quick(const ObserverOptions& observer) {
  DiagnosisOptions options;
  options.observer = observer;
  options.bytes = 256 << 10;
  options.repeats = 1;
  return options;
}

// ---- status
// -----------------------------------------------------------------------------------------------------------------------

TEST(Status, StagesWithoutACoordinatorAreWaiting) {
  const LiveCluster cluster(2);
  const std::vector<StageObservation> seen = observe_stages(cluster.observer());
  ASSERT_EQ(seen.size(), 2U);
  for (const StageObservation& one : seen) {
    ASSERT_FALSE(one.failure) << one.failure->message;
    EXPECT_EQ(one.status["state"], "waiting");
    EXPECT_EQ(one.status["layers"], "");
    EXPECT_EQ(one.status["seconds"]["up"], 0.0);
  }
}

TEST(Status, TellsWhatTheStagesHoldAndDid) {
  const LiveCluster cluster(2);
  const LoadedExecutor loaded = cluster.load();
  run_three_steps(*loaded.executor);
  const Json report = remote(loaded).stage_report();
  const std::vector<StageObservation> seen = observe_stages(cluster.observer());
  ASSERT_EQ(seen.size(), 2U);
  std::string layers;
  for (size_t s = 0; s < seen.size(); ++s) {
    const StageObservation& one = seen[s];
    ASSERT_FALSE(one.failure) << one.failure->message;
    const Json& status = one.status;
    EXPECT_EQ(status["state"], "ready");
    EXPECT_EQ(status["node"], fmt::format("stage-{}", s));
    EXPECT_EQ(status["coordinator"], "coordinator");
    EXPECT_EQ(status["steps"], 3);
    EXPECT_EQ(status["failures"], 0);
    EXPECT_EQ(status["layers"], report[s]["layers"]);
    EXPECT_EQ(status["memory"]["trunk_bytes"], report[s]["memory"]["trunk_bytes"]);
    EXPECT_GT(status["memory"]["trunk_bytes"], 1 << 20);
    EXPECT_GT(status["memory"]["resident_bytes"], status["memory"]["trunk_bytes"]);
    EXPECT_GE(status["memory"]["peak_bytes"], status["memory"]["resident_bytes"]);
    EXPECT_GT(status["seconds"]["compute"], 0.0);
    // Waiting and computing take turns on one thread.
    EXPECT_LE(status["seconds"]["compute"].get<double>() + status["seconds"]["wait"].get<double>(), status["seconds"]["up"]);
    const double idle = status["idle_share"];
    EXPECT_NEAR(idle, 1.0 - status["seconds"]["compute"].get<double>() / status["seconds"]["up"].get<double>(), 1e-9);
    layers += status["layers"].get<std::string>() + " ";
  }
  // A boundary of one plane of 128 f32 is 512 bytes a row; both stages also answer the coordinator.
  EXPECT_GT(seen[0].status["bytes_sent"], 8 * 512);
  EXPECT_GT(seen[0].status["seconds"]["send"], 0.0);
  EXPECT_EQ(seen[1].status["seconds"]["send"], 0.0) << "the last stage has nobody to send boundaries to";
  EXPECT_GT(seen[1].status["bytes_received"], 8 * 512);

  const std::string text = observations_text(seen);
  EXPECT_THAT(text, AllOf(HasSubstr("resident"), HasSubstr("stage-0"), HasSubstr("stage-1"), HasSubstr("ready")));
  const Json json = observations_json("test", seen);
  EXPECT_EQ(json["stages"][1]["reachable"], true);
  EXPECT_EQ(json["stages"][1]["steps"], 3);
}

TEST(Status, AReportHasPlannedBesideMeasuredMemory) {
  const LiveCluster cluster(2);
  const LoadedExecutor loaded = cluster.load();
  int64_t weights = 0;
  for (const Json& stage : remote(loaded).stage_report()) {
    weights += stage["weight_bytes"].get<int64_t>();
    EXPECT_GT(stage["planned"]["weight_bytes"], 0);
    EXPECT_GT(stage["planned"]["used_bytes"], stage["planned"]["weight_bytes"]);
  }
  EXPECT_EQ(weights, loaded.weight_bytes.value);
}

TEST(Status, AStageThatCannotBeReachedIsARowWithTheReason) {
  LiveCluster cluster(2);
  cluster.stop(1);
  const std::vector<StageObservation> seen = observe_stages(cluster.observer());
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_FALSE(seen[0].failure);
  ASSERT_TRUE(seen[1].failure);
  EXPECT_EQ(seen[1].failure->kind, ErrorKind::unreachable);
  EXPECT_THAT(observations_text(seen), AllOf(HasSubstr("unreachable"), HasSubstr("waiting")));
  const Json json = observations_json("test", seen);
  EXPECT_EQ(json["stages"][1]["reachable"], false);
  EXPECT_THAT(json["stages"][1]["failure"]["message"].get<std::string>(), HasSubstr("stage-1"));
}

TEST(Status, AnotherClustersStageRefuses) {
  const LiveCluster cluster(1);
  ObserverOptions observer = cluster.observer();
  observer.cluster.name = "other";
  const std::vector<StageObservation> seen = observe_stages(observer);
  ASSERT_TRUE(seen[0].failure);
  EXPECT_EQ(seen[0].failure->kind, ErrorKind::handshake);
  EXPECT_THAT(seen[0].failure->message, HasSubstr("cluster: wanted test, found other"));
}

TEST(Status, TheWorstFailureDecides) {
  EXPECT_EQ(worst_kind({}), std::nullopt);
  EXPECT_EQ(worst_kind({ErrorKind::stage_lost}), ErrorKind::unreachable);
  EXPECT_EQ(worst_kind({ErrorKind::unreachable, ErrorKind::handshake}), ErrorKind::handshake);
  EXPECT_EQ(worst_kind({ErrorKind::handshake, ErrorKind::security, ErrorKind::unreachable}), ErrorKind::security);
}

// ---- doctor
// -----------------------------------------------------------------------------------------------------------------------

TEST(Doctor, FindsNothingWhereNothingIsWrong) {
  const LiveCluster cluster(3);
  DiagnosisOptions options = quick(cluster.observer());
  options.config_sha256 = sha256_text(read_text_file(k3_mini() / "config.json"));
  const Diagnosis diagnosis = diagnose(options);
  EXPECT_THAT(errors_of(diagnosis), IsEmpty());
  EXPECT_EQ(diagnosis.worst(), std::nullopt);
  std::vector<std::string> pairs;
  for (const LinkDiagnosis& link : diagnosis.links) {
    pairs.push_back(link.from + " " + link.to);
    ASSERT_TRUE(link.measure) << pairs.back();
    EXPECT_GT(link.measure->round_trip, 0.0);
    EXPECT_GT(link.measure->bandwidth, 0.0);
  }
  EXPECT_THAT(pairs, ElementsAre("coordinator stage-0", "coordinator stage-1", "coordinator stage-2", "stage-0 stage-1",
                                 "stage-1 stage-2"));
  for (const NodeDiagnosis& node : diagnosis.nodes) {
    EXPECT_TRUE(node.reached);
    EXPECT_EQ(node.config_sha256, options.config_sha256);
    EXPECT_EQ(node.connection, "Unix socket");
    EXPECT_THAT(node.features, HasSubstr("gRPC 1."));
    EXPECT_GT(node.memory, 0);
  }
  EXPECT_THAT(diagnosis.to_text(), AllOf(HasSubstr("all is well"), HasSubstr("round trip"), HasSubstr("stage-2")));
  EXPECT_EQ(diagnosis.to_json()["links"].size(), 5U);
}

TEST(Doctor, AnotherModelIsAHandshakeMatter) {
  const LiveCluster cluster(1);
  DiagnosisOptions options = quick(cluster.observer());
  options.config_sha256 = sha256_text("{}");
  const Diagnosis diagnosis = diagnose(options);
  EXPECT_EQ(diagnosis.worst(), ErrorKind::handshake);
  EXPECT_THAT(errors_of(diagnosis), ElementsAre(AllOf(HasSubstr("stage-0: config.json"), HasSubstr(options.config_sha256),
                                                      HasSubstr(diagnosis.nodes[0].config_sha256))));
}

TEST(Doctor, AMissingNodeLeavesTheOthersMeasured) {
  LiveCluster cluster(3);
  cluster.stop(2);
  const Diagnosis diagnosis = diagnose(quick(cluster.observer()));
  EXPECT_EQ(diagnosis.worst(), ErrorKind::unreachable);
  EXPECT_THAT(errors_of(diagnosis), ElementsAre(HasSubstr("stage-2: ")));
  ASSERT_EQ(diagnosis.links.size(), 5U);
  EXPECT_TRUE(diagnosis.links[3].measure) << "stage-0 to stage-1";
  EXPECT_FALSE(diagnosis.links[4].measure) << "stage-1 to stage-2";
  EXPECT_THAT(diagnosis.to_text(), HasSubstr("not all is well"));
}

TEST(Doctor, ALinkBetweenStagesThatFailsIsNamed) {
  LiveCluster cluster(2);
  cluster.cut_links_of(0);
  const Diagnosis diagnosis = diagnose(quick(cluster.observer()));
  EXPECT_EQ(diagnosis.worst(), ErrorKind::unreachable);
  EXPECT_THAT(errors_of(diagnosis), ElementsAre(AllOf(HasSubstr("stage-0 -> stage-1: "), HasSubstr("the link is cut"))));
}

TEST(Doctor, CertificatesOfAnotherAuthorityAreRefused) {
  const TemporaryFolder folder;
  const TestAuthority authority(folder.path(), "ca");
  const TestAuthority stranger(folder.path(), "stranger");
  const std::vector<std::string> names = {"DNS:coordinator", "DNS:stage-0", "IP:127.0.0.1"};
  const LiveCluster cluster(1, authority.issue("node", names));
  const Diagnosis good = diagnose(quick(cluster.observer()));
  EXPECT_THAT(errors_of(good), IsEmpty());
  EXPECT_EQ(good.nodes[0].connection, "mutual TLS");
  EXPECT_THAT(good.nodes[0].resolved, ElementsAre("127.0.0.1"));
  // The certificates of the tests are good for an hour.
  EXPECT_THAT(good.certificate, HasSubstr("valid until 20"));
  ASSERT_EQ(good.findings.size(), 1U);
  EXPECT_THAT(good.findings[0].failure.message, HasSubstr("for 0.0 more days"));

  ObserverOptions observer = cluster.observer();
  observer.security = stranger.issue("other", names);
  const Diagnosis bad = diagnose(quick(observer));
  EXPECT_EQ(bad.worst(), ErrorKind::security);
  EXPECT_THAT(errors_of(bad), ElementsAre(HasSubstr("stage-0: ")));
}

// A node whose clock is wrong, and which says so in its handshake.
TEST(Doctor, ClocksThatDifferAreAWarning) {
  const TemporaryFolder folder;
  LiveCluster other(1);
  const std::string address = "unix:" + (folder.path() / "late").string();
  const GrpcServer server(address, {}, [](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    Link link(std::move(stream), link_options());
    while (const std::optional<Frame> frame = link.receive()) {
      wire::Control answer;
      if (message_of<wire::Control>(*frame).has_echo_bytes()) {
        answer.set_echo_bytes(1);
      } else {
        wire::Hello& self = *answer.mutable_hello_reply()->mutable_self();
        self = local_hello("test");
        self.set_clock(self.clock() - 60.0);
      }
      link.send(message_frame(FrameType::control, answer));
    }
    link.finish();
  });
  ObserverOptions observer = other.observer();
  observer.cluster.nodes[1].address = address;
  const Diagnosis diagnosis = diagnose(quick(observer));
  EXPECT_EQ(diagnosis.worst(), std::nullopt) << "a warning is no error";
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_THAT(diagnosis.findings[0].failure.message, HasSubstr("found -60.0 s"));
}

// ---- metrics
// ----------------------------------------------------------------------------------------------------------------------

int connect_to(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  EXPECT_EQ(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr), 1);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

// The body of a GET.
std::string scrape(const std::string& address) {
  const int socket = connect_to(address);
  const timeval limit{10, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string text;
  char buffer[4096];
  size_t wanted = std::string::npos;  // the server keeps a connection open for a while
  for (ssize_t got = 0; text.size() < wanted && (got = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
    const size_t end = text.find("\r\n\r\n");
    const size_t length = text.find("Content-Length: ");
    if (end != std::string::npos && length < end) wanted = end + 4 + std::stoul(text.substr(length + 16));
  }
  ::close(socket);
  EXPECT_THAT(text, testing::StartsWith("HTTP/1.1 200"));
  return text.substr(text.find("\r\n\r\n") + 4);
}

// Name with labels -> value. Every line must be one of the text format.
std::map<std::string, double> parse_metrics(const std::string& text) {
  static const std::regex sample(R"(([a-z_:]+(?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) ([-+.0-9eEInfNa]+))");
  static const std::regex about(R"(# (HELP|TYPE) [a-z_:]+ .+)");
  std::map<std::string, double> made;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    std::smatch match;
    if (std::regex_match(line, match, sample)) {
      EXPECT_TRUE(made.emplace(match[1], std::stod(match[2])).second) << line;
    } else {
      EXPECT_TRUE(std::regex_match(line, about)) << line;
    }
  }
  return made;
}

TEST(Metrics, D14ParseAndAgreeWithTheStatus) {
  LiveCluster cluster(2);
  const LoadedExecutor loaded = cluster.load();
  run_three_steps(*loaded.executor);
  for (int i = 0; i < 1000 && cluster.worker(0).status().sequences() > 0; ++i)  // the stage is told that it has ended
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const StageMetrics metrics("127.0.0.1", 0, cluster.worker(0), true);
  const std::map<std::string, double> found = parse_metrics(scrape(metrics.address()));
  const wire::Status status = cluster.worker(0).status();
  const auto value = [&](const std::string& name) {
    const auto at = found.find(name);
    EXPECT_NE(at, found.end()) << name;
    return at == found.end() ? -1.0 : at->second;
  };
  EXPECT_EQ(value(R"(weft_stage_up{stage="0",node="stage-0"})"), 1.0);
  EXPECT_EQ(value(R"(weft_steps_total{stage="0"})"), 3.0);
  EXPECT_EQ(value(R"(weft_failures_total{stage="0"})"), 0.0);
  EXPECT_EQ(value(R"(weft_sequences{stage="0"})"), static_cast<double>(status.sequences()));
  EXPECT_EQ(value(R"(weft_plan_epoch{stage="0"})"), static_cast<double>(status.epoch()));
  EXPECT_EQ(value(R"(weft_insecure{stage="0"})"), 1.0);
  EXPECT_EQ(value(R"(weft_memory_bytes{stage="0",kind="trunk"})"), static_cast<double>(status.trunk_bytes()));
  EXPECT_EQ(value(R"(weft_memory_bytes{stage="0",kind="experts"})"), static_cast<double>(status.expert_bytes()));
  EXPECT_GT(value(R"(weft_memory_bytes{stage="0",kind="resident"})"), 0.0);
  EXPECT_GE(value(R"(weft_memory_bytes{stage="0",kind="peak"})"), value(R"(weft_memory_bytes{stage="0",kind="resident"})"));
  // Nothing runs meanwhile, signs of life excepted.
  const double compute = value(R"(weft_compute_seconds_total{stage="0"})");
  const double wait = value(R"(weft_wait_seconds_total{stage="0"})");
  EXPECT_NEAR(compute, status.compute_seconds(), 1e-6);
  EXPECT_NEAR(wait, status.wait_seconds(), 1e-6);
  EXPECT_NEAR(value(R"(weft_send_seconds_total{stage="0"})"), status.send_seconds(), 1e-6);
  EXPECT_GT(compute, 0.0);
  EXPECT_LE(compute + wait, value(R"(weft_connected_seconds{stage="0"})"));
  const double sent = value(R"(weft_transfer_bytes_total{stage="0",direction="sent"})");
  EXPECT_GT(sent, 8 * 512);
  EXPECT_LE(sent, static_cast<double>(status.bytes_sent()));
  EXPECT_GT(value(R"(weft_transfer_bytes_total{stage="0",direction="received"})"), 0.0);
}

TEST(Metrics, AStageWithoutACoordinatorIsNotUp) {
  LiveCluster cluster(1);
  const StageMetrics metrics("127.0.0.1", 0, cluster.worker(0), false);
  const std::map<std::string, double> found = parse_metrics(scrape(metrics.address()));
  EXPECT_THAT(found, Contains(std::pair<const std::string, double>(R"(weft_stage_up{stage="0",node="stage-0"})", 0.0)));
  EXPECT_THAT(found, Contains(std::pair<const std::string, double>(R"(weft_insecure{stage="0"})", 0.0)));
}

TEST(Metrics, AnAddressThatCannotBeHadIsAnError) {
  LiveCluster cluster(1);
  const StageMetrics first("127.0.0.1", 0, cluster.worker(0), false);
  const int port = std::stoi(first.address().substr(first.address().rfind(':') + 1));
  const auto taken = guard([&] { const StageMetrics second("127.0.0.1", port, cluster.worker(0), false); });
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->kind, ErrorKind::unavailable);
  EXPECT_THAT(taken->message, HasSubstr(first.address()));
  const auto name = guard([&] { const StageMetrics named("localhost", 0, cluster.worker(0), false); });
  ASSERT_TRUE(name);
  EXPECT_EQ(name->kind, ErrorKind::bad_input);
}

// A scraper that says nothing keeps nobody else from the figures.
TEST(Metrics, SilentScrapersBlockNobody) {
  LiveCluster cluster(1);
  const StageMetrics metrics("127.0.0.1", 0, cluster.worker(0), false);
  std::vector<int> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(connect_to(metrics.address()));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // they have their threads
  EXPECT_THAT(scrape(metrics.address()), HasSubstr("weft_stage_up"));
  for (const int socket : silent) ::close(socket);
}

// Questions of observers, and the bytes of their measurements, are no work of the stage.
TEST(Status, WhatObserversMoveIsNotCounted) {
  LiveCluster cluster(2);
  const LoadedExecutor loaded = cluster.load();
  run_three_steps(*loaded.executor);
  EXPECT_EQ(diagnose(quick(cluster.observer())).worst(), std::nullopt);
  for (int s = 0; s < 2; ++s) {
    EXPECT_GT(cluster.worker(s).status().bytes_sent(), 0);
    EXPECT_LT(cluster.worker(s).status().bytes_sent(), 200 << 10) << "a measurement moves 256 KiB and more";
  }
}

// ---- shards
// -------------------------------------------------------------------------------------------------------------------------

// The checkpoint with links to all its files but `without`; `changed` is a copy with another last byte.
void link_model(const std::filesystem::path& from, const std::filesystem::path& to, const std::string& without,
                const std::string& changed) {
  std::filesystem::create_directories(to);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename();
    if (name == without || !entry.is_regular_file()) continue;
    if (name != changed) {
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), to / name);
      continue;
    }
    std::string bytes = read_text_file(entry.path());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file_atomic(to / name, bytes);
  }
}

TEST(Doctor, ShardsThatAStageWouldLoad) {
  const TemporaryFolder folder;
  const std::filesystem::path whole = testing_support::fixture("tiny-k3-8l");
  const std::string second = "model-00002-of-000003.safetensors";  // layers 4 to 7
  const std::string both = "model-00003-of-000003.safetensors";    // embedding and head
  link_model(whole, folder.path() / "missing", second, "");
  link_model(whole, folder.path() / "changed", "", both);
  struct Case {
    std::string dir;  // what the second node has
    std::optional<ErrorKind> worst;
    std::string error;
  };
  const std::string same = whole.string();
  for (const Case& c : std::vector<Case>{{same, std::nullopt, ""},
                                         {(folder.path() / "missing").string(), ErrorKind::bad_checkpoint, second},
                                         {(folder.path() / "changed").string(), ErrorKind::handshake, both}}) {
    SCOPED_TRACE(c.dir);
    LiveCluster cluster(2, {}, {whole, c.dir});
    DiagnosisOptions options = quick(cluster.observer());
    options.plan = [&](const std::vector<int64_t>& memory) {
      EXPECT_EQ(memory.size(), 2U);
      PlanOptions wanted;
      wanted.layers = "0-3,4-7";
      wanted.tokens = TokenCount(1024);
      return make_plan(plan_model(Checkpoint(whole)), wanted);
    };
    const Diagnosis diagnosis = diagnose(options);
    EXPECT_EQ(diagnosis.worst(), c.worst);
    if (c.error.empty()) {
      EXPECT_FALSE(diagnosis.nodes[0].shards.empty());
      EXPECT_FALSE(diagnosis.nodes[1].shards.empty());
    } else {
      EXPECT_THAT(errors_of(diagnosis), ElementsAre(AllOf(HasSubstr("stage-1: "), HasSubstr(c.error))));
    }
    if (c.worst != ErrorKind::handshake) continue;
    // A run says the same.
    RemoteModelOptions run = cluster.model_options();
    run.model.dir = whole;
    run.cluster.layers = "0-3,4-7";
    const std::optional<Failure> failure = guard([&] { (void)load_remote_executor(run); });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
    EXPECT_THAT(failure->message, AllOf(HasSubstr("stage 1 (node stage-1, "), HasSubstr("'" + both + "'"),
                                        HasSubstr("as stage 0 (node stage-0) has it")));
  }
}

// ---- progress
// ---------------------------------------------------------------------------------------------------------------------

TEST(Progress, EachStageTellsHowMuchItReads) {
  const LiveCluster cluster(2);
  std::mutex mutex;
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> told;
  RemoteModelOptions options = cluster.model_options();
  options.loading = [&](int64_t stage, int64_t done, int64_t total) {
    const std::lock_guard lock(mutex);
    told[stage].emplace_back(done, total);
  };
  const LoadedExecutor loaded = load_remote_executor(options);
  ASSERT_EQ(told.size(), 2U);
  const Json report = remote(loaded).stage_report();
  for (const auto& [stage, reports] : told) {
    EXPECT_EQ(reports.front().first, 0);
    EXPECT_EQ(reports.back().first, reports.back().second);
    EXPECT_EQ(reports.back().second, report[static_cast<size_t>(stage)]["memory"]["trunk_bytes"]);
  }
}

}  // namespace
}  // namespace weft
