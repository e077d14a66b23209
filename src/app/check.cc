// weft check: does a checkpoint hold a working model?
#include "pipeline/check.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "model/checkpoint.h"
#include "pipeline/compare.h"
#include "pipeline/layer_run.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Runs a probe of fixed ids: logits of the right shape and finite, layers finite (the first that is not is named), later
tokens change nothing before them, other chunks change nothing. Exit code 4 when a line fails.

With --against FILE, a trace of a reference run, this run is compared with it: every layer from the reference's input and with
the reference's experts, or with --whole-run the run as a whole with the reference's experts. Exit code 1 when they differ by
more than bf16 rounding explains.

Examples:
  weft check -m models/k3-mini
  weft trace -m models/k3-mini --profile exact --reference --ids 3,14,15,92,65,35 --out reference.safetensors
  weft check -m models/k3-mini --profile bf16 --against reference.safetensors)";

struct Flags {
  ModelFlags model;
  CheckOptions options;
  const CLI::Option* tokens_option = nullptr;
  std::string against;
  bool whole_run = false;
  bool json = false;
};

Trace run_like(const Trace& reference, const Flags& flags, const LoadedExecutor& model) {
  if (!flags.whole_run) {
    return run_layers(model.checkpoint, {model.threads, flags.model.options().backend, model.profile, &interrupt_flag()},
                      reference);
  }
  TraceCollector collector(&interrupt_flag());
  return run_trace(*model.executor, reference.ids, {flags.model.prefill_chunk, &reference.routing}, collector);
}

ExitCode compare(const Flags& flags) {
  watch_interrupts();
  const Trace reference = read_trace(flags.against);
  const LoadedExecutor model = flags.model.load_executor();
  const Comparison comparison = compare_traces(run_like(reference, flags, model), reference);
  if (flags.json) {
    write_json_output(comparison.to_json());
  } else {
    write_output(comparison.to_text());
  }
  return comparison.passed() ? kExitSuccess : kExitOther;
}

ExitCode check(const Flags& flags) {
  watch_interrupts();
  const LoadedExecutor model = flags.model.load_executor();
  CheckOptions options = flags.options;
  const int64_t context = model.checkpoint->config().max_context;
  if (!flags.tokens_option->empty() && options.tokens > context) {
    fail(ErrorKind::bad_input, "--tokens", "wanted at most the context of {} tokens, found {}", context, options.tokens);
  }
  options.tokens = std::min(options.tokens, context);
  options.cancelled = &interrupt_flag();
  options.chunk = flags.model.prefill_chunk;
  const std::vector<CheckLine> lines = check_model(*model.executor, options);
  bool passed = true;
  Json json{{"passed", true}, {"lines", Json::array()}};
  for (const CheckLine& line : lines) {
    passed = passed && line.passed;
    json["lines"].push_back({{"what", line.what}, {"passed", line.passed}, {"found", line.found}});
    if (!flags.json) write_output(fmt::format("{}  {}: {}\n", line.passed ? "ok  " : "FAIL", line.what, line.found));
  }
  json["passed"] = passed;
  if (flags.json) write_json_output(json);
  return passed ? kExitSuccess : kExitModel;
}

}  // namespace

void add_check(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("check", "Whether a checkpoint holds a working model");
  sub->footer(kExamples);
  flags->model.add(*sub);
  CLI::Option* tokens = sub->add_option("--tokens", flags->options.tokens, "Length of the probe, at most the model's context")
                            ->check(CLI::Range(int64_t{2}, int64_t{1} << 20))
                            ->capture_default_str();
  flags->tokens_option = tokens;
  CLI::Option* seed = sub->add_option("--seed", flags->options.seed, "Of the probe's ids")
                          ->check(whole_number(0, UINT64_MAX))
                          ->capture_default_str();
  CLI::Option* against = sub->add_option("--against", flags->against, "Compare with the run of this trace file")
                             ->type_name("FILE")
                             ->excludes(tokens)
                             ->excludes(seed);
  sub->add_flag("--whole-run", flags->whole_run, "With --against: the whole run instead of each layer on its own")
      ->needs(against);
  sub->add_flag("--json", flags->json, "The same as JSON");
  sub->callback(
      [flags, &command] { command.run = [flags] { return flags->against.empty() ? check(*flags) : compare(*flags); }; });
}

}  // namespace weft
