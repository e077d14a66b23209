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

}  // namespace

LoadedExecutor ModelFlags::load_distributed() const { refuse("stages in other processes"); }

bench::Record measure_pipeline(const ModelOptions&, int64_t, int64_t, int64_t, int) { refuse("weft bench pipeline"); }

void add_stage(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("stage", "A pipeline worker (not in this build)");
  sub->allow_extras();
  sub->callback([&command] { command.run = []() -> ExitCode { refuse("weft stage"); }; });
}

}  // namespace weft
