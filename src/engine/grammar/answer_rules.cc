#include "engine/grammar/answer_rules.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/grammar/chatml_turn.h"
#include "engine/grammar/xtml_turn.h"

namespace weft::grammar {
namespace {

using Kind = JsonValue::Kind;

JsonValue boolean(bool value) {
  JsonValue made;
  made.kind = Kind::boolean;
  made.boolean = value;
  return made;
}

// A function without parameters takes no arguments.
JsonValue no_parameters() {
  JsonValue made;
  made.kind = Kind::object;
  made.members.push_back({"additionalProperties", boolean(false)});
  return made;
}

const std::string& place_of_format() {
  static const std::string place = "response_format.json_schema";
  return place;
}

CallableTool compile_tool(const TextTerms& text, ChatStyle style, const std::string& name, const JsonValue& parameters,
                          const std::string& place) {
  CallableTool tool{name, {}, kNothing};
  SchemaCompiler compiler(text, parameters, place);
  if (style == ChatStyle::xtml) {
    tool.arguments = compiler.arguments();
  } else {
    tool.object = compiler.object_json();
  }
  compiler.finish();
  return tool;
}

}  // namespace

std::optional<AnswerRules> AnswerRules::of(const ChatRequest& request, const std::shared_ptr<const Vocabulary>& vocabulary,
                                           std::vector<std::string>& notes) {
  AnswerRules rules;
  rules.vocabulary_ = vocabulary;
  rules.format_ = request.response_format;
  if (request.continue_final) {
    for (const std::string& part : request.messages.back().content) rules.written_ += part;
  }
  std::vector<std::string> about_tools;
  rules.add_tools(request, about_tools);
  const bool has_tools = !rules.tools_.empty();
  switch (request.tool_choice.kind) {
    case ToolChoice::Kind::automatic:
      rules.calls_ = has_tools ? Calls::allowed : Calls::none;
      // Free to call or not, the model is held to schemas only where a tool asks for it (prompt_and_api.md 8.3), and to names
      // where the choice lists them.
      if (!rules.strict_ && request.tool_choice.allowed.empty() && rules.format_.kind == ResponseFormat::Kind::text)
        return std::nullopt;
      if (!rules.strict_) std::ranges::for_each(rules.tools_, [](Tool& tool) { tool.parameters = boolean(true); });
      break;
    case ToolChoice::Kind::none: rules.calls_ = Calls::none; break;
    case ToolChoice::Kind::required: rules.calls_ = Calls::required; break;
    case ToolChoice::Kind::named: rules.calls_ = Calls::one; break;
  }
  notes.insert(notes.end(), about_tools.begin(), about_tools.end());
  if (rules.calls_ != Calls::none && !has_tools) {
    fail(ErrorKind::unsupported, "grammar", "tool_choice: wanted a declared function that may be called, found none");
  }
  if (rules.format_.kind == ResponseFormat::Kind::text && !has_tools) return std::nullopt;
  // Here, and not where the request is taken: other requests wait there.
  (void)rules.compile(ParserStart::start, false).tokens_to_end();
  return rules;
}

void AnswerRules::add_tools(const ChatRequest& request, std::vector<std::string>& notes) {
  const auto add = [&](const std::optional<JsonValue>& tools, const std::string& place) {
    for (size_t i = 0; tools && i < tools->items.size(); ++i) {
      const JsonValue& tool = tools->items[i];
      const JsonValue* function = tool.find("function");
      const bool wrapped = function != nullptr && function->is(Kind::object);
      const JsonValue& declared = wrapped ? *function : tool;
      const JsonValue* name = declared.find("name");
      if (name == nullptr || !name->is(Kind::string)) continue;  // a tool of another type than function
      const ToolChoice& choice = request.tool_choice;
      if (choice.kind == ToolChoice::Kind::named && name->text != choice.name) continue;
      if (!choice.allowed.empty() && std::ranges::find(choice.allowed, name->text) == choice.allowed.end()) continue;
      add_tool(declared, fmt::format("{}[{}]{}.parameters", place, i, wrapped ? ".function" : ""), notes);
    }
  };
  add(request.tools, "tools");
  for (const ChatMessage& message : request.messages) add(message.tools, fmt::format("messages[{}].tools", message.index));
}

void AnswerRules::add_tool(const JsonValue& declared, const std::string& place, std::vector<std::string>& notes) {
  const JsonValue* parameters = declared.find("parameters");
  const JsonValue* strict = declared.find("strict");
  Tool tool{declared.find("name")->text, no_parameters(), place};
  if (parameters != nullptr && !parameters->is(Kind::null)) tool.parameters = *parameters;
  const bool is_strict = strict != nullptr && strict->is(Kind::boolean) && strict->boolean;
  strict_ = strict_ || is_strict;
  if (!is_strict) {
    try {
      Terms terms(vocabulary_->trie());
      (void)compile_tool(TextTerms(terms), vocabulary_->style(), tool.name, tool.parameters, place);
    } catch (const Error& error) {
      notes.push_back(fmt::format("the arguments of tool '{}' are not held to its schema: {}", tool.name, error.what()));
      tool.parameters = boolean(true);
    }
  }
  // A later declaration of the same name takes the place of an earlier one.
  std::erase_if(tools_, [&](const Tool& other) { return other.name == tool.name; });
  tools_.push_back(std::move(tool));
}

Matcher AnswerRules::matcher(ParserStart start, int64_t budget) const {
  Matcher whole = compile(start, false);
  if (whole.tokens_to_end() <= budget) return whole;
  Matcher cut = compile(start, true);
  if (const int64_t needed = cut.tokens_to_end(); needed > budget) {
    fail(ErrorKind::bad_input, "max_tokens",
         "wanted at least the {} tokens of the shortest answer that the request allows, found {}", needed, budget);
  }
  return cut;
}

Matcher AnswerRules::compile(ParserStart start, bool cut_closers) const {
  auto terms = std::make_unique<Terms>(vocabulary_->trie());
  const TextTerms text(*terms);
  TurnRules rules;
  rules.calls = calls_;
  rules.start = start;
  rules.cut_closers = cut_closers;
  std::optional<SchemaCompiler> schema;
  if (format_.kind == ResponseFormat::Kind::json_object) rules.response = text.any_object();
  if (format_.kind == ResponseFormat::Kind::json_schema) {
    schema.emplace(text, format_.schema, place_of_format());
    rules.response = schema->json();
    schema->finish();
  }
  if (calls_ != Calls::none) {
    for (const Tool& tool : tools_)
      rules.tools.push_back(compile_tool(text, vocabulary_->style(), tool.name, tool.parameters, tool.place));
  }
  const bool is_xtml = vocabulary_->style() == ChatStyle::xtml;
  const Term turn = is_xtml ? xtml_turn(text, rules) : chatml_turn(text, rules);
  terms->seal();
  Matcher matcher(vocabulary_, {.terms = std::move(terms),
                                .start = turn,
                                .json_response = rules.response.has_value(),
                                .in_response = start == ParserStart::response || (!is_xtml && start == ParserStart::start)});
  if (start == ParserStart::response && !written_.empty()) matcher.accept_text(written_);
  return matcher;
}

}  // namespace weft::grammar
