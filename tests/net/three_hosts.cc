#include "net/three_hosts.h"

#include <cerrno>
#include <fstream>
#include <string_view>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "pipeline/remote/certs.h"

#include "support/sanitizer.h"

namespace weft::net_test {
namespace {

constexpr int kCoordinatorPort = 19000;
constexpr int kStagePort = 19001;
constexpr int kHosts = 3;

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
  std::string text = read_text_file(std::filesystem::path(WEFT_SOURCE_DIR) / "examples/distributed/three-node.toml");
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
  // The thread sanitizer's symbolizers outlive those that started them by a moment.
  if (testing_support::kThreadSanitizer) return;
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
