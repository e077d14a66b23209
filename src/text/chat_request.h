// A chat request as the prompt needs it (prompt_and_api.md 2, 6.4), read from the JSON of the OpenAI-compatible API.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"

namespace weft {

enum class Role : uint8_t { system, developer, user, assistant, tool };

struct RequestToolCall {
  std::string id;    // empty: none
  std::string name;  // never empty
  // At most one of the two; neither: no arguments (2.5).
  std::optional<std::string> arguments;  // JSON text as the model wrote it, or text that is no JSON
  std::optional<JsonValue> arguments_object;
};

struct ChatMessage {
  Role role = Role::user;
  int64_t index = 0;                        // place in the request, for messages of errors
  std::string name;                         // empty: none
  std::vector<std::string> content;         // text parts; each is a segment of its own
  std::optional<std::string> reasoning;     // assistant; nothing: the request has no field for it
  std::vector<RequestToolCall> tool_calls;  // assistant
  std::string tool_call_id;                 // tool; empty: none
  std::string tool;                         // tool; empty: none
  std::optional<JsonValue> tools;           // system or developer: a non-empty array that extends the tool set
};

struct ToolChoice {
  enum class Kind : uint8_t { automatic, none, required, named };
  Kind kind = Kind::automatic;
  std::string name;                  // named
  std::vector<std::string> allowed;  // declared tools that may be called; empty: all
};

struct ResponseFormat {
  enum class Kind : uint8_t { text, json_object, json_schema };
  Kind kind = Kind::text;
  JsonValue schema;  // json_schema
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::optional<JsonValue> tools;  // a non-empty array
  ToolChoice tool_choice;
  ResponseFormat response_format;
  bool thinking = true;  // as the request says, true where it says nothing; false beside a named tool choice
  std::optional<std::string> thinking_effort = "max";  // low, high, max; nothing: no effort message
  std::optional<bool> asked_thinking;                  // what the request says about the two
  bool asked_effort = false;
  bool add_generation_prompt = true;
  bool continue_final = false;     // the last message is an assistant turn to be continued (2.10)
  bool prefill_channel = true;     // the generation prompt opens the first channel (2.8)
  std::vector<std::string> notes;  // what was not done exactly as asked, for the response and the log

  // True when the model may not call: tool_choice none, or no tools at all (3.7).
  [[nodiscard]] bool calls_discarded() const;
};

// Reads the fields that decide the prompt; other top-level fields are left to their owners. Known: messages, tools,
// tool_choice, response_format, chat_template_kwargs {thinking, enable_thinking, thinking_effort}, thinking (boolean or
// {"type"}), thinking_effort, reasoning_effort, reasoning {effort}, add_generation_prompt, continue_final_message,
// prefill_channel; messages' `partial`. An object `options` may hold any of them except messages and tools. Unknown fields
// below the top level are noted, each name once with its count; null and [] count as absent.
//
// Throws Error(bad_input), naming message index and field, for wrong types, unknown roles, unknown part types, an unknown
// effort, tool choice or response format, a function without a name among tools, a tool choice that no declared tool satisfies,
// and partial mode where 2.10 forbids it; Error(unsupported) for images, which this program does not read.
[[nodiscard]] ChatRequest parse_chat_request(std::string_view json);
[[nodiscard]] ChatRequest parse_chat_request(const JsonValue& root);

// The fields of a chat request that decide how the next token is chosen and how many there are.
inline constexpr std::string_view kSamplingFields[] = {"temperature",
                                                       "top_p",
                                                       "top_k",
                                                       "min_p",
                                                       "repetition_penalty",
                                                       "frequency_penalty",
                                                       "presence_penalty",
                                                       "seed",
                                                       "max_tokens",
                                                       "max_completion_tokens"};

// Appends a note for each top-level field of a chat request that neither parse_chat_request nor `carried_out` knows: "is not
// carried out by `by`" for a field of the API whose value asks for something, "is not a known field" for any other. Fields that
// only name things (model, user, metadata, safety_identifier, prompt_cache_key) have no note.
void note_other_fields(const JsonValue& root, std::span<const std::string_view> carried_out, std::string_view by,
                       std::vector<std::string>& notes);

}  // namespace weft
