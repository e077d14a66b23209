// Answers as JSON, in the shapes of the OpenAI API (prompt_and_api.md 3.9, 6.5) with Weft's own fields under `weft` (R21).
#pragma once

#include "base/guard.h"
#include "base/json.h"
#include "engine/turn.h"

namespace weft {

// {"role", "content" (null when empty beside calls), "reasoning_content", "tool_calls" (absent when there are none)}
[[nodiscard]] Json message_json(const ChatAnswer& answer, bool thinking);

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
[[nodiscard]] Json usage_json(const TurnResult& result);

// One tool call on one line, {"name": ..., "arguments": ...}: the arguments as the model wrote them, as a string when they are
// no JSON.
[[nodiscard]] std::string tool_call_line(const ToolCall& call);

// Weft's own fields of an answer, without the memory: of any thread that has the result.
[[nodiscard]] Json answer_facts(const Model& model, const TurnResult& result);

// What `weft generate --json` prints: the message's fields, "finish_reason" (null when interrupted), "usage", "weft".
[[nodiscard]] Json result_json(const Model& model, const TurnResult& result);

// Where in a pipeline an error arose, as its members "stage", "node" and "step" (null where none was under way).
void add_place(Json& error, const StagePlace& place);

// What it prints instead when the answer broke off: the message so far, "finish_reason": null, "error": {"kind", "message"}
// and, where a stage failed, its "stage", "node" and "step".
[[nodiscard]] Json failure_json(const Failure& failure, const ChatAnswer& so_far);

// "prompt 100 tokens at 512.0 tokens/s, generated 82 tokens at 40.1 tokens/s, ..."
[[nodiscard]] std::string summary_line(const Model& model, const TurnResult& result);

}  // namespace weft
