// weft stage: a pipeline worker.
#include <chrono>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commit.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/observe.h"
#include "pipeline/remote/stage_metrics.h"
#include "pipeline/remote/worker.h"
#include "pipeline/wire/link.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(A worker loads the layers that the coordinator names, from its own copy of the checkpoint (only the shards of those layers
need to be there), and serves until it is interrupted. Workers and coordinator may start in any order.

Examples:
  weft stage -m /data/Kimi-K3 --distributed-config cluster.toml --node-id stage-1
  weft generate -m /data/Kimi-K3 --distributed-config cluster.toml -p "Hello"      (on the coordinator's host)
  weft status --distributed-config cluster.toml

`weft certs` makes the certificates that hosts need; docs/distributed.md has the whole story.)";

struct Flags {
  std::string dir;
  std::string config;
  std::string node;
  std::string bind;
  std::string device = "cpu";
  std::string memory;
  std::string load_audit;
  std::string metrics_bind = "127.0.0.1";
  std::optional<int> metrics_port;
  int threads = 0;
  bool reference = false;
  bool insecure = false;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::string token_file;
  WireFlags wire;
};

ExitCode stage(const Flags& flags) {
  ClusterSecurity given;
  given.allow_insecure = flags.insecure;
  given.cert = flags.tls_cert;
  given.key = flags.tls_key;
  given.ca = flags.tls_ca;
  given.token_file = flags.token_file;
  const ClusterConfig cluster = read_cluster_config(flags.config, given);
  const ClusterNode& node = cluster.node(flags.node);
  if (node.role != NodeRole::stage) {
    fail(ErrorKind::bad_input, flags.config, "node '{}': wanted a stage, found the coordinator", node.id);
  }
  const TransportSecurity security = transport_security(cluster.security);
  const std::string address = flags.bind.empty() ? node.address : flags.bind;
  security.require_usable(address);
  WorkerOptions options;
  options.cluster = cluster.name;
  options.node = node.id;
  options.build = fmt::format("{} {}", kVersion, kBuildCommit);
  options.features = built_with();
  options.stage = *node.stage;
  options.coordinator = cluster.coordinator().id;
  // The command line wins over the node, the node over the cluster.
  options.model_dir = flags.dir;
  if (options.model_dir.empty()) options.model_dir = node.model_dir.empty() ? cluster.model : node.model_dir;
  if (options.model_dir.empty())
    fail(ErrorKind::bad_input, "command line", "wanted -m DIR or model_dir in the file, found neither");
  options.threads = flags.threads;
  options.backend = flags.device == "cuda" ? ops::Backend::cuda : flags.reference ? ops::Backend::reference : ops::Backend::cpu;
  options.memory = !flags.memory.empty() ? parse_memory(flags.memory) : node.memory_bytes;
  options.timeouts = cluster.timeouts;
  options.link = flags.wire.options(security.tls() || address.starts_with("unix:"));
  options.load_audit = flags.load_audit;
  options.connect = [security](const NodeAddress& to, double timeout) { return connect_grpc(to, security, timeout); };
  options.log = [](const std::string& line) { write_note(line); };
  watch_interrupts();
  const auto worker = while_loading([&] { return std::make_unique<Worker>(options); });
  const bool insecure = security.allow_insecure && !security.tls() && !is_loopback(address);
  std::unique_ptr<StageMetrics> metrics;
  if (flags.metrics_port) {
    metrics = std::make_unique<StageMetrics>(flags.metrics_bind, *flags.metrics_port, *worker, insecure);
    write_note(fmt::format("metrics: http://{}/metrics", metrics->address()));
    if (!is_loopback(metrics->address())) write_note("warning: whoever reaches that address may read the metrics");
  }
  {
    const GrpcServer server(address, security, [&](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
      const std::optional<Failure> failure = guard([&] { worker->serve(std::move(stream), peer.names); });
      if (!failure) return;
      write_note(fmt::format("{}: {}", peer.address, failure->message));
      failure->raise();
    });
    if (insecure) write_note("warning: plaintext on an address that others can reach (--insecure)");
    write_note(fmt::format("{} (stage {}) listens on {}", node.id, *node.stage, server.address()));
    while (!interrupt_flag().load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    worker->stop("the worker was interrupted");
  }
  return kExitSuccess;
}

}  // namespace

void add_stage(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("stage", "A pipeline worker: some layers of a model, for a coordinator");
  sub->footer(kExamples);
  sub->add_option("-m,--model", flags->dir, "Folder of the checkpoint; default: as the cluster file says")->type_name("DIR");
  sub->add_option("--distributed-config", flags->config, "Cluster file (TOML)")->required()->type_name("FILE");
  sub->add_option("--node-id", flags->node, "Which node of the file this process is")->required()->type_name("ID");
  sub->add_option("--bind", flags->bind, "Listen here instead of at the node's address")->type_name("ADDR");
  sub->add_option("--threads", flags->threads, "Worker threads; default: all cores")->check(CLI::Range(1, 1024));
  sub->add_option("--device", flags->device, "Where the stage computes: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--memory", flags->memory,
                  "Memory that the stage may use, as in 500GiB; default: the file's, else what is free");
  sub->add_option("--load-audit", flags->load_audit, "Write which files and bytes were read, as JSON")->type_name("FILE");
  CLI::Option* port =
      sub->add_option("--metrics-port", flags->metrics_port, "Serve metrics for Prometheus there; 0: a free port")
          ->check(CLI::Range(0, 65535));
  sub->add_option("--metrics-bind", flags->metrics_bind, "Address of the metrics, which anyone who reaches it may read")
      ->type_name("ADDR")
      ->needs(port)
      ->capture_default_str();
  sub->add_flag("--reference", flags->reference, "The plain scalar operators: slow, for comparison");
  sub->add_option("--tls-cert", flags->tls_cert, "Certificate (PEM) instead of the cluster file's")->type_name("FILE");
  sub->add_option("--tls-key", flags->tls_key, "Its key (PEM)")->type_name("FILE");
  sub->add_option("--tls-ca", flags->tls_ca, "The authority of the other ends' certificates (PEM)")->type_name("FILE");
  sub->add_option("--cluster-token-file", flags->token_file, "Shared secret of the cluster")->type_name("FILE");
  flags->wire.add(*sub);
  sub->add_flag("--insecure", flags->insecure, "Allow plaintext on an address that is not loopback");
  sub->callback([flags, &command] { command.run = [flags] { return stage(*flags); }; });
}

}  // namespace weft
