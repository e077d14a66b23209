// The `weft` program: flags in, results out. What it does is done by the libraries.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commit.h"
#include "app/terminal.h"
#include "base/closest.h"
#include "base/guard.h"
#include "base/mapping_guard.h"
#include "base/utf8.h"

namespace {

constexpr const char* kFooter = R"(Examples:
  weft generate -m models/k3-mini -p "What is 17 * 23? Answer with the number only." --temperature 0
  weft chat -m models/k3-mini
  weft serve -m models/k3-mini
  weft help exit-codes

Each subcommand has --help with examples. Results go to standard output, everything else to standard error.)";

int report(weft::ExitCode code, std::string_view message) {
  weft::write_note(fmt::format("error: {}", message));
  return code;
}

int report_interrupted(std::string_view message) {
  weft::write_note(fmt::format("interrupted: {}", message));
  return weft::kExitInterrupted;
}

// The subcommand that the arguments chose, as deep as they go.
const CLI::App& chosen(const CLI::App& app) {
  const CLI::App* found = &app;
  while (!found->get_subcommands().empty()) found = found->get_subcommands().front();
  return *found;
}

// Reading would take an empty value for an absent one. What may be empty is read as text.
void refuse_empty_values(const CLI::App& app) {
  const auto look = [](const CLI::App& part) {
    for (const CLI::Option* option : part.get_options()) {
      const std::vector<std::string> found = option->results();
      if (std::ranges::find(found, "") == found.end() || option->check_lname("pp-layers")) continue;
      weft::fail(weft::ErrorKind::bad_input, "command line", "{}: wanted a value, found an empty one", option->get_name());
    }
  };
  const CLI::App& sub = chosen(app);
  look(sub);
  for (const CLI::App* group : sub.get_subcommands([](const CLI::App* part) { return part->get_name().empty(); })) look(*group);
}

// Says once what a group of options is for, in the group's own words.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? text : text + "\n";
  }
};

// Numbers of hundreds of digits are told by their beginning: the reader of flags repeats them whole.
std::string with_short_numbers(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789.";
  std::string made;
  while (!text.empty()) {
    const size_t other = std::min(text.find_first_of(kDigits), text.size());
    made += text.substr(0, other);
    text.remove_prefix(other);
    const size_t digits = std::min(text.find_first_not_of(kDigits), text.size());
    made += weft::shortened(text.substr(0, digits));
    text.remove_prefix(digits);
  }
  return made;
}

// What was not understood, with the closest known name.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& sub = chosen(app);
  const std::vector<std::string> rest = app.remaining(true);
  if (rest.empty()) return with_short_numbers(error.what());
  const std::string word = rest.front().substr(0, rest.front().find('='));
  std::vector<std::string> known;
  if (word.starts_with('-')) {
    for (const CLI::Option* option : sub.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    for (const CLI::App* group : sub.get_subcommands([](const CLI::App* part) { return part->get_name().empty(); })) {
      for (const CLI::Option* option : group->get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      }
    }
  } else {
    for (const CLI::App* part : sub.get_subcommands([](const CLI::App* any) { return !any->get_name().empty(); })) {
      known.push_back(part->get_name());
    }
  }
  return fmt::format("unexpected argument '{}'{}", word, weft::closest_hint(word, known));
}

int run(int argc, char** argv) {
  weft::Command command;
  CLI::App app("Weft runs hybrid linear-attention language models.", "weft");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("weft {}", weft::kVersion));
  app.require_subcommand(1);
  weft::add_generate(app, command);
  weft::add_chat(app, command);
  weft::add_serve(app, command);
  weft::add_text(app, command);
  weft::add_eval(app, command);
  weft::add_inspect(app, command);
  weft::add_check(app, command);
  weft::add_plan(app, command);
  weft::add_trace(app, command);
  weft::add_bench(app, command);
  weft::add_synth(app, command);
  weft::add_truncate(app, command);
  weft::add_stage(app, command);
  weft::add_status(app, command);
  weft::add_doctor(app, command);
  weft::add_certs(app, command);
  weft::add_help(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      app.exit(error, text, text);
      weft::write_output(text.str());
      return weft::kExitSuccess;
    }
    return report(weft::kExitUsage,
                  fmt::format("[command line] {}; weft --help and weft SUBCOMMAND --help say more", explain(app, error)));
  }
  refuse_empty_values(app);
  return command.run();
}

}  // namespace

int main(int argc, char** argv) {
  weft::guard_mappings();
  try {
    return run(argc, argv);
  } catch (const weft::ExitError& error) {
    if (weft::interrupt_flag().load()) return report_interrupted(error.what());
    return report(error.code(), error.what());
  } catch (...) {
    const weft::Failure failure = weft::current_failure();
    if (weft::interrupt_flag().load()) return report_interrupted(failure.message);
    return report(weft::exit_code_of(failure.kind, false), failure.message);
  }
}
