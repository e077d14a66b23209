// One answer: the tokens of a request as reasoning, content and tool calls.
//
//     auto turn = std::make_shared<Turn>(model, prompt, options);
//     const RequestId id = engine.submit(turn->request(ids), turn);
//     while (!turn->over()) {
//       engine.step();
//       send(turn->take_events());
//     }
//     TurnResult result = turn->result();
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/grammar/answer_rules.h"
#include "engine/model.h"
#include "engine/request.h"
#include "text/chat.h"

namespace weft {

struct TurnOptions {
  ops::SamplingParams sampling;
  std::optional<int64_t> max_tokens;            // >= 1; absent, or beyond the context: what the context leaves
  const grammar::AnswerRules* rules = nullptr;  // of the form of the answer; read when the request is submitted
};

struct TurnResult {
  ChatAnswer answer;
  RequestEnd end = RequestEnd::cancelled;
  RequestReport statistics;
  ParserCounters counters;
  bool thinking = true;  // the prompt let the model reason
  ops::SamplingParams sampling;
  std::vector<TokenId> ids;        // generated, markers and the end token included
  std::vector<float> logprobs;     // of the same ids (natural, raw logits)
  std::vector<std::string> notes;  // what was not done exactly as asked
};

class Turn final : public TokenSink {
 public:
  // Keeps references to the model.
  Turn(const Model& model, const ChatPrompt& prompt, const TurnOptions& options);

  // What to submit; `ids` are all ids before the first draw.
  [[nodiscard]] GenerateRequest request(std::vector<TokenId> ids) const;

  // Throws bad_input when no answer under the rules is that short.
  void on_submit(int64_t budget) override;
  void constrain(SampleRequest& draw, int64_t tokens_left) override;
  void on_prompt(int64_t done, int64_t total) override;
  [[nodiscard]] bool on_token(const ops::Sampled& token) override;
  void on_end(const RequestReport& report) override;

  [[nodiscard]] bool over() const { return report_.has_value(); }
  // Since the last call.
  [[nodiscard]] std::vector<ChatEvent> take_events();
  struct PromptProgress {
    int64_t done = 0;
    int64_t total = 0;
  };
  [[nodiscard]] std::optional<PromptProgress> take_prompt_progress() { return std::exchange(progress_, std::nullopt); }

  // Once it is over. Throws what made the request fail.
  [[nodiscard]] TurnResult result();
  // What a next turn of the conversation has behind the prompt: the generated ids without an end token, and what closes the
  // turn.
  [[nodiscard]] std::vector<TokenId> whole_turn() const;

 private:
  const Model& model_;
  TurnOptions options_;
  ParserStart start_;
  bool thinking_;
  OutputParser parser_;
  AnswerBuilder builder_;
  std::vector<std::string> notes_;
  std::shared_ptr<grammar::Matcher> matcher_;       // of options_.rules
  std::shared_future<std::vector<uint32_t>> mask_;  // of the draw that is open
  std::shared_ptr<std::optional<Failure>> mask_failure_;
  std::vector<TokenId> generated_;
  std::vector<float> logprobs_;
  std::optional<PromptProgress> progress_;
  std::optional<RequestReport> report_;
};

}  // namespace weft
