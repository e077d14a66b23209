// weft trace: logits and every layer's output, to a file.
#include "pipeline/trace.h"

#include <algorithm>
#include <charconv>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/plural.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(The file holds ids [T], logits [T, V], hidden [L+1, T, D] (the embedding, then each layer's output), mean_abs [L+1], for K3
trace.mean_abs [L, 6] and trace.final_mean_abs [3], and of each layer with a router what it chose: layers.N.experts,
layers.N.expert_weights [T, k] and layers.N.router_margin [T, 1].

weft check --against FILE compares a run with such a file. --routing FILE takes the experts of such a file instead of the
routers' choice, so that two runs differ by rounding only; the file that is written still says what the routers chose.

Examples:
  weft trace -m models/k3-mini --ids 3,14,15 --out trace.safetensors
  weft trace -m models/k3-mini --ids 3,14,15 --out trace.safetensors --pp-layers 0-5,6-11 --prefill-chunk 1 --reference
  weft trace -m models/k3-mini --ids 3,14,15 --out bf16.safetensors --profile bf16 --routing trace.safetensors)";

struct Flags {
  ModelFlags model;
  std::string ids;
  std::string routing;
  std::string out;
};

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view item = text.substr(begin, end - begin);
    begin = end + 1;
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    int32_t id = 0;
    const auto [at, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (item.empty() || error != std::errc() || at != item.data() + item.size()) {
      fail(ErrorKind::bad_input, "--ids", "item {}: wanted a token id, found '{}'", ids.size() + 1, item);
    }
    ids.push_back(id);
  }
  return ids;
}

ExitCode trace(const Flags& flags) {
  const std::vector<int32_t> ids = parse_ids(flags.ids);
  watch_interrupts();
  check_output_file(flags.out);
  const LoadedExecutor model = flags.model.load_executor();
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t context = model.checkpoint->config().max_context;
  if (count > context) {
    fail(ErrorKind::bad_input, "--ids", "wanted at most the context of {} tokens, found {}", context, count);
  }
  const Trace recorded = flags.routing.empty() ? Trace() : read_trace(flags.routing);
  TraceCollector collector(&interrupt_flag());
  const Trace made = run_trace(
      *model.executor, ids,
      {.chunk = flags.model.prefill_chunk, .routing = flags.routing.empty() ? nullptr : &recorded.routing}, collector);
  write_trace(flags.out, made, model.checkpoint->config().residual_block.has_value());
  write_note(fmt::format("{}, {}, profile {}: {}", counted(count, "token"), counted(model.executor->layer_count(), "layer"),
                         to_string(model.profile), flags.out));
  return kExitSuccess;
}

}  // namespace

void add_trace(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("trace", "Write logits and every layer's output for given ids");
  sub->footer(kExamples);
  flags->model.add(*sub);
  sub->add_option("--ids", flags->ids, "Token ids, with commas between them")->required()->type_name("IDS");
  sub->add_option("--out", flags->out, "File to write, .safetensors")->required()->type_name("FILE");
  sub->add_option("--routing", flags->routing, "Trace file whose experts are taken instead of the routers' choice")
      ->type_name("FILE");
  sub->callback([flags, &command] { command.run = [flags] { return trace(*flags); }; });
}

}  // namespace weft
