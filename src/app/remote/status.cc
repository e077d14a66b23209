// weft status: what the stages of a cluster do.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/remote/observer_flags.h"
#include "app/terminal.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Asks every stage, whether or not a coordinator is served, and prints a row for each. A stage that cannot be reached is a row with
the reason; the exit code is then 5, or 8 and 9 when a handshake or a certificate was refused.

Examples:
  weft status --distributed-config cluster.toml
  weft status --distributed-config cluster.toml --json)";

ExitCode status(const ObserverFlags& flags) {
  const ObserverOptions options = flags.options();
  const std::vector<StageObservation> seen = observe_stages(options);
  if (flags.json) {
    write_json_output(observations_json(options.cluster.name, seen));
  } else {
    write_output(observations_text(seen));
  }
  std::vector<ErrorKind> kinds;
  for (const StageObservation& one : seen) {
    if (one.failure) kinds.push_back(one.failure->kind);
  }
  const std::optional<ErrorKind> worst = worst_kind(kinds);
  return worst ? exit_code_of(*worst, false) : kExitSuccess;
}

}  // namespace

void add_status(CLI::App& app, Command& command) {
  auto flags = std::make_shared<ObserverFlags>();
  CLI::App* sub = app.add_subcommand("status", "What the stages of a cluster do: memory, time, bytes");
  sub->footer(kExamples);
  flags->add(*sub);
  sub->callback([flags, &command] { command.run = [flags] { return status(*flags); }; });
}

}  // namespace weft
