// The `weft` program: flags in, results out. What it does is done by the libraries.
#include <cstdio>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"
#include "base/guard.h"

namespace {

constexpr const char* kFooter = R"(Examples:
  weft generate -m models/k3-mini -p "What is 17 * 23? Answer with the number only." --temperature 0
  weft chat -m models/k3-mini
  weft help exit-codes

Each subcommand has --help with examples. Results go to standard output, everything else to standard error.)";

int report(weft::ExitCode code, std::string_view message) {
  weft::write_note(fmt::format("error: {}", message));
  return code;
}

int run(int argc, char** argv) {
  weft::Command command;
  CLI::App app("Weft runs hybrid linear-attention language models.", "weft");
  app.footer(kFooter);
  app.set_version_flag("--version", "weft 0.1.0");
  app.require_subcommand(1);
  weft::add_generate(app, command);
  weft::add_chat(app, command);
  weft::add_text(app, command);
  weft::add_eval(app, command);
  weft::add_help(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return report(weft::kExitUsage,
                  fmt::format("[command line] {}; weft --help and weft SUBCOMMAND --help say more", error.what()));
  }
  return command.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const weft::ExitError& error) {
    return report(error.code(), error.what());
  } catch (...) {
    const weft::Failure failure = weft::current_failure();
    return report(weft::exit_code_of(failure.kind, false), failure.message);
  }
}
