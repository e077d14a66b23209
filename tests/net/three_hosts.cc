#include "net/three_hosts.h"

#include <cerrno>
#include <fstream>
#include <string_view>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/remote/certs.h"

namespace weft::net_test {
namespace {

constexpr int kCoordinatorPort = 19000;
constexpr int kStagePort = 19001;
constexpr int kHosts = 3;

// examples/distributed/three-node.toml
constexpr std::string_view kShippedFile = R"(# Kimi K3 (93 layers, 1.56 TB) over three hosts of 512 GB: it just fits.

[cluster]
name = "k3-3"
pipeline_parallel_size = 3

[partition]
# The best split by bytes. Its largest stage, the last, holds 525,231,009,280 bytes of layers and head: 95.5 % of 512 GiB.
mode = "manual"
layers = ["0-30", "31-61", "62-92"]
# With the default reserve of 0.08 a stage may use 92 % of its host, and the plan is refused (exit code 3, with the shortfall
# of each stage). 0.03 leaves 16 GB for everything else on the host: stop other programs, and give the stages no more than
# this state. Four hosts fit with the default (four-node.toml).
reserve_fraction = 0.03
kv_tokens = 131072
kv_sequences = 2

[security]
cert = "node.pem"
key = "node.key"
ca = "ca.pem"
token_file = "cluster.token"

[[nodes]]
id = "coordinator"
address = "k3-a.example:19000"
role = "hybrid"

[[nodes]]
id = "stage-0"
address = "k3-a.example:19001"
role = "pipeline_stage"
stage = 0
model_dir = "/data/Kimi-K3"
resources = { memory_bytes = 549755813888 }  # 512 GiB

[[nodes]]
id = "stage-1"
address = "k3-b.example:19001"
role = "pipeline_stage"
stage = 1
model_dir = "/data/Kimi-K3"
resources = { memory_bytes = 549755813888 }

[[nodes]]
id = "stage-2"
address = "k3-c.example:19001"
role = "pipeline_stage"
stage = 2
model_dir = "/data/Kimi-K3"
resources = { memory_bytes = 549755813888 }
)";

// Kimi K3's layers are not those of k3-mini; the command line wins over the file.
constexpr const char* kLayers = "0-3,4-7,8-11";

// Replaces every `from`, of which there must be one.
void replace(std::string& text, std::string_view from, std::string_view to) {
  size_t count = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()), ++count) {
    text.replace(at, from.size(), to);
  }
  if (count == 0) fail(ErrorKind::internal, "three-node file", "wanted '{}', found none", from);
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail(ErrorKind::unavailable, path.string(), "wanted a file, found none");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace

ThreeHosts::ThreeHosts(NetworkKind kind, const std::string& cluster_lines)
    : network_(open_network(kHosts, kUsualFaults, kind)) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a process leaves behind becomes a child of this one
  addresses_ = {network_->address(0, kCoordinatorPort), network_->address(0, kStagePort), network_->address(1, kStagePort),
                network_->address(2, kStagePort)};
  CertsOptions certs;
  certs.out = folder_.path() / "certs";
  const std::array<const char*, 4> nodes = {"coordinator", "stage-0", "stage-1", "stage-2"};
  for (size_t i = 0; i < nodes.size(); ++i) {
    certs.nodes.push_back({nodes[i], {addresses_[i].substr(0, addresses_[i].find(':'))}});
  }
  make_certs(certs);
  for (int host = 0; host < kHosts; ++host) {
    std::filesystem::create_directory(host_folder(host));
    // The coordinator's certificate names stage 0 too, which is on the same host.
    const std::string node = host == 0 ? "coordinator" : fmt::format("stage-{}", host);
    const auto copy = [&](const std::string& from, const char* to) {
      std::filesystem::copy_file(certs.out / from, host_folder(host) / to);
    };
    copy(node + ".pem", "node.pem");
    copy(node + ".key", "node.key");
    copy("ca.pem", "ca.pem");
    copy("cluster.token", "cluster.token");
    write_text(host_folder(host) / "three-node.toml", cluster_file(cluster_lines));
  }
}

ThreeHosts::~ThreeHosts() = default;

std::filesystem::path ThreeHosts::host_folder(int host) const { return folder_.path() / fmt::format("host-{}", host); }

std::string ThreeHosts::cluster_file(const std::string& cluster_lines) const {
  std::string text(kShippedFile);
  const std::array<const char*, 4> shipped = {"k3-a.example:19000", "k3-a.example:19001", "k3-b.example:19001",
                                              "k3-c.example:19001"};
  for (size_t i = 0; i < shipped.size(); ++i) replace(text, shipped[i], addresses_[i]);
  replace(text, "/data/Kimi-K3", std::filesystem::absolute(testing_support::k3_mini()).string());
  if (!cluster_lines.empty()) replace(text, "[cluster]\n", "[cluster]\n" + cluster_lines + "\n");
  return text;
}

void ThreeHosts::start_stage(int stage) {
  const int host = host_of_stage(stage);
  const std::string id = fmt::format("stage-{}", stage);
  std::vector<std::string> words = {
      WEFT_PROGRAM, "stage", "--distributed-config", (host_folder(host) / "three-node.toml").string(), "--node-id", id,
      "--threads",  "1"};
  if (const std::string bind = network_->bind(host, kStagePort); !bind.empty()) words.insert(words.end(), {"--bind", bind});
  const auto log = host_folder(host) / fmt::format("{}-{}", id, ++runs_);
  stages_[static_cast<size_t>(stage)] = std::make_unique<Process>(*network_, host, words, log);
}

void ThreeHosts::start_stages() {
  for (int s = 0; s < kHosts; ++s) start_stage(s);
}

std::unique_ptr<Process> ThreeHosts::coordinator(const std::string& subcommand, const std::vector<std::string>& more) const {
  std::vector<std::string> words = {WEFT_PROGRAM,
                                    subcommand,
                                    "-m",
                                    testing_support::k3_mini().string(),
                                    "--distributed-config",
                                    (host_folder(0) / "three-node.toml").string(),
                                    "--pp-layers",
                                    kLayers,
                                    "--temperature",
                                    "0"};
  words.insert(words.end(), more.begin(), more.end());
  return std::make_unique<Process>(*network_, 0, words, host_folder(0) / fmt::format("{}-{}", subcommand, ++runs_));
}

std::string ThreeHosts::name(int stage) const {
  return fmt::format("stage {} (node stage-{}, {})", stage, stage, addresses_[static_cast<size_t>(stage) + 1]);
}

void ThreeHosts::stop_stages() {
  for (const auto& process : stages_) process->signal(SIGINT);
  for (const auto& process : stages_) EXPECT_EQ(process->wait(10.0), 0) << process->story();
  for (auto& process : stages_) process.reset();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  EXPECT_EQ(errno, ECHILD);
}

std::string ThreeHosts::story() const {
  std::string all;
  for (const auto& process : stages_) {
    if (process) all += process->story();
  }
  return all;
}

}  // namespace weft::net_test
