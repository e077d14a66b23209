// Log probabilities in the shapes of the API (prompt_and_api.md 6.6).
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "engine/turn.h"
#include "text/tokenizer.h"

namespace weft::api {

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
[[nodiscard]] Json chat_logprobs_json(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens);

// A log probability as JSON: finite, at least -9999.
[[nodiscard]] Json logprob_json(float logprob);
// A token's text; U+FFFD for what is no whole character.
[[nodiscard]] std::string token_text(const Tokenizer& tokenizer, TokenId id);

}  // namespace weft::api
