// What the subcommands share. Each subcommand is one file with one function, which adds itself to the command line and, when
// chosen, leaves what is to be done in Command::run.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "app/exit_codes.h"

namespace CLI {
class App;
}

namespace weft {

struct Command {
  std::function<ExitCode()> run;
};

void add_generate(CLI::App& app, Command& command);
void add_chat(CLI::App& app, Command& command);
void add_serve(CLI::App& app, Command& command);
void add_text(CLI::App& app, Command& command);
void add_eval(CLI::App& app, Command& command);
void add_inspect(CLI::App& app, Command& command);
void add_check(CLI::App& app, Command& command);
void add_plan(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_synth(CLI::App& app, Command& command);
void add_truncate(CLI::App& app, Command& command);
void add_trace(CLI::App& app, Command& command);
void add_stage(CLI::App& app, Command& command);
void add_status(CLI::App& app, Command& command);
void add_doctor(CLI::App& app, Command& command);
void add_certs(CLI::App& app, Command& command);
void add_help(CLI::App& app, Command& command);

// A failure with an exit code of its own.
class ExitError : public std::exception {
 public:
  ExitError(ExitCode code, std::string message) : code_(code), message_(std::move(message)) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ExitCode code_;
  std::string message_;
};

// Runs what opens a model: its failures get the exit codes of loading.
template <class Body>
auto while_loading(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw ExitError(exit_code_of(error.kind(), true), error.what());
  }
}

}  // namespace weft
