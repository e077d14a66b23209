// weft eval: how good a model's answers are.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "base/plural.h"
#include "engine/perplexity.h"
#include "engine/tasks.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

constexpr const char* kEvalHelp = R"(Examples:
  weft eval tasks models/k3-mini/eval.json -m models/k3-mini
  weft eval ppl -m models/k3-mini --text README.md)";

constexpr const char* kTasksHelp =
    R"(The file holds {"prompts": [{"name", "kind", "messages", "tools", "options", "expect", ...}]}; models/k3-mini/eval.json
is one, and docs/cli.md describes it. Decoding is greedy. Prompts whose tokens differ from the file's reference are
listed with the margin (best minus second best logit) of the first differing token.

Example:
  weft eval tasks models/k3-mini/eval.json -m models/k3-mini --json)";

constexpr const char* kPplHelp =
    R"(The text is read in windows that do not overlap. Each window starts from an empty state, so its first token is not
scored. The result is the mean of -ln p over the scored tokens (nats) and its exponential.

Example:
  weft eval ppl -m models/k3-mini --text README.md)";

struct TasksFlags {
  ModelFlags model;
  std::string file;
  std::optional<int64_t> max_tokens;
  int64_t concurrent = 16;
  bool json = false;
};

ExitCode tasks(const TasksFlags& flags) {
  if (flags.model.dry_run) return flags.model.print_plan();
  const std::vector<Task> tasks = read_tasks(read_input(flags.file), flags.file);
  watch_interrupts();
  const std::unique_ptr<Model> model = flags.model.load();
  StatusLine status;
  AnswerAllOptions options;
  options.turn.max_tokens = flags.max_tokens;
  options.cancelled = &interrupt_flag();
  options.on_progress = [&](int64_t done) { status.progress("prompts", done, static_cast<int64_t>(tasks.size())); };
  EngineOptions engine_options = flags.model.engine_options(*model);
  engine_options.max_running = flags.concurrent;
  Engine engine(model->executor(), engine_options);
  const TasksReport report = run_tasks(*model, engine, tasks, options);
  status.clear();
  write_report(report, flags.json);
  return report.interrupted ? kExitInterrupted : kExitSuccess;
}

struct PplFlags {
  ModelFlags model;
  std::string text_file;
  std::string ids_file;
  std::optional<int64_t> window;
  int64_t chunk = 64;
  bool json = false;
};

std::vector<int32_t> read_ids(const std::string& file) {
  std::vector<int32_t> ids;
  const Json json = parse_json(read_input(file), file);
  const Json& list = json.is_object() && json.contains("ids") ? json["ids"] : json;
  if (!list.is_array()) fail(ErrorKind::bad_input, file, "wanted a JSON array of ids, found {}", list.type_name());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      fail(ErrorKind::bad_input, file, "wanted ids, found {}", id.dump());
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<int32_t> encode_file(const PplFlags& flags) {
  const ChatFormat format = while_loading([&] { return ChatFormat::load(flags.model.dir); });
  return format.tokenizer().encode(read_input(flags.text_file));
}

ExitCode ppl(const PplFlags& flags) {
  watch_interrupts();
  const std::vector<int32_t> ids = flags.ids_file.empty() ? encode_file(flags) : read_ids(flags.ids_file);
  const LoadedExecutor model = flags.model.load_executor();
  const int64_t context = model.checkpoint->config().max_context;
  StatusLine status;
  PerplexityOptions options;
  options.window = flags.window.value_or(context);
  if (options.window > context) {
    fail(ErrorKind::bad_input, "window", "wanted at most the context of {} tokens, found {}", context, options.window);
  }
  options.chunk = flags.chunk;
  options.cancelled = &interrupt_flag();
  options.on_progress = [&](int64_t done, int64_t total) { status.progress("tokens", done, total); };
  const PerplexityReport report = measure_perplexity(*model.executor, ids, options);
  status.clear();
  if (flags.json) {
    write_json_output(Json{{"nats_per_token", report.nats ? Json(*report.nats) : Json(nullptr)},
                           {"perplexity", report.perplexity ? Json(*report.perplexity) : Json(nullptr)},
                           {"tokens", report.tokens},
                           {"scored", report.scored},
                           {"windows", report.windows},
                           {"window", options.window},
                           {"profile", to_string(model.profile)},
                           {"interrupted", report.interrupted}});
  } else {
    std::string text = report.nats ? fmt::format("{:.4f} nats per token, perplexity {:.4f}", *report.nats, *report.perplexity)
                                   : "no token scored";
    text += fmt::format("; {}, {} scored, {} of {}", counted(report.tokens, "token"), with_commas(report.scored),
                        counted(report.windows, "window"), options.window);
    if (report.interrupted) text += fmt::format("; interrupted, {} were asked for", counted(std::ssize(ids), "token"));
    write_output(text + "\n");
  }
  return report.interrupted ? kExitInterrupted : kExitSuccess;
}

}  // namespace

void add_eval(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("eval", "Measure answers: tasks with known results, or the perplexity of a text");
  sub->require_subcommand(1);
  sub->footer(kEvalHelp);

  auto tasks_flags = std::make_shared<TasksFlags>();
  CLI::App* on_tasks = sub->add_subcommand("tasks", "Prompts with expected answers");
  on_tasks->footer(kTasksHelp);
  on_tasks->add_option("file", tasks_flags->file, "Prompts ('-': standard input)")->required()->type_name("FILE");
  tasks_flags->model.add(*on_tasks);
  tasks_flags->model.add_distributed(*on_tasks);
  on_tasks->add_option("-n,--max-tokens", tasks_flags->max_tokens, "Most tokens of an answer; default: what the context leaves")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  on_tasks->add_option("--concurrent", tasks_flags->concurrent, "Prompts answered side by side; changes no result")
      ->check(CLI::Range(int64_t{1}, int64_t{128}))
      ->capture_default_str();
  on_tasks->add_flag("--json", tasks_flags->json, R"({"passed": n, "total": m, "prompts": [...]})");
  on_tasks->callback([tasks_flags, &command] { command.run = [tasks_flags] { return tasks(*tasks_flags); }; });

  auto ppl_flags = std::make_shared<PplFlags>();
  CLI::App* on_ppl = sub->add_subcommand("ppl", "Perplexity of a text");
  on_ppl->footer(kPplHelp);
  ppl_flags->model.add(*on_ppl, false);
  CLI::Option_group* input = on_ppl->add_option_group("Input", "One of these is required");
  input->add_option("--text", ppl_flags->text_file, "UTF-8 text ('-': standard input)")->type_name("FILE");
  input->add_option("--ids", ppl_flags->ids_file, "JSON array of token ids ('-': standard input)")->type_name("FILE");
  input->require_option(1);
  on_ppl->add_option("--window", ppl_flags->window, "Tokens of a window; default: the model's context")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  on_ppl->add_option("--chunk", ppl_flags->chunk, "Tokens of one step; changes no result")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  on_ppl->add_flag("--json", ppl_flags->json, "The same as JSON");
  on_ppl->callback([ppl_flags, &command] { command.run = [ppl_flags] { return ppl(*ppl_flags); }; });
}

}  // namespace weft
