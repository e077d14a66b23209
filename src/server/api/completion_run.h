// /v1/completions: text behind text, without a template or a parser (prompt_and_api.md 6.6).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/text_turn.h"
#include "server/api/generation_fields.h"
#include "server/api/run.h"

namespace weft::api {

struct CompletionCall {
  GenerationFields generation;  // `choices` of each prompt
  std::vector<std::vector<TokenId>> prompts;
  bool echo = false;
  std::optional<int64_t> logprobs;  // so many of the most likely ids beside each token
  bool control_text = false;        // control tokens are written

  // Of choice i, which belongs to prompt i / generation.choices.
  [[nodiscard]] TextTurnOptions turn_options(int64_t choice) const;
};

// Throws ApiError.
[[nodiscard]] std::shared_ptr<const CompletionCall> read_completion_call(const JsonValue& root, const Service& service);

class CompletionRun final : public Run {
 public:
  CompletionRun(const Service& service, std::shared_ptr<http::Exchange> exchange, std::shared_ptr<const CompletionCall> call);

  void start();

 private:
  void began() override;
  void moved(int64_t choice) override;
  void ended(int64_t choice, const RequestReport& report) override;
  void completed() override;
  void failed(const ApiError& error) override;

  struct State {
    std::shared_ptr<TextTurn> turn;
    std::string text;               // of a whole answer
    std::vector<TextToken> tokens;  // not yet sent
    size_t offset = 0;              // bytes of text before the next token that is written to logprobs
    std::string finish;             // "stop" or "length"
  };

  [[nodiscard]] Json choice_json(int64_t choice, std::string text, bool over);
  [[nodiscard]] Json logprobs_json(State& state);
  [[nodiscard]] Json usage() const;
  void write(const Json& chunk);
  [[nodiscard]] Json body(std::vector<Json> choices) const;

  std::shared_ptr<const CompletionCall> call_;
  std::vector<State> states_;  // by choice
  std::string id_;
  int64_t created_;
  bool streaming_ = false;
};

}  // namespace weft::api
