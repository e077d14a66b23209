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
#include "engine/stop_strings.h"
#include "engine/token_end.h"
#include "text/chat.h"

namespace weft {

struct TurnOptions {
  ops::SamplingParams sampling;
  std::optional<int64_t> max_tokens;            // >= 1; absent, or beyond the context: what the context leaves
  const grammar::AnswerRules* rules = nullptr;  // of the form of the answer; read when the request is submitted
  std::vector<ops::LogitBias> bias;             // each id once, ascending
  std::vector<std::string> stop;                // end the answer where its content would hold one; not shown
  TokenEndOptions end;
  int64_t max_calls = 0;     // tool calls behind which the answer ends; 0: any number
  bool logprobs = false;     // keep those of tokens that are content
  int64_t top_logprobs = 0;  // most likely ids beside each of them
};

// A token whose text is part of the content.
struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0F;           // natural, raw logits
  std::vector<ops::Sampled> top;  // most likely first
};

struct TurnResult {
  ChatAnswer answer;
  RequestEnd end = RequestEnd::cancelled;
  RequestReport statistics;
  ParserCounters counters;
  bool thinking = true;  // the prompt let the model reason
  ops::SamplingParams sampling;
  std::vector<TokenId> ids;                // generated, markers and the end token included
  std::vector<float> logprobs;             // of the same ids (natural, raw logits)
  std::optional<std::string> stop_string;  // that ended it
  std::optional<TokenId> stop_id;          // likewise, of TokenEndOptions::ids
  std::vector<std::string> notes;          // what was not done exactly as asked
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
  void on_top(std::span<const ops::Sampled> top) override { top_.assign(top.begin(), top.end()); }
  [[nodiscard]] bool on_token(const ops::Sampled& token) override;
  void on_end(const RequestReport& report) override;

  [[nodiscard]] bool over() const { return report_.has_value(); }
  // Since the last call.
  [[nodiscard]] std::vector<ChatEvent> take_events();
  // With TurnOptions::logprobs: of the tokens whose content take_events() has given, since the last call.
  [[nodiscard]] std::vector<TokenLogprob> take_logprobs();
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
  struct ContentToken {
    TokenLogprob token;
    size_t offset;  // bytes of content before it
  };

  // Moves what the parser has made to events_.
  void pump();
  [[nodiscard]] bool was_cut_by_limit() const;  // a masked answer that ended in time because its limit was near
  void take_event(ChatEvent event);
  void give_content(std::string text, bool recovered);
  [[nodiscard]] int64_t generated() const { return static_cast<int64_t>(generated_.size()); }

  const Model& model_;
  TurnOptions options_;
  TokenEnd end_;
  StopStrings stops_;
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
  std::vector<ops::Sampled> top_;             // of the next token
  std::vector<ContentToken> content_tokens_;  // not yet given
  size_t content_read_ = 0;                   // bytes of content that the parser has given
  size_t content_shown_ = 0;                  // of them, in events
  std::vector<ChatEvent> events_;
  std::optional<ChatEvent> finish_;
  int64_t calls_ = 0;  // complete ones
  bool cut_ = false;   // by a stop string or max_calls: what follows is not part of the answer
  std::optional<TokenId> stop_id_;
  std::optional<PromptProgress> progress_;
  std::optional<RequestReport> report_;
};

}  // namespace weft
