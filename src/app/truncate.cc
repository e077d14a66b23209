// weft truncate: a copy of a checkpoint with its first layers only.
#include "model/truncate.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples = R"(Shards that are kept whole become hard links where the file system allows it.

Example:
  weft truncate -m models/k3-mini --layers 4 -o /tmp/k3-mini-4)";

struct Flags {
  TruncateOptions options;
  bool keep_lists = false;
  bool json = false;
};

ExitCode truncate(const Flags& flags) {
  TruncateOptions options = flags.options;
  options.filter_lists = !flags.keep_lists;
  const TruncateReport report = while_loading(
      [&] { return with_byte_progress([&](const auto& progress) { return truncate_checkpoint(options, progress); }); });
  write_report(report, flags.json);
  return kExitSuccess;
}

}  // namespace

void add_truncate(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("truncate", "Copy the first layers of a checkpoint");
  sub->footer(kExamples);
  sub->add_option("-m,--model", flags->options.model, "Folder of the checkpoint")->required()->type_name("DIR");
  sub->add_option("--layers", flags->options.layers, "Layers to keep")->check(whole_number(1, 1U << 20U))->required();
  sub->add_option("-o,--out", flags->options.out, "Folder to write; absent or empty")->required()->type_name("DIR");
  sub->add_flag("--keep-lists", flags->keep_lists, "Change num_hidden_layers alone and leave the layer lists as they are");
  sub->add_flag("--json", flags->json, "The report as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return truncate(*flags); }; });
}

}  // namespace weft
