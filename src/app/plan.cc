// weft plan: what would be loaded where.
#include "pipeline/plan.h"

#include <cmath>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/system_memory.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Nothing is loaded: sizes come from the headers, or from config.json alone where there are no tensors yet.
Exit code 3 when the model does not fit; the message names the shortfall of each stage.

Examples:
  weft plan -m models/k3-mini --pp-size 3
  weft plan -m Kimi-K3 --memory auto
  weft plan -m Kimi-K3 --pp-size 4 --node-memory 512GiB --bandwidth 400
  weft plan -m Kimi-K3 --pp-layers 0-30,31-61,62-92 --node-memory 512GiB --reserve-fraction 0.03 --json)";

constexpr int64_t kMostTokens = 32768;  // reserved for a sequence unless --tokens says more

struct Flags {
  std::string dir;
  PlanOptions options;
  std::string node_memory;
  std::string memory;
  std::string profile;
  std::string device = "cpu";
  std::optional<int64_t> tokens;
  const CLI::Option* layers_option = nullptr;
  std::optional<double> bandwidth;  // GB/s
  bool json = false;
};

bool has_tensors(const std::filesystem::path& dir) {
  return std::filesystem::exists(dir / "model.safetensors.index.json") || std::filesystem::exists(dir / "model.safetensors");
}

struct Sized {
  PlanModel model;
  int64_t context = 0;  // tokens
};

Sized read_model(const std::filesystem::path& dir) {
  if (has_tensors(dir)) {
    const Checkpoint checkpoint(dir);
    return {plan_model(checkpoint), checkpoint.config().max_context};
  }
  const std::shared_ptr<const ModelConfig> config = load_model_config(dir);
  return {plan_model(config), config->max_context};
}

ExitCode plan(const Flags& flags) {
  PlanOptions options = flags.options;
  if (!flags.node_memory.empty()) options.node_memory = parse_memory_list(flags.node_memory);
  if (!flags.memory.empty()) options.memory = flags.memory == "auto" ? available_memory() : parse_memory(flags.memory);
  if (flags.profile == "exact") options.profile = ops::Profile::exact;
  if (flags.profile == "bf16") options.profile = ops::Profile::bf16;
  options.gpu = flags.device == "cuda";
  if (flags.bandwidth) options.bandwidth = *flags.bandwidth * 1e9;
  if (flags.layers_option->count() > 0 && options.layers.empty()) {
    fail(ErrorKind::bad_input, "plan", "P01: empty layer specification");
  }
  const Sized sized = while_loading([&] { return read_model(flags.dir); });
  options.tokens = TokenCount(flags.tokens.value_or(std::min(kMostTokens, sized.context)));
  const Plan made = make_plan(sized.model, options);
  write_report(made, flags.json);
  return kExitSuccess;
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  PlanOptions& options = flags->options;
  CLI::App* sub = app.add_subcommand("plan", "What would be loaded where: stages, bytes, memory, boundaries");
  sub->footer(kExamples);
  sub->add_option("-m,--model", flags->dir, "Folder of the checkpoint")->required()->type_name("DIR");
  sub->add_option("--pp-size", options.stages, "Number of stages (default 1, or as --pp-layers says)")
      ->check(whole_number(1, 1U << 20U));
  flags->layers_option =
      sub->add_option("--pp-layers", options.layers, "Layers of each stage, as in 0-3,4-7 or 4+4; default: the best split");
  CLI::Option* node_memory = sub->add_option(
      "--node-memory", flags->node_memory, "Memory of each node, one value for all or a list, as in 512GiB; default: no limit");
  sub->add_option(
         "--memory", flags->memory,
         "Memory of one process that runs all stages, as in 24GiB, or auto: what generate uses here. Routed experts for "
         "which there is no room are read again when a token needs them")
      ->excludes(node_memory);
  sub->add_option("--reserve-fraction", options.reserve_fraction, "Share of the memory that stays free")
      ->check(CLI::Range(0.0, 0.5))
      ->capture_default_str();
  sub->add_option("--pp-max-sequences", options.sequences, "Sequences that the plan leaves room for")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--tokens", flags->tokens, "Tokens of each of those sequences; default: the model's context, at most 32768")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  sub->add_option("--prefill-chunk,--pp-prefill-chunk", options.prefill_chunk, "Prompt tokens of one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--profile", flags->profile, "Numbers: exact or bf16; default: exact below 1 GiB of weights, else bf16")
      ->check(CLI::IsMember({"exact", "bf16"}));
  sub->add_option("--device", flags->device, "What computes: cpu, or cuda (weights and workspace as a GPU holds them)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--bandwidth", flags->bandwidth, "GB/s of each node's memory, for the expected tokens/s")
      ->check([](const std::string& text) {
        double value = 0.0;
        const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0.0;
        return good ? std::string() : fmt::format("wanted a number above 0, found '{}'", text);
      });
  sub->add_flag("--json", flags->json, "The same as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return plan(*flags); }; });
}

}  // namespace weft
