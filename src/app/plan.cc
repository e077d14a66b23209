// weft plan: what would be loaded where.
#include "pipeline/plan.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/plan_cluster.h"
#include "app/terminal.h"
#include "base/system_memory.h"
#include "engine/executor_loader.h"
#include "model/checkpoint.h"
#include "model/family_names.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Nothing is loaded: sizes come from the headers, or from config.json alone where there are no tensors yet.
Exit code 3 when the model does not fit; the message names the shortfall of each stage. No node is contacted.

Examples:
  weft plan -m models/k3-mini --pp-size 3
  weft plan -m Kimi-K3 --memory auto
  weft plan -m Kimi-K3 --pp-size 4 --node-memory 512GiB --bandwidth 400
  weft plan -m Kimi-K3 --pp-layers 0-30,31-61,62-92 --node-memory 512GiB --reserve-fraction 0.03 --json
  weft plan -m Kimi-K3 --distributed-config cluster.toml --pp-balance latency --plan-out manual.toml
  weft plan --families)";

constexpr int64_t kMostTokens = 32768;  // reserved for a sequence unless --tokens says more

struct Flags {
  std::string dir;
  std::string cluster;
  std::string plan_out;
  std::string adapter;
  std::optional<int64_t> stages;
  std::string layers;
  std::string balance = "memory";
  std::string node_memory;
  std::string memory;
  std::optional<double> reserve_fraction;
  std::optional<int64_t> sequences;
  std::optional<int64_t> tokens;
  int64_t prefill_chunk = 512;
  std::string profile;
  std::string device = "cpu";
  std::optional<double> bandwidth;       // GB/s
  std::optional<double> link_latency;    // microseconds
  std::optional<double> link_bandwidth;  // GB/s
  const CLI::Option* layers_option = nullptr;
  const CLI::Option* balance_option = nullptr;
  bool insecure = false;
  CheckpointOptions checkpoint;
  bool families = false;
  bool json = false;
};

bool has_tensors(const std::filesystem::path& dir) {
  return std::filesystem::exists(dir / "model.safetensors.index.json") || std::filesystem::exists(dir / "model.safetensors");
}

struct Sized {
  PlanModel model;
  int64_t context = 0;  // tokens
};

Sized read_model(const std::filesystem::path& dir, const CheckpointOptions& options) {
  if (has_tensors(dir)) {
    const Checkpoint checkpoint(dir, options);
    return {plan_model(checkpoint), checkpoint.config().max_context};
  }
  const std::shared_ptr<const ModelConfig> config = load_model_config(dir);
  return {plan_model(config), config->max_context};
}

ExitCode list_families(bool json) {
  if (json) {
    write_json_output(Json(family_names()));
  } else {
    write_output(fmt::format("{}\n", fmt::join(family_names(), "\n")));
  }
  return kExitSuccess;
}

// What the command line says wins over the file.
ClusterConfig read_cluster(const Flags& flags) {
  ClusterConfig cluster = read_plan_cluster(flags.cluster, flags.insecure);
  SplitChoice split{.stages = flags.stages};
  if (!flags.layers.empty()) split.layers = flags.layers;
  if (flags.balance_option->count() > 0) split.balance = flags.balance;
  apply_split(split, cluster);
  cluster.reserve_fraction = flags.reserve_fraction.value_or(cluster.reserve_fraction);
  cluster.kv_sequences = flags.sequences.value_or(cluster.kv_sequences);
  cluster.kv_tokens = flags.tokens.value_or(cluster.kv_tokens);
  if (flags.node_memory.empty()) return cluster;
  const std::vector<int64_t> memory = parse_memory_list(flags.node_memory, "--node-memory");
  if (memory.size() != 1 && std::ssize(memory) != cluster.stages)
    fail(ErrorKind::bad_input, "command line", "P07: --node-memory: wanted 1 or {} sizes, found {}", cluster.stages,
         memory.size());
  for (ClusterNode& node : cluster.nodes)
    if (node.stage) node.memory_bytes = memory[memory.size() == 1 ? 0 : static_cast<size_t>(*node.stage)];
  return cluster;
}

PlanOptions options_of(const Flags& flags, const std::optional<ClusterConfig>& cluster, int64_t context) {
  PlanOptions options;
  if (cluster) {
    options = plan_cluster_options(*cluster, context);
  } else {
    options.stages = flags.stages;
    options.layers = flags.layers;
    options.balance = parse_balance(flags.balance);
    if (!flags.node_memory.empty()) options.node_memory = parse_memory_list(flags.node_memory, "--node-memory");
    options.reserve_fraction = flags.reserve_fraction.value_or(options.reserve_fraction);
    options.sequences = flags.sequences.value_or(options.sequences);
    options.tokens = TokenCount(flags.tokens.value_or(std::min(kMostTokens, context)));
  }
  if (!flags.memory.empty())
    options.memory = flags.memory == "auto" ? available_memory() : parse_memory(flags.memory, "--memory");
  options.prefill_chunk = flags.prefill_chunk;
  if (flags.profile == "exact") options.profile = ops::Profile::exact;
  if (flags.profile == "bf16") options.profile = ops::Profile::bf16;
  options.gpu = flags.device == "cuda";
  if (flags.bandwidth) {
    options.bandwidth = *flags.bandwidth * 1e9;
    options.node_bandwidth.clear();
  }
  if (flags.link_latency || flags.link_bandwidth || options.balance == PlanBalance::latency) {
    PlanLink link = options.link.value_or(PlanLink{});
    if (flags.link_latency) link.latency = *flags.link_latency * 1e-6;
    if (flags.link_bandwidth) link.bandwidth = *flags.link_bandwidth * 1e9;
    options.link = link;
  }
  return options;
}

ExitCode plan(const Flags& flags) {
  if (flags.families) return list_families(flags.json);
  if (!flags.plan_out.empty()) check_output_file(flags.plan_out);
  if (flags.layers_option->count() > 0 && flags.layers.empty()) {
    fail(ErrorKind::bad_input, "plan", "P01: empty layer specification");
  }
  std::optional<ClusterConfig> cluster;
  if (!flags.cluster.empty()) cluster = read_cluster(flags);
  const std::filesystem::path dir = !flags.dir.empty() || !cluster ? std::filesystem::path(flags.dir) : cluster->model;
  if (dir.empty())
    fail(ErrorKind::bad_input, "command line", "--model: wanted a folder{}, found none",
         cluster ? ", or a model under [cluster] of the file" : "");
  if (!flags.adapter.empty()) refuse_adapter(dir.string(), flags.adapter);
  const Sized sized = while_loading([&] { return read_model(dir, flags.checkpoint); });
  const PlanOptions options = options_of(flags, cluster, sized.context);
  const Plan made = make_plan(sized.model, options);
  if (!flags.plan_out.empty()) write_plan_cluster(flags.plan_out, cluster, made, options, dir);
  write_report(made, flags.json);
  return kExitSuccess;
}

}  // namespace

void apply_split(const SplitChoice& choice, ClusterConfig& cluster) {
  if (choice.stages && *choice.stages != cluster.stages)
    fail(ErrorKind::bad_input, "command line", "P07: --pp-size {}: wanted the {} stages of {}", *choice.stages, cluster.stages,
         cluster.file.string());
  if (choice.layers) cluster.layers = *choice.layers;
  if (!choice.balance.empty()) cluster.balance = choice.balance;
}

ExitCode ModelFlags::print_plan() const {
  const ModelOptions chosen = options();
  const Sized sized = while_loading(
      [&] { return read_model(dir, {.allow_unknown_tensors = allow_unknown_tensors, .rebuild_index = rebuild_index}); });
  if (distributed_config.empty()) {
    write_report(plan_stages(sized.model, sized.context, chosen), false);
    return kExitSuccess;
  }
  ClusterConfig cluster = read_plan_cluster(distributed_config, insecure);
  apply_split(split(), cluster);
  PlanOptions wanted = plan_cluster_options(cluster, sized.context);
  wanted.prefill_chunk = chosen.prefill_chunk;
  wanted.profile = chosen.profile;
  write_report(make_plan(sized.model, wanted), false);
  return kExitSuccess;
}

void add_plan(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("plan", "What would be loaded where: stages, bytes, memory, boundaries");
  sub->footer(kExamples);
  sub->add_option("-m,--model", flags->dir, "Folder of the checkpoint; default: as the cluster file says")->type_name("DIR");
  sub->add_flag("--allow-unknown-tensors", flags->checkpoint.allow_unknown_tensors, "A note instead of an error for them");
  sub->add_flag("--rebuild-index", flags->checkpoint.rebuild_index, "Go by the headers where the index disagrees");
  sub->add_option("--distributed-config", flags->cluster,
                  "Cluster file (TOML) that says how many stages there are, on which nodes, and what room they need; flags win")
      ->type_name("FILE");
  sub->add_option("--pp-size", flags->stages, "Number of stages (default 1, or as --pp-layers says)")
      ->check(whole_number(1, 1U << 20U));
  flags->layers_option =
      sub->add_option("--pp-layers", flags->layers, "Layers of each stage, as in 0-3,4-7 or 4+4; default: the best split");
  flags->balance_option =
      sub->add_option(
             "--pp-balance", flags->balance,
             "What the best split makes small: memory (the largest used share of a node), compute (the largest time of a "
             "stage), latency (the sum of those times and of the hops between stages)")
          ->check(CLI::IsMember({"memory", "compute", "latency"}))
          ->capture_default_str();
  CLI::Option* node_memory = sub->add_option(
      "--node-memory", flags->node_memory, "Memory of each node, one value for all or a list, as in 512GiB; default: no limit");
  sub->add_option(
         "--memory", flags->memory,
         "Memory of one process that runs all stages, as in 24GiB, or auto: what generate uses here. Routed experts for "
         "which there is no room are read again when a token needs them")
      ->excludes(node_memory);
  sub->add_option("--reserve-fraction", flags->reserve_fraction, "Share of the memory that stays free (default 0.08)")
      ->check(CLI::Range(0.0, 0.5));
  sub->add_option("--pp-max-sequences", flags->sequences, "Sequences that the plan leaves room for (default 4)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  sub->add_option("--tokens", flags->tokens, "Tokens of each of those sequences; default: the model's context, at most 32768")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  sub->add_option("--prefill-chunk,--pp-prefill-chunk", flags->prefill_chunk, "Prompt tokens of one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--profile", flags->profile, "Numbers: exact or bf16; default: exact below 1 GiB of weights, else bf16")
      ->check(CLI::IsMember({"exact", "bf16"}));
  sub->add_option("--device", flags->device, "What computes: cpu, or cuda (weights and workspace as a GPU holds them)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--bandwidth", flags->bandwidth, "GB/s of each node's memory, for the expected tokens/s")
      ->check(above_zero());
  sub->add_option("--link-latency", flags->link_latency,
                  "Microseconds of a hop between stages on different nodes (default 100)")
      ->check(at_least_zero());
  sub->add_option("--link-bandwidth", flags->link_bandwidth, "GB/s between nodes (default 1)")->check(above_zero());
  sub->add_option("--plan-out", flags->plan_out, "Write the plan as a cluster file; the same input gives the same bytes")
      ->type_name("FILE");
  sub->add_option("--adapter", flags->adapter, "Adapter (LoRA) of the model: refused, no family takes one yet")
      ->type_name("DIR");
  sub->add_flag("--insecure", flags->insecure, "Allow plaintext in the cluster file, on addresses that are not loopback");
  sub->add_flag("--families", flags->families, "List the model types that this program runs, and nothing else");
  sub->add_flag("--json", flags->json, "The same as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return plan(*flags); }; });
}

}  // namespace weft
