// Three hosts with k3-mini on them, as the shipped three-node file has it: the coordinator and stage 0 on the first, stage 1 on
// the second, stage 2 on the third; mutual TLS and a token.
//
//     ThreeHosts hosts;                                      // links: 20 ms, 1 % loss
//     hosts.start_stages();
//     const auto run = hosts.coordinator("generate", {"-p", "What is 17 * 23?"});
//     EXPECT_EQ(run->wait(60.0), 0) << run->story();
//     hosts.stop_stages();                                   // they end by themselves, and nothing is left
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "net/network.h"
#include "net/process.h"
#include "support/models.h"

namespace weft::net_test {

inline constexpr LinkFaults kUsualFaults{.delay = 0.020, .loss = 0.01, .is_cut = false};

// Which host a stage is on.
[[nodiscard]] constexpr int host_of_stage(int stage) { return stage; }

class ThreeHosts {
 public:
  // `cluster_lines`: more of the file's section [cluster].
  explicit ThreeHosts(NetworkKind kind = NetworkKind::best, const std::string& cluster_lines = "");
  ~ThreeHosts();

  [[nodiscard]] Network& network() { return *network_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }

  void start_stage(int stage);
  void start_stages();
  [[nodiscard]] Process& stage(int stage) { return *stages_[static_cast<size_t>(stage)]; }
  // `weft SUBCOMMAND` of the coordinator's host with the model, the cluster file and temperature 0.
  [[nodiscard]] std::unique_ptr<Process> coordinator(const std::string& subcommand, const std::vector<std::string>& more) const;
  // As messages name it: "stage 1 (node stage-1, 10.77.0.2:19001)".
  [[nodiscard]] std::string name(int stage) const;
  // Interrupts the stages and expects that each ends in good order within 10 s, and that no child of this process is left.
  void stop_stages();
  // Outputs of all stages, for messages.
  [[nodiscard]] std::string story() const;

 private:
  [[nodiscard]] std::filesystem::path host_folder(int host) const;
  void write_host(int host) const;
  [[nodiscard]] std::string cluster_file(const std::string& cluster_lines) const;

  testing_support::TemporaryFolder folder_;
  std::unique_ptr<Network> network_;
  std::array<std::string, 4> addresses_;  // of the coordinator, then of the stages
  std::array<std::unique_ptr<Process>, 3> stages_;
  mutable int runs_ = 0;
};

}  // namespace weft::net_test
