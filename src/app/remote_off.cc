// What stands in for app/remote in a build without gRPC.
#include <CLI/CLI.hpp>

#include "app/bench_pipeline.h"
#include "app/command.h"
#include "app/flags.h"

namespace weft {
namespace {

[[noreturn]] void refuse(std::string_view what) {
  fail(ErrorKind::unsupported, what, "wanted a build with gRPC (CMake option WEFT_GRPC), found one without");
}

void add_refused(CLI::App& app, Command& command, const std::string& name, const std::string& what) {
  CLI::App* sub = app.add_subcommand(name, what + " (not in this build)");
  sub->allow_extras();
  sub->callback([&command, name] { command.run = [name]() -> ExitCode { refuse("weft " + name); }; });
}

}  // namespace

LoadedExecutor ModelFlags::load_distributed() const { refuse("stages in other processes"); }

bench::Record measure_pipeline(const ModelOptions&, int64_t, int64_t, int64_t, int) { refuse("weft bench pipeline"); }

std::optional<ExitCode> run_as_stage(const ModelFlags&, const std::string&) { refuse("--node-id"); }

Json stage_report(Executor& /*executor*/) { return Json::array(); }

void abandon_stages(Executor& /*executor*/, const std::string& /*reason*/) {}

void add_stage(CLI::App& app, Command& command) { add_refused(app, command, "stage", "A pipeline worker"); }
void add_status(CLI::App& app, Command& command) { add_refused(app, command, "status", "What the stages of a cluster do"); }
void add_doctor(CLI::App& app, Command& command) { add_refused(app, command, "doctor", "Whether a cluster can work"); }

}  // namespace weft
