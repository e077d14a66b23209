// weft stage: a pipeline worker.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/remote/stage_server.h"
#include "app/terminal.h"
#include "base/open_files.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/plan.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/remote/stage_metrics.h"
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
  std::string advertise;
  std::string model_root;
  std::string device = "cpu";
  std::string memory;
  std::string load_audit;
  std::string metrics_bind = "127.0.0.1";
  std::optional<int> metrics_port;
  int threads = 0;
  bool reference = false;
  bool insecure = false;
  bool allow_unknown_tensors = false;
  bool rebuild_index = false;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::string token_file;
  WireFlags wire;
};

// A cluster file from elsewhere may name a folder that this host's owner does not mean.
void require_below(const std::filesystem::path& dir, const std::filesystem::path& root) {
  std::error_code error;
  const std::filesystem::path inside = std::filesystem::weakly_canonical(dir, error);
  const std::filesystem::path outside = std::filesystem::weakly_canonical(root, error);
  const auto [rest, at] = std::ranges::mismatch(outside, inside);
  if (!error && (rest == outside.end() || rest->empty())) return;
  fail(ErrorKind::security, "--model-root", "wanted a model folder below {}, found {}", root.string(), dir.string());
}

ExitCode stage(const Flags& flags) {
  ClusterSecurity given;
  given.allow_insecure = flags.insecure;
  given.cert = flags.tls_cert;
  given.key = flags.tls_key;
  given.ca = flags.tls_ca;
  given.token_file = flags.token_file;
  const ClusterConfig cluster = read_cluster_config(flags.config, given);
  const ClusterNode& node = cluster.node(flags.node);
  const TransportSecurity security = transport_security(cluster.security);
  WorkerOptions options = worker_options(cluster, node, security);
  const std::string address = flags.bind.empty() ? node.address : flags.bind;
  // The command line wins over the node, the node over the cluster.
  if (!flags.dir.empty()) options.model_dir = flags.dir;
  if (options.model_dir.empty())
    fail(ErrorKind::bad_input, "command line", "wanted -m DIR or model_dir in the file, found neither");
  if (!flags.model_root.empty()) require_below(options.model_dir, flags.model_root);
  options.advertise = flags.advertise;
  options.threads = flags.threads;
  options.backend = flags.device == "cuda" ? ops::Backend::cuda : flags.reference ? ops::Backend::reference : ops::Backend::cpu;
  if (!flags.memory.empty()) options.memory = parse_memory(flags.memory, "--memory");
  options.link = flags.wire.options(security.tls() || address.starts_with("unix:"));
  if (!flags.load_audit.empty()) check_output_file(flags.load_audit);
  options.load_audit = flags.load_audit;
  options.allow_unknown_tensors = flags.allow_unknown_tensors;
  options.rebuild_index = flags.rebuild_index;
  options.log = [](const std::string& line) { write_note(line); };
  static_cast<void>(raise_open_file_limit());  // connections are open files
  watch_interrupts();
  StageServer server(options, address, security);
  std::unique_ptr<StageMetrics> metrics;
  if (flags.metrics_port) {
    metrics = std::make_unique<StageMetrics>(flags.metrics_bind, *flags.metrics_port, server.worker(), server.insecure());
    write_note(fmt::format("metrics: http://{}/metrics", metrics->address()));
    if (!is_loopback(metrics->address())) write_note("warning: whoever reaches that address may read the metrics");
  }
  if (server.insecure()) write_note("warning: plaintext on an address that others can reach (--insecure)");
  write_note(fmt::format("{} (stage {}) listens on {}", node.id, *node.stage, server.address()));
  while (!interrupt_flag().load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.stop("the worker was interrupted");
  return kExitSuccess;
}

}  // namespace

std::optional<ExitCode> run_as_stage(const ModelFlags& model, const std::string& node) {
  if (model.distributed_config.empty())
    fail(ErrorKind::bad_input, "command line", "--node-id: wanted --distributed-config beside it, found none");
  ClusterSecurity given;
  given.allow_insecure = true;  // only the role is asked for here
  if (read_cluster_config(model.distributed_config, given).node(node).role != NodeRole::stage) return std::nullopt;
  Flags flags;
  flags.dir = model.dir;
  flags.config = model.distributed_config;
  flags.node = node;
  flags.device = model.device;
  flags.memory = model.memory;
  flags.threads = model.threads;
  flags.reference = model.reference;
  flags.allow_unknown_tensors = model.allow_unknown_tensors;
  flags.rebuild_index = model.rebuild_index;
  flags.insecure = model.insecure;
  flags.tls_cert = model.tls_cert;
  flags.tls_key = model.tls_key;
  flags.tls_ca = model.tls_ca;
  flags.token_file = model.token_file;
  flags.wire = model.wire;
  return stage(flags);
}

void add_stage(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("stage", "A pipeline worker: some layers of a model, for a coordinator");
  sub->footer(kExamples);
  sub->add_option("-m,--model", flags->dir, "Folder of the checkpoint; default: as the cluster file says")->type_name("DIR");
  sub->add_option("--distributed-config", flags->config, "Cluster file (TOML)")->required()->type_name("FILE");
  sub->add_option("--node-id", flags->node, "Which node of the file this process is")->required()->type_name("ID");
  sub->add_option("--bind", flags->bind, "Listen here instead of at the node's address")->type_name("ADDR");
  sub->add_option("--advertise", flags->advertise,
                  "Address where the stage before reaches this one; default: the node's in the coordinator's file")
      ->type_name("ADDR");
  sub->add_option("--model-root", flags->model_root, "Refuse a model folder that is not below this one")->type_name("DIR");
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
  sub->add_flag("--allow-unknown-tensors", flags->allow_unknown_tensors, "A note instead of an error for them");
  sub->add_flag("--rebuild-index", flags->rebuild_index, "Go by the headers where the index disagrees");
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
