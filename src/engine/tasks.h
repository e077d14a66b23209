// `weft eval tasks`: prompts with expected answers, decoded greedily.
//
// The file is an object with `about` (a text, optional) and `prompts`, a list of
//     {"name", "kind", "messages", "tools" (or null), "options": fields of a chat request,
//      "thinking":  what the options say about it, true where they say nothing,                   (optional)
//      "ids":       the rendered prompt,                                                          (optional)
//      "expect":    {"content": equal to the answer's, "tool_calls": [{"name", "arguments"}] equal as JSON values, in order,
//                    "reasoning": "some" | "none", "contains": texts that the content holds,
//                    "python": a function that a ```python block of the content defines},         (each optional)
//      "reference": {"ids", "content", "good"}: what another program generated}                   (optional)
// Without `tool_calls` an answer must have none. Any other key is an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/answer_all.h"

namespace weft {

struct Task {
  std::string name;
  std::string kind;
  ChatRequest request;
  std::optional<std::vector<TokenId>> ids;
  Json expect;
  std::optional<std::vector<TokenId>> reference_ids;
  std::optional<bool> reference_good;
};

// Throws bad_input naming prompt and field.
[[nodiscard]] std::vector<Task> read_tasks(std::string_view json, std::string_view place);

// What an answer misses of `expect`, one text each; empty: it meets it. Throws bad_input for an unknown kind of expectation.
[[nodiscard]] std::vector<std::string> misses(const ChatAnswer& answer, const Json& expect);

// Where a generation leaves another one.
struct Divergence {
  int64_t index = 0;                  // of the first generated token that differs
  TokenId found = -1;                 // -1: nothing was generated there
  TokenId wanted = -1;                // likewise of the reference
  float margin = 0.0F;                // best logit minus the second best, at that place
  std::optional<float> to_reference;  // best logit minus that of the reference's token
};

struct TaskResult {
  std::string name;
  std::string kind;
  bool passed = false;
  std::vector<std::string> missed;
  TurnResult turn;
  std::optional<bool> prompt_equal;   // our rendering against the file's ids
  std::optional<Divergence> differs;  // from the reference's ids
  std::optional<bool> reference_good;
};

struct TasksReport {
  std::vector<TaskResult> prompts;
  bool interrupted = false;  // prompts not finished count as missed

  [[nodiscard]] int64_t passed() const;
  [[nodiscard]] Json to_json() const;  // {"passed", "total", "prompts": [...], ...}
  [[nodiscard]] std::string to_text() const;
};

// Answers are held to response_format and to the declared tools, as those of `weft generate` are; a schema that is refused is
// an error that names the prompt. An end token that the reference generated behind the closed message, where generation stops
// here (3.9), is no difference.
[[nodiscard]] TasksReport run_tasks(Model& model, Engine& engine, const std::vector<Task>& tasks, AnswerAllOptions options);

}  // namespace weft
