#include "server/api/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace weft::api {
namespace {

constexpr double kLeast = -9999.0;

Json entry(const Tokenizer& tokenizer, TokenId id, float logprob) {
  Json made;
  made["token"] = token_text(tokenizer, id);
  made["logprob"] = logprob_json(logprob);
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(id)) bytes.push_back(static_cast<uint8_t>(byte));
  made["bytes"] = std::move(bytes);
  return made;
}

}  // namespace

Json logprob_json(float logprob) { return std::isfinite(logprob) ? std::max(static_cast<double>(logprob), kLeast) : kLeast; }

std::string token_text(const Tokenizer& tokenizer, TokenId id) { return to_valid_utf8(tokenizer.token_bytes(id)); }

Json chat_logprobs_json(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens) {
  Json content = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json made = entry(tokenizer, token.id, token.logprob);
    Json top = Json::array();
    for (const ops::Sampled& other : token.top) top.push_back(entry(tokenizer, other.id, other.logprob));
    made["top_logprobs"] = std::move(top);
    content.push_back(std::move(made));
  }
  Json made;
  made["content"] = std::move(content);
  made["refusal"] = nullptr;
  return made;
}

}  // namespace weft::api
