// weft inspect: what a checkpoint is.
#include "model/inspect.h"

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Reads config.json, the index and the headers; a checkpoint of any size takes seconds. What is wrong with values
(--deep, --verify) is listed, and the exit code is 4.

Examples:
  weft inspect -m models/k3-mini
  weft inspect -m models/k3-mini --verify --json)";

ExitCode run(InspectOptions options, bool json) {
  const Inspection found = with_byte_progress([&](const auto& progress) {
    options.progress = progress;
    return while_loading([&] { return inspect(options); });
  });
  write_report(found, json);
  return found.ok() ? kExitSuccess : kExitModel;
}

}  // namespace

void add_inspect(CLI::App& app, Command& command) {
  struct Flags {
    InspectOptions options;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  InspectOptions& options = flags->options;
  CLI::App* sub = app.add_subcommand("inspect", "What a checkpoint is: configuration, tensors, bytes, layers");
  sub->footer(kExamples);
  sub->add_option("-m,--model", options.model, "Folder of the checkpoint")->required()->type_name("DIR");
  sub->add_flag("--deep", options.deep, "Read the small tensors too: norms, biases, convolutions, A_log");
  sub->add_flag("--verify", options.verify, "Read every byte: floats and MXFP4 blocks finite, no scale byte 255");
  sub->add_flag("--allow-unknown-tensors", options.allow_unknown_tensors, "A note instead of an error for them");
  sub->add_flag("--rebuild-index", options.rebuild_index, "Go by the headers where the index disagrees");
  sub->add_option("--threads", options.threads, "Threads of --verify")->check(CLI::Range(1, 1024))->capture_default_str();
  sub->add_flag("--json", flags->json, "The same as JSON");
  sub->callback([flags, &command] { command.run = [flags] { return run(flags->options, flags->json); }; });
}

}  // namespace weft
