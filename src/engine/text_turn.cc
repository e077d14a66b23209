#include "engine/text_turn.h"

#include <utility>

namespace weft {

TextTurn::TextTurn(const Model& model, TextTurnOptions options)
    : model_(model), options_(std::move(options)), end_(model.format().tokenizer(), options_.end), stops_(options_.stop) {}

GenerateRequest TextTurn::request(std::vector<TokenId> ids) {
  GenerateRequest request;
  request.ids = std::move(ids);
  request.max_tokens = options_.max_tokens;
  request.sampling = options_.sampling;
  request.never_penalised = model_.control_ids();
  request.bias = options_.bias;
  request.top = options_.top_logprobs.value_or(0);
  request.prompt_logits = options_.prompt_logprobs;
  if (options_.prompt_logprobs) {
    for (const TokenId id : request.ids) prompt_.push_back({id, std::nullopt, {}, 0});
  }
  return request;
}

void TextTurn::constrain(SampleRequest& draw, int64_t tokens_left) {
  static_cast<void>(tokens_left);
  draw.allowed = model_.valid_ids();
  end_.restrict(draw.allowed, generated_);
}

void TextTurn::on_prompt_logits(int64_t first, TensorView logits) {
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  for (int64_t r = 0; r < logits.shape[0]; ++r) {
    const auto next = static_cast<size_t>(first + r + 1);
    if (next >= prompt_.size()) return;
    const std::span<const float> row = logits.as<float>().subspan(static_cast<size_t>(r) * vocab, vocab);
    prompt_[next].logprob = ops::log_probability(row, prompt_[next].id);
    prompt_[next].top = ops::most_likely(row, options_.top_logprobs.value_or(0));
  }
}

bool TextTurn::on_token(const ops::Sampled& token) {
  ++generated_;
  const Tokenizer& tokenizer = model_.format().tokenizer();
  if (end_.asked(token.id, generated_)) {
    stop_id_ = token.id;
    return true;
  }
  const bool ends = tokenizer.is_stop(token.id);
  if (ends && end_.may_end(generated_)) return true;
  if (options_.top_logprobs) tokens_.push_back({token.id, token.logprob, std::exchange(top_, {}), decoded_});
  std::string decoded;
  const TokenId id = token.id;
  decoder_.feed(tokenizer.decode_bytes({&id, 1}, options_.control), decoded);
  decoded_ += decoded.size();
  const size_t before = text_.size();
  const bool stops = stops_.feed(decoded, text_);
  shown_ += text_.size() - before;
  return stops;
}

void TextTurn::on_end(const RequestReport& report) {
  report_ = report;
  if (stops_.matched()) return;
  std::string decoded;
  decoder_.flush(decoded);
  const size_t before = text_.size();
  if (!stops_.feed(decoded, text_)) stops_.flush(text_);
  shown_ += text_.size() - before;
}

std::vector<TextToken> TextTurn::take_tokens() {
  std::vector<TextToken> given = std::exchange(prompt_, {});
  size_t count = 0;
  while (count < tokens_.size() && (tokens_[count].offset < shown_ || (over() && !stops_.matched()))) {
    given.push_back(std::move(tokens_[count++]));
  }
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<int64_t>(count));
  return given;
}

}  // namespace weft
