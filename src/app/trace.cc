// weft trace: logits and every layer's output, to a file.
#include "pipeline/trace.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(The file holds logits [T, V], hidden [L+1, T, D] (the embedding, then each layer's output), mean_abs [L+1] and, for K3,
trace.mean_abs [L, 6] and trace.final_mean_abs [3].

Examples:
  weft trace -m models/k3-mini --ids 3,14,15 --out trace.safetensors
  weft trace -m models/k3-mini --ids 3,14,15 --out trace.safetensors --pp-layers 0-5,6-11 --prefill-chunk 1 --reference)";

struct Flags {
  ModelFlags model;
  std::vector<int32_t> ids;
  std::string out;
};

ExitCode trace(const Flags& flags) {
  const LoadedExecutor model = flags.model.load_executor();
  TraceCollector collector;
  const Trace made = run_trace(*model.executor, flags.ids, flags.model.prefill_chunk, collector);
  write_trace(flags.out, made, model.checkpoint->config().residual_block.has_value());
  write_note(fmt::format("{} tokens, {} layers, profile {}: {}", flags.ids.size(), model.executor->layer_count(),
                         to_string(model.profile), flags.out));
  return kExitSuccess;
}

}  // namespace

void add_trace(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("trace", "Write logits and every layer's output for given ids");
  sub->footer(kExamples);
  flags->model.add(*sub);
  sub->add_option("--ids", flags->ids, "Token ids, with commas between them")->required()->delimiter(',')->type_name("IDS");
  sub->add_option("--out", flags->out, "File to write, .safetensors")->required()->type_name("FILE");
  sub->callback([flags, &command] { command.run = [flags] { return trace(*flags); }; });
}

}  // namespace weft
