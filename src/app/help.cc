// weft help: help on a subcommand, or on a topic.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"

namespace weft {
namespace {

ExitCode help(const CLI::App& root, const std::vector<std::string>& topic) {
  if (topic == std::vector<std::string>{"exit-codes"}) {
    for (const ExitCodeText& entry : kExitCodes) {
      write_output(fmt::format("{:>4}  {}\n", static_cast<int>(entry.code), entry.meaning));
    }
    return kExitSuccess;
  }
  const CLI::App* found = &root;
  std::string path;  // of the subcommands above `found`
  for (const std::string& name : topic) {
    const auto subcommands = found->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
    if (subcommands.empty()) {
      fail(ErrorKind::bad_input, "help", "wanted a subcommand or exit-codes, found '{}'", fmt::join(topic, " "));
    }
    path += (path.empty() ? "" : " ") + found->get_name();
    found = subcommands.front();
  }
  if (found == &root) {
    // Asked directly, it would give the help of the chosen subcommand, this one.
    write_output(root.get_formatter()->make_help(&root, root.get_name(), CLI::AppFormatMode::Normal));
    return kExitSuccess;
  }
  write_output(found->help(path));
  return kExitSuccess;
}

}  // namespace

void add_help(CLI::App& app, Command& command) {
  auto topic = std::make_shared<std::vector<std::string>>();
  CLI::App* sub = app.add_subcommand("help", "Help on a subcommand or on exit-codes");
  sub->footer("Examples:\n  weft help generate\n  weft help eval tasks\n  weft help exit-codes");
  sub->add_option("topic", *topic, "For example: generate, eval tasks, exit-codes");
  sub->callback([topic, &app, &command] { command.run = [topic, &app] { return help(app, *topic); }; });
}

}  // namespace weft
