#include "engine/tasks.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "engine/answer_json.h"
#include "engine/next_logits.h"

namespace weft {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kLogitsChunk = 512;  // rows of one step

const JsonValue& member(const JsonValue& object, std::string_view key, Kind kind, std::string_view place) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || !value->is(kind)) {
    fail(ErrorKind::bad_input, place, "{}: wanted {}, found {}", key, describe(kind),
         value == nullptr ? "nothing" : describe(value->kind));
  }
  return *value;
}

const JsonValue* optional_member(const JsonValue& object, std::string_view key, Kind kind, std::string_view place) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || value->is(Kind::null)) return nullptr;
  return &member(object, key, kind, place);
}

void refuse_unknown(const JsonValue& object, std::initializer_list<std::string_view> known, std::string_view place) {
  for (const auto& [key, value] : object.members) {
    if (std::ranges::find(known, key) == known.end()) {
      fail(ErrorKind::bad_input, place, "wanted {}, found '{}'", fmt::join(known, ", "), key);
    }
  }
}

std::vector<TokenId> read_ids(const JsonValue& list, std::string_view key, std::string_view place) {
  const Json json = parse_json(write_json(list), place);
  std::vector<TokenId> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      fail(ErrorKind::bad_input, place, "{}: wanted token ids, found {}", key, id.dump());
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

// The errors of `body`, which do not know the file, named after `place`.
template <class Body>
auto within(std::string_view place, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    fail(error.kind(), place, "{}", error.what());
  }
}

Task read_task(const JsonValue& entry, std::string_view file, size_t index) {
  const std::string at = fmt::format("{}, prompt {}", file, index);
  if (!entry.is(Kind::object)) fail(ErrorKind::bad_input, at, "wanted an object, found {}", describe(entry.kind));
  Task task;
  task.name = member(entry, "name", Kind::string, at).text;
  const std::string place = fmt::format("{}, prompt '{}'", file, task.name);
  refuse_unknown(entry, {"name", "kind", "messages", "tools", "options", "thinking", "ids", "expect", "reference"}, place);
  if (const JsonValue* kind = optional_member(entry, "kind", Kind::string, place)) task.kind = kind->text;
  JsonValue request;
  request.kind = Kind::object;
  request.members.emplace_back("messages", member(entry, "messages", Kind::array, place));
  if (const JsonValue* tools = optional_member(entry, "tools", Kind::array, place))
    request.members.emplace_back("tools", *tools);
  if (const JsonValue* options = optional_member(entry, "options", Kind::object, place)) {
    request.members.emplace_back("options", *options);
  }
  task.request = within(place, [&] { return parse_chat_request(request); });
  if (const JsonValue* thinking = optional_member(entry, "thinking", Kind::boolean, place);
      thinking != nullptr && thinking->boolean != task.request.thinking) {
    fail(ErrorKind::bad_input, place, "thinking: wanted {} as the options say, found {}", task.request.thinking,
         thinking->boolean);
  }
  if (const JsonValue* ids = optional_member(entry, "ids", Kind::array, place)) task.ids = read_ids(*ids, "ids", place);
  task.expect = parse_json(write_json(member(entry, "expect", Kind::object, place)), place);
  static_cast<void>(within(place, [&] { return misses({}, task.expect); }));  // its form is checked on the way
  if (const JsonValue* reference = optional_member(entry, "reference", Kind::object, place)) {
    refuse_unknown(*reference, {"ids", "content", "good"}, place + ", reference");
    if (const JsonValue* ids = optional_member(*reference, "ids", Kind::array, place)) {
      task.reference_ids = read_ids(*ids, "reference.ids", place);
    }
    if (const JsonValue* good = optional_member(*reference, "good", Kind::boolean, place)) task.reference_good = good->boolean;
  }
  return task;
}

[[noreturn]] void bad_expectation(std::string_view key, std::string_view wanted, const Json& found) {
  fail(ErrorKind::bad_input, "expect", "{}: wanted {}, found {}", key, wanted, found.dump());
}

bool same_arguments(const std::string& text, const Json& wanted) {
  try {
    // Json keeps the order of keys, which does not matter here.
    return nlohmann::json(parse_json(text, "arguments")) == nlohmann::json(wanted);
  } catch (const Error&) {
    return false;  // what the model wrote is no JSON
  }
}

bool same_calls(const std::vector<ToolCall>& calls, const Json& wanted) {
  if (calls.size() != wanted.size()) return false;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].name != wanted[i]["name"].get_ref<const std::string&>() ||
        !same_arguments(calls[i].arguments, wanted[i]["arguments"]))
      return false;
  }
  return true;
}

bool defines_function(std::string_view content, const std::string& name) {
  const size_t block = content.find("```python\n");
  if (block == std::string_view::npos) return false;
  const std::string_view code = content.substr(block, content.find("\n```", block) - block);
  return code.find("\ndef " + name + "(") != std::string_view::npos;
}

Divergence divergence_of(Model& model, const std::vector<TokenId>& prompt, const std::vector<TokenId>& found,
                         const std::vector<TokenId>& wanted, size_t index) {
  Divergence made;
  made.index = static_cast<int64_t>(index);
  if (index < found.size()) made.found = found[index];
  if (index < wanted.size()) made.wanted = wanted[index];
  std::vector<TokenId> ids = prompt;
  ids.insert(ids.end(), wanted.begin(), wanted.begin() + static_cast<int64_t>(index));
  const std::vector<float> logits = next_logits(model.executor(), ids, kLogitsChunk);
  const auto best = std::ranges::max_element(logits);
  float second = -std::numeric_limits<float>::infinity();
  for (auto at = logits.begin(); at != logits.end(); ++at) {
    if (at != best) second = std::max(second, *at);
  }
  made.margin = *best - second;
  if (made.wanted >= 0 && static_cast<size_t>(made.wanted) < logits.size()) {
    made.to_reference = *best - logits[static_cast<size_t>(made.wanted)];
  }
  return made;
}

}  // namespace

std::vector<Task> read_tasks(std::string_view json, std::string_view place) {
  const JsonValue root = parse_json_value(json, place);
  if (!root.is(Kind::object)) fail(ErrorKind::bad_input, place, "wanted an object, found {}", describe(root.kind));
  refuse_unknown(root, {"about", "prompts"}, place);
  std::vector<Task> tasks;
  for (const JsonValue& entry : member(root, "prompts", Kind::array, place).items) {
    tasks.push_back(read_task(entry, place, tasks.size()));
  }
  if (tasks.empty()) fail(ErrorKind::bad_input, place, "prompts: wanted at least one, found none");
  return tasks;
}

std::vector<std::string> misses(const ChatAnswer& answer, const Json& expect) {
  std::vector<std::string> missed;
  for (const auto& [key, wanted] : expect.items()) {
    if (key == "content") {
      if (!wanted.is_string()) bad_expectation(key, "a string", wanted);
      if (answer.content != wanted.get_ref<const std::string&>()) missed.push_back(fmt::format("content {}", wanted.dump()));
    } else if (key == "reasoning") {
      if (wanted != "some" && wanted != "none") bad_expectation(key, "\"some\" or \"none\"", wanted);
      if (answer.reasoning.empty() != (wanted == "none")) missed.push_back(fmt::format("reasoning: {}", wanted.dump()));
    } else if (key == "tool_calls") {
      const bool well_formed = wanted.is_array() && std::ranges::all_of(wanted, [](const Json& call) {
                                 return call.is_object() && call.contains("name") && call.contains("arguments");
                               });
      if (!well_formed) bad_expectation(key, "calls with name and arguments", wanted);
      if (!same_calls(answer.tool_calls, wanted)) missed.push_back(fmt::format("tool calls {}", wanted.dump()));
    } else if (key == "contains") {
      if (!wanted.is_array()) bad_expectation(key, "a list of strings", wanted);
      for (const Json& part : wanted) {
        if (!part.is_string()) bad_expectation(key, "a list of strings", wanted);
        if (answer.content.find(part.get_ref<const std::string&>()) == std::string::npos) {
          missed.push_back(fmt::format("content that holds {}", part.dump()));
        }
      }
    } else if (key == "python") {
      if (!wanted.is_string()) bad_expectation(key, "a string", wanted);
      if (!defines_function(answer.content, wanted)) missed.push_back(fmt::format("a python block with {}", wanted.dump()));
    } else {
      bad_expectation(key, "content, reasoning, tool_calls, contains or python", wanted);
    }
  }
  if (!expect.contains("tool_calls") && !answer.tool_calls.empty()) missed.emplace_back("no tool calls");
  return missed;
}

TasksReport run_tasks(Model& model, Engine& engine, const std::vector<Task>& tasks, AnswerAllOptions options) {
  options.turn.sampling = {};
  options.turn.sampling.temperature = 0.0F;
  std::vector<ChatPrompt> prompts;
  std::vector<std::optional<grammar::AnswerRules>> rules;
  for (const Task& task : tasks) {
    ChatPrompt& prompt = prompts.emplace_back(model.format().render(task.request));
    rules.push_back(within(fmt::format("prompt '{}'", task.name),
                           [&] { return grammar::AnswerRules::of(task.request, model.vocabulary(), prompt.notes); }));
  }
  for (const auto& one : rules) options.rules.push_back(one ? &*one : nullptr);
  std::vector<TurnResult> turns = answer_all(model, engine, prompts, options);

  TasksReport report;
  for (size_t i = 0; i < tasks.size(); ++i) {
    TaskResult& result = report.prompts.emplace_back();
    result.name = tasks[i].name;
    result.kind = tasks[i].kind;
    result.turn = std::move(turns[i]);
    result.missed = misses(result.turn.answer, tasks[i].expect);
    if (result.turn.end == RequestEnd::cancelled) {
      report.interrupted = true;
      result.missed.emplace_back("an end of the answer: it was interrupted");
    }
    result.passed = result.missed.empty();
    result.reference_good = tasks[i].reference_good;
    if (tasks[i].ids) result.prompt_equal = *tasks[i].ids == prompts[i].ids;
    if (!tasks[i].reference_ids || result.turn.end == RequestEnd::cancelled) continue;
    std::vector<TokenId> wanted = *tasks[i].reference_ids;
    const std::vector<TokenId>& found = result.turn.ids;
    const bool only_end_token = wanted.size() == found.size() + 1 && model.format().tokenizer().is_stop(wanted.back());
    if (only_end_token && result.turn.end == RequestEnd::stop) wanted.pop_back();
    const auto [ours, theirs] = std::ranges::mismatch(found, wanted);
    if (ours == found.end() && theirs == wanted.end()) continue;
    result.differs = divergence_of(model, prompts[i].ids, found, wanted, static_cast<size_t>(ours - found.begin()));
  }
  return report;
}

int64_t TasksReport::passed() const { return std::ranges::count_if(prompts, &TaskResult::passed); }

Json TasksReport::to_json() const {
  Json made;
  made["passed"] = passed();
  made["total"] = prompts.size();
  made["reference_passed"] =
      std::ranges::count_if(prompts, [](const TaskResult& r) { return r.reference_good.value_or(false); });
  made["interrupted"] = interrupted;
  made["prompts"] = Json::array();
  for (const TaskResult& result : prompts) {
    Json& entry = made["prompts"].emplace_back();
    entry["name"] = result.name;
    entry["kind"] = result.kind;
    entry["passed"] = result.passed;
    entry["missed"] = result.missed;
    entry["message"] = message_json(result.turn.answer, true);
    entry["finish_reason"] = to_string(result.turn.answer.finish_reason);
    entry["usage"] = usage_json(result.turn);
    if (!result.turn.notes.empty()) entry["notes"] = result.turn.notes;
    if (result.prompt_equal) entry["prompt_ids_equal"] = *result.prompt_equal;
    if (result.reference_good) entry["reference_passed"] = *result.reference_good;
    if (!result.differs) continue;
    const Divergence& differs = *result.differs;
    entry["differs"] = {{"token", differs.index},
                        {"id", differs.found},
                        {"reference_id", differs.wanted},
                        {"margin", differs.margin},
                        {"margin_to_reference", differs.to_reference ? Json(*differs.to_reference) : Json(nullptr)}};
  }
  return made;
}

std::string TasksReport::to_text() const {
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;
  std::string text;
  int64_t different = 0;
  for (const TaskResult& result : prompts) {
    auto& [good, all] = kinds[result.kind];
    good += result.passed ? 1 : 0;
    ++all;
    for (const std::string& note : result.turn.notes) text += fmt::format("{}: note: {}\n", result.name, note);
    if (result.prompt_equal == false) text += fmt::format("{}: the rendered prompt differs from the file's ids\n", result.name);
    for (const std::string& missed : result.missed) text += fmt::format("{}: wanted {}\n", result.name, missed);
    if (!result.passed) {
      text += fmt::format("{}: found {}\n", result.name,
                          message_json(result.turn.answer, false).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    if (result.differs) {
      ++different;
      text +=
          fmt::format("{}: differs from the reference at generated token {}: {} instead of {}, margin {:.4f}\n", result.name,
                      result.differs->index, result.differs->found, result.differs->wanted, result.differs->margin);
    }
  }
  for (const auto& [kind, counts] : kinds) text += fmt::format("{:<12} {} of {}\n", kind, counts.first, counts.second);
  text += fmt::format("passed {} of {}; {} differ from the reference{}\n", passed(), prompts.size(), different,
                      interrupted ? "; interrupted" : "");
  return text;
}

}  // namespace weft
