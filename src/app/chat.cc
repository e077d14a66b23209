// weft chat: a conversation that keeps its state.
#include <CLI/CLI.hpp>

#include "app/answer_printer.h"
#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "engine/answer_json.h"
#include "engine/chat_session.h"

namespace weft {
namespace {

constexpr const char* kExamples =
    R"(Each line of the input is a message; the model answers, and remembers. Nothing that it has read is computed again.

Commands (a message that begins with a slash is written with two):
  /system TEXT   begin anew with another system message
  /reset         begin anew
  /result TEXT   the result of the next tool call of the last answer; after the last one the model goes on
  /exit          leave (so does the end of the input)

A message that cannot be taken (no UTF-8, no room in the context), or whose answer a lost stage ends, is an error; the
conversation goes on without it. When the input is no terminal, the exit code at the end is that of the last such error.

Ctrl-C ends an answer; at the prompt it leaves with exit code 130.

Examples:
  weft chat -m models/k3-mini
  weft chat -m models/k3-mini --session states --state-memory 1GiB
  printf 'What is the capital of Chile?\nAnd of Brazil?\n' | weft chat -m models/k3-mini --temperature 0)";

constexpr const char* kCommands =
    "commands: /system TEXT, /reset, /result TEXT, /exit; a message that begins with a slash: //...";

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  PromptFlags prompt;
  EngineFlags engine;
  bool show_reasoning = false;
};

class Conversation {
 public:
  Conversation(const Flags& flags, const Model& model, Engine& engine, PromptChoice prompt)
      : flags_(flags), model_(model), engine_(engine), prompt_(std::move(prompt)) {
    begin();
  }

  // False when the conversation is over. A line that is refused leaves the conversation as it was.
  bool take(const std::string& line) {
    const std::optional<std::string> system = prompt_.system;
    try {
      return act(line);
    } catch (const Error& error) {
      if (!is_survived(error.kind())) throw;
      write_note(fmt::format("error: {}", error.what()));
      write_note("note: the conversation goes on without that message; /reset begins anew");
      last_error_ = exit_code_of(error.kind(), false);
      prompt_.system = system;
      session_->take_back(round_begin_);
      open_calls_ = round_calls_;
      return true;
    }
  }

  // Of the last message that was refused or whose answer failed.
  [[nodiscard]] ExitCode last_error() const { return last_error_; }

 private:
  // The message's fault, or stages that are connected to again.
  static bool is_survived(ErrorKind kind) {
    return kind == ErrorKind::bad_input || kind == ErrorKind::stage_lost || kind == ErrorKind::stage_timeout;
  }

  bool act(const std::string& line) {
    if (line.starts_with("//")) {
      say(line.substr(1));
    } else if (line.starts_with('/')) {
      return run(line);
    } else if (!line.empty()) {
      say(line);
    }
    return true;
  }

  void begin() {
    const RequestChoice request = build_request(prompt_, true);
    sampling_ = flags_.sampling.choice.or_else(model_.defaults());
    static_cast<void>(sampling_.resolve());  // a value out of range is an error before the first message
    session_ = std::make_unique<ChatSession>(model_, engine_, request.request);
    begin_round({});
  }

  // What a refusal goes back to.
  void begin_round(std::vector<ToolCall> calls) {
    open_calls_ = std::move(calls);
    round_calls_ = open_calls_;
    round_begin_ = session_->messages().size();
  }

  bool run(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string rest = line.substr(std::min(space, line.size() - 1) + 1);
    if (command == "/exit") return false;
    if (command == "/reset") {
      begin();
    } else if (command == "/system") {
      prompt_.system = rest;
      begin();
    } else if (command == "/result") {
      give_result(rest);
    } else {
      write_note(kCommands);
    }
    return true;
  }

  void say(std::string text) {
    session_->add_user(std::move(text));
    answer();
  }

  void give_result(const std::string& text) {
    if (open_calls_.empty()) {
      write_note("note: no tool call waits for a result");
      return;
    }
    ChatMessage message;
    message.role = Role::tool;
    message.tool_call_id = open_calls_.front().id;
    message.tool = open_calls_.front().name;
    message.content.push_back(text);
    session_->add(std::move(message));
    open_calls_.erase(open_calls_.begin());
    if (open_calls_.empty()) answer();
  }

  void answer() {
    AnswerPrinter printer(flags_.show_reasoning || errors_are_terminal());
    AnswerOptions options;
    options.turn.sampling = sampling_.resolve();
    options.turn.max_tokens = flags_.sampling.max_tokens;
    options.cancelled = &interrupt_flag();
    options.on_prompt = [&](int64_t done, int64_t total) { printer.prompt_progress(done, total); };
    options.on_event = [&](const ChatEvent& event) { printer.print(event); };
    TurnResult result;
    const std::optional<Failure> failure = guard([&] { result = session_->answer(options); });
    printer.finish(true);
    if (failure) failure->raise();
    for (const std::string& note : result.notes) write_note("note: " + note);
    write_note(summary_line(model_, result));
    begin_round(result.answer.tool_calls);
    if (result.end == RequestEnd::cancelled) forget_interrupt();
  }

  const Flags& flags_;
  const Model& model_;
  Engine& engine_;
  PromptChoice prompt_;
  SamplingChoice sampling_;
  std::unique_ptr<ChatSession> session_;
  std::vector<ToolCall> open_calls_;   // that wait for a result
  std::vector<ToolCall> round_calls_;  // all of the last answer
  size_t round_begin_ = 0;             // messages up to the last answer
  ExitCode last_error_ = kExitSuccess;
};

ExitCode chat(const Flags& flags) {
  if (flags.model.dry_run) return flags.model.print_plan();
  if (flags.prompt.tools_file == "-")
    fail(ErrorKind::bad_input, "command line", "--tools: wanted a file, found standard input, which the conversation reads");
  const PromptChoice prompt = flags.prompt.choice();
  watch_interrupts();
  const std::unique_ptr<Model> model = flags.model.load();
  EngineOptions engine_options = flags.model.engine_options(*model);
  flags.engine.apply(engine_options);
  Engine engine(model->executor(), engine_options);
  for (const std::string& note : engine.store().notes()) write_note("note: " + note);
  Conversation conversation(flags, *model, engine, prompt);
  const bool interactive = input_is_terminal() && errors_are_terminal();
  for (;;) {
    if (interactive) write_error_stream("> ");
    const std::optional<std::string> line = read_line();
    if (!line) break;
    if (!conversation.take(*line)) break;
  }
  if (interactive) write_error_stream("\n");
  if (interrupt_flag().load()) return kExitInterrupted;
  return input_is_terminal() ? kExitSuccess : conversation.last_error();
}

}  // namespace

void add_chat(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("chat", "Talk with the model; it keeps its state");
  sub->footer(kExamples);
  flags->model.add(*sub);
  flags->model.add_distributed(*sub);
  flags->prompt.add(*sub);
  flags->sampling.add(*sub);
  flags->engine.add(*sub);
  sub->add_flag("--show-reasoning", flags->show_reasoning,
                "Write the reasoning to standard error, also when it is no terminal");
  sub->callback([flags, &command] { command.run = [flags] { return chat(*flags); }; });
}

}  // namespace weft
