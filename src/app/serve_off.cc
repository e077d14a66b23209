// What stands in for serve.cc in a build without the server.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "base/error.h"

namespace weft {

void add_serve(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("serve", "Serve a model over HTTP as the OpenAI API does (not in this build)");
  sub->allow_extras();
  sub->callback([&command] {
    command.run = []() -> ExitCode {
      fail(ErrorKind::unsupported, "weft serve",
           "wanted a build with the server (CMake option WEFT_SERVER), found one without");
    };
  });
}

}  // namespace weft
