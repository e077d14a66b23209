// weft check: does a checkpoint hold a working model?
#include "pipeline/check.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Runs a probe of fixed ids: logits of the right shape and finite, layers finite (the first that is not is named), later
tokens change nothing before them, other chunks change nothing. Exit code 4 when a line fails.

Example:
  weft check -m models/k3-mini)";

struct Flags {
  ModelFlags model;
  CheckOptions options;
  const CLI::Option* tokens_option = nullptr;
  bool json = false;
};

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
  flags->tokens_option = sub->add_option("--tokens", flags->options.tokens, "Length of the probe, at most the model's context")
                             ->check(CLI::Range(int64_t{2}, int64_t{1} << 20))
                             ->capture_default_str();
  sub->add_option("--seed", flags->options.seed, "Of the probe's ids")
      ->check(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  sub->add_flag("--json", flags->json, "The same as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return check(*flags); }; });
}

}  // namespace weft
