// A chat request put together from the parts that a command line gives.
#pragma once

#include <optional>
#include <string>

#include "engine/sampling_choice.h"
#include "text/chat_request.h"

namespace weft {

struct PromptChoice {
  std::optional<std::string> prompt;    // the text of a user message, the last one
  std::optional<std::string> messages;  // JSON: an array of messages, or a chat request as the HTTP API takes it
  std::optional<std::string> system;  // the first message; a system or developer message that the request begins with gives way
  std::optional<std::string> tools;   // JSON: an array of tools
  std::string messages_place = "messages";  // where those came from, for errors
  std::string tools_place = "tools";
  std::optional<bool> thinking;
  std::optional<std::string> thinking_effort;  // low, high, max
};

struct RequestChoice {
  ChatRequest request;
  SamplingChoice sampling;            // what a whole request says
  std::optional<int64_t> max_tokens;  // likewise: max_completion_tokens, else max_tokens
};

// What the parts say wins over fields of a request in `messages`. Throws bad_input naming part or field; also when there is no
// message at all, unless `may_be_empty`. Fields of the request that are not carried out are in the request's notes.
[[nodiscard]] RequestChoice build_request(const PromptChoice& choice, bool may_be_empty = false);

}  // namespace weft
