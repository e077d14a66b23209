// weft generate: one answer to one request.
#include <chrono>

#include <CLI/CLI.hpp>

#include "app/answer_printer.h"
#include "app/command.h"
#include "app/commit.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/file.h"
#include "engine/answer_json.h"
#include "engine/chat_session.h"
#include "engine/run_record.h"

namespace weft {
namespace {

constexpr const char* kExamples = R"(Examples:
  The answer to a question, always the most likely token:
    weft generate -m models/k3-mini -p "What is 17 * 23? Answer with the number only." --temperature 0

  See how the model got there (the reasoning goes to standard error):
    weft generate -m models/k3-mini -p "What is 17 * 23?" --temperature 0 --show-reasoning

  Tools: a call comes as a line of JSON, {"name": "get_weather", "arguments": {"city": "Tokyo"}}:
    weft generate -m models/k3-mini -p "What is the weather in Tokyo?" --tools tools.json --temperature 0

  A whole conversation, with the result as JSON:
    weft generate -m models/k3-mini --messages conversation.json --json

  The model's layers on two stages, which are processes of this host; the answer is the same:
    weft generate -m models/k3-mini -p "Hello" --seed 1 --pp-layers 0-5,6-11

Content goes to standard output, everything else to standard error. Ctrl-C ends the answer and keeps what was
written (exit code 130); a second one ends the program at once.)";

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  PromptFlags prompt;
  EngineFlags engine;
  std::optional<std::string> text;
  std::string messages_file;
  std::string record_file;
  bool show_reasoning = false;
  bool json = false;
  bool stats = false;
};

RunFacts run_facts(const Flags& flags, const PromptChoice& choice, const Model& model, double seconds) {
  RunFacts facts;
  facts.commit = kBuildCommit;
  facts.command = command_line();
  facts.model_dir = flags.model.dir;
  facts.prompt = choice.prompt ? Json(*choice.prompt) : parse_json(choice.messages.value_or("null"), choice.messages_place);
  facts.topology = !flags.model.distributed()               ? "one process"
                   : flags.model.distributed_config.empty() ? "processes of one host"
                                                            : "nodes of a cluster file";
  facts.seconds = seconds;
  const std::optional<Failure> failure = guard([&] { facts.stages = stage_report(model.executor()); });
  if (failure) facts.stages_missing = failure->message;
  return facts;
}

ExitCode generate(const Flags& flags) {
  if (flags.model.dry_run) return flags.model.print_plan();
  if (flags.messages_file == "-" && flags.prompt.tools_file == "-")
    fail(ErrorKind::bad_input, "command line", "--messages and --tools: wanted one that reads standard input, found both");
  PromptChoice choice = flags.prompt.choice();
  choice.prompt = flags.text;
  if (!flags.messages_file.empty()) choice.messages = read_input(flags.messages_file);
  choice.messages_place = input_name(flags.messages_file);
  const RequestChoice request = build_request(choice);
  if (!flags.record_file.empty()) check_output_file(flags.record_file);
  watch_interrupts();
  const std::unique_ptr<Model> model = flags.model.load();

  AnswerPrinter printer(flags.show_reasoning);
  AnswerOptions options;
  options.turn.sampling = flags.sampling.choice.or_else(request.sampling).or_else(model->defaults()).resolve();
  options.turn.max_tokens = flags.sampling.max_tokens ? flags.sampling.max_tokens : request.max_tokens;
  options.cancelled = &interrupt_flag();
  options.on_prompt = [&](int64_t done, int64_t total) { printer.prompt_progress(done, total); };
  AnswerBuilder so_far;
  options.on_event = [&](const ChatEvent& event) {
    so_far.add(event);
    if (!flags.json || event.kind == ChatEvent::Kind::reasoning) printer.print(event);
  };
  EngineOptions engine_options = flags.model.engine_options(*model);
  flags.engine.apply(engine_options);
  engine_options.keep_states = !engine_options.folder.empty();  // else nothing follows
  Engine engine(model->executor(), engine_options);
  for (const std::string& note : engine.store().notes()) write_note("note: " + note);
  ChatSession session(*model, engine, request.request);
  const auto asked = std::chrono::steady_clock::now();
  const TurnResult result = [&] {
    try {
      return session.answer(options);
    } catch (...) {
      if (flags.json) write_json_output(failure_json(current_failure(), so_far.answer()));
      throw;
    }
  }();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
  printer.finish(false);
  if (flags.json) write_json_output(result_json(*model, result));
  for (const std::string& note : result.notes) write_note("note: " + note);
  write_note(summary_line(*model, result));
  if (flags.stats || !flags.record_file.empty()) {
    const RunFacts facts = run_facts(flags, choice, *model, seconds);
    if (flags.stats) write_error_stream(run_table(*model, result, facts));
    if (!flags.record_file.empty())
      write_file_atomic(flags.record_file,
                        run_record(*model, result, facts).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  if (result.end == RequestEnd::timeout) return kExitTimeout;
  return result.end == RequestEnd::cancelled ? kExitInterrupted : kExitSuccess;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("generate", "Answer one request");
  sub->footer(kExamples);
  flags->model.add(*sub);
  flags->model.add_distributed(*sub);
  CLI::Option_group* input = sub->add_option_group("Request", "One of these is required");
  input->add_option("-p,--prompt", flags->text, "Text of the user's message")->type_name("TEXT");
  input->add_option("--messages", flags->messages_file, "JSON: an array of messages, or a chat request ('-': standard input)")
      ->type_name("FILE");
  input->require_option(1);
  flags->prompt.add(*sub);
  flags->sampling.add(*sub);
  flags->engine.add(*sub);
  sub->add_flag("--show-reasoning", flags->show_reasoning, "Write the reasoning to standard error as it arrives");
  sub->add_flag("--json", flags->json,
                "One JSON object: content, reasoning_content, tool_calls, finish_reason, usage, weft; with error, "
                "and content so far, where the answer broke off");
  sub->add_flag("--stats", flags->stats, "Write rates, and memory, time and bytes of each stage, to standard error at the end");
  sub->add_option("--record", flags->record_file,
                  "Write the output, the split, and what each stage was measured to hold and do, as JSON")
      ->type_name("FILE");
  sub->callback([flags, &command] { command.run = [flags] { return generate(*flags); }; });
}

}  // namespace weft
