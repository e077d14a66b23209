// One answer as plain text: no parser, no channels (the completions of prompt_and_api.md 6.6). Used as Turn is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "engine/model.h"
#include "engine/request.h"
#include "engine/stop_strings.h"
#include "engine/token_end.h"

namespace weft {

struct TextTurnOptions {
  ops::SamplingParams sampling;
  std::optional<int64_t> max_tokens;
  std::vector<ops::LogitBias> bias;
  std::vector<std::string> stop;  // end the text where it would hold one; not shown
  TokenEndOptions end;
  ControlText control = ControlText::none;  // what control tokens are written as
  std::optional<int64_t> top_logprobs;      // keep log probabilities, with so many of the most likely ids beside each
  bool prompt_logprobs = false;             // of the prompt's tokens too
};

// A token of the text, with where it begins.
struct TextToken {
  TokenId id = 0;
  std::optional<float> logprob;   // natural, raw logits; nothing: the first token of the prompt
  std::vector<ops::Sampled> top;  // most likely first
  size_t offset = 0;              // bytes of the generated text before it; of the prompt: 0
};

class TextTurn final : public TokenSink {
 public:
  // Keeps a reference to the model.
  TextTurn(const Model& model, TextTurnOptions options);

  [[nodiscard]] GenerateRequest request(std::vector<TokenId> ids);

  void constrain(SampleRequest& draw, int64_t tokens_left) override;
  void on_prompt_logits(int64_t first, TensorView logits) override;
  void on_top(std::span<const ops::Sampled> top) override { top_.assign(top.begin(), top.end()); }
  [[nodiscard]] bool on_token(const ops::Sampled& token) override;
  void on_end(const RequestReport& report) override;

  [[nodiscard]] bool over() const { return report_.has_value(); }
  [[nodiscard]] const RequestReport& report() const { return *report_; }  // once it is over
  // Since the last call.
  [[nodiscard]] std::string take_text() { return std::exchange(text_, {}); }
  // Of the text that was given: those of the prompt first, when they were asked for.
  [[nodiscard]] std::vector<TextToken> take_tokens();
  [[nodiscard]] const std::optional<std::string>& stop_string() const { return stops_.matched(); }
  [[nodiscard]] std::optional<TokenId> stop_id() const { return stop_id_; }

 private:
  const Model& model_;
  TextTurnOptions options_;
  TokenEnd end_;
  StopStrings stops_;
  Utf8Decoder decoder_;
  int64_t generated_ = 0;
  std::string text_;
  size_t decoded_ = 0;  // bytes of text that the decoder has given
  size_t shown_ = 0;    // of them, in text_ and what was taken
  std::vector<ops::Sampled> top_;
  std::vector<TextToken> prompt_;
  std::vector<TextToken> tokens_;
  std::optional<TokenId> stop_id_;
  std::optional<RequestReport> report_;
};

}  // namespace weft
