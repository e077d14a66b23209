// weft synth: a random checkpoint in the published layout.
#include "model/synth.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples = R"(Examples:
  The complete published K3 layout with holes instead of data: 96 shards that take little disk:
    weft synth --preset k3 --sparse -o /tmp/k3-sparse

  A small model with random weights:
    weft synth --preset k3 --layers 8 --set hidden_size=256 --set num_experts=16 -o /tmp/tiny)";

struct Flags {
  SynthOptions options;
  bool json = false;
};

ExitCode synth(const Flags& flags) {
  StatusLine status;
  const SynthReport report =
      synthesize(flags.options, [&](int64_t done, int64_t total) { status.progress("bytes", done, total); });
  status.clear();
  if (flags.json) {
    write_json_output(report.to_json());
  } else {
    write_output(report.to_text());
  }
  return kExitSuccess;
}

}  // namespace

void add_synth(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  SynthOptions& options = flags->options;
  CLI::App* sub = app.add_subcommand("synth", "Write a random checkpoint in the published layout");
  sub->footer(kExamples);
  sub->add_option("--preset", options.preset, "The published model to follow")->capture_default_str();
  sub->add_option("--layers", options.layers, "Number of layers; default: the preset's");
  sub->add_option("--set", options.set, "KEY=VALUE of the text configuration; may be repeated")->type_name("KEY=VALUE");
  sub->add_flag("--sparse", options.sparse, "Real headers, holes instead of data");
  sub->add_option("--seed", options.seed, "Of the weights")->capture_default_str();
  sub->add_option("-o,--out", options.out, "Folder to write; absent or empty")->required()->type_name("DIR");
  sub->add_flag("--json", flags->json, "The report as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return synth(*flags); }; });
}

}  // namespace weft
