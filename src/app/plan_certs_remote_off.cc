// What stands in for cluster files and certificates in a build without gRPC.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/plan_cluster.h"
#include "base/error.h"

namespace weft {
namespace {

[[noreturn]] void refuse(std::string_view what) {
  fail(ErrorKind::unsupported, what, "wanted a build with gRPC (CMake option WEFT_GRPC), found one without");
}

}  // namespace

ClusterConfig read_plan_cluster(const std::string&, bool) { refuse("--distributed-config"); }
PlanOptions plan_cluster_options(const ClusterConfig&, int64_t) { refuse("--distributed-config"); }
void write_plan_cluster(const std::string&, const std::optional<ClusterConfig>&, const Plan&, const PlanOptions&,
                        const std::filesystem::path&) {
  refuse("--plan-out");
}

void add_certs(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("certs", "Certificates for the nodes of a cluster (not in this build)");
  sub->allow_extras();
  sub->callback([&command] { command.run = []() -> ExitCode { refuse("weft certs"); }; });
}

}  // namespace weft
