// What a request asks of the form of its answer: response_format, and the declared tools with tool_choice.
//
//     if (std::optional<AnswerRules> rules = AnswerRules::of(request)) {
//       Matcher matcher = rules->matcher(vocabulary, prompt.start, tokens_left);
//       ...                                   // matcher.fill_mask() before each draw
//     }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/matcher.h"
#include "engine/grammar/turn_rules.h"
#include "text/chat_request.h"

namespace weft::grammar {

class AnswerRules {
 public:
  // Nothing for a request whose answer may have any form. Notes in `notes` each tool whose arguments are not held to its
  // schema: one without `strict` whose schema asks for something that is not supported. Throws unsupported or bad_input, naming
  // keyword and place, for a schema of the response or of a strict tool that cannot be carried out.
  static std::optional<AnswerRules> of(const ChatRequest& request, const std::shared_ptr<const Vocabulary>& vocabulary,
                                       std::vector<std::string>& notes);

  // For one answer of at most `budget` tokens that begins at `start`. The markers behind the answer are given up before the
  // answer is. Throws bad_input when the shortest answer does not fit.
  [[nodiscard]] Matcher matcher(ParserStart start, int64_t budget) const;

 private:
  struct Tool {
    std::string name;
    JsonValue parameters;  // `true` where the schema is not carried out
    std::string place;
  };

  AnswerRules() = default;
  void add_tools(const ChatRequest& request, std::vector<std::string>& notes);
  void add_tool(const JsonValue& declared, const std::string& place, std::vector<std::string>& notes);
  [[nodiscard]] Matcher compile(ParserStart start, bool cut_closers) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  ResponseFormat format_;
  std::string written_;  // of the response, where the request continues it
  std::vector<Tool> tools_;
  Calls calls_ = Calls::none;
  bool strict_ = false;  // some tool is
};

}  // namespace weft::grammar
