#include "app/remote/observer_flags.h"

#include <CLI/CLI.hpp>

#include "app/commit.h"
#include "engine/remote/remote_loader.h"

namespace weft {

void ObserverFlags::add(CLI::App& app) {
  app.add_option("--distributed-config", config, "Cluster file (TOML)")->required()->type_name("FILE");
  app.add_option("--node-id", node, "Whose certificate this end shows; default: the coordinator's")->type_name("ID");
  app.add_flag("--insecure", insecure, "Allow plaintext to addresses that are not loopback");
  app.add_flag("--json", json, "One JSON object");
}

ObserverOptions ObserverFlags::options() const {
  ObserverOptions made;
  ClusterSecurity given;
  given.allow_insecure = insecure;
  made.cluster = read_cluster_config(config, given);
  if (!node.empty()) made.node = made.cluster.node(node).id;
  made.security = transport_security(made.cluster.security);
  made.link = link_options();
  made.build = fmt::format("{} {}", kVersion, kBuildCommit);
  return made;
}

}  // namespace weft
