// Ends a turn that the model left open, so that the conversation can go on from the state as it is (prompt_and_api.md 2.5).
//
// The engine stops at an end token (which it does not feed), when the message closes, or in the middle of anything. The
// next message may only follow a whole turn:
//
//     written  ... <|open|>response<|sep|>The ans            closers()  <|close|>response<|sep|><|close|>message<|sep|>EOM
//     written  ... <|close|>response<|sep|><|close|>message<|sep|>      EOM
//
// For output that was well formed up to the end, tokens and closers together are the tokens of the rendered turn.
#pragma once

#include <string>
#include <vector>

#include "text/output_parser.h"
#include "text/xtml_markers.h"

namespace weft {

class XtmlCloser {
 public:
  // `start` is where the prompt left the model. Keeps a reference to the tokenizer.
  XtmlCloser(const Tokenizer& tokenizer, ParserStart start);

  // A token of the turn in order; end tokens are ignored.
  void add(TokenId id);
  // What is missing until the turn is whole, the end token included.
  [[nodiscard]] std::vector<TokenId> closers() const;

 private:
  enum class Header { none, open, close };

  const Tokenizer& tokenizer_;
  XtmlMarkers markers_;
  std::vector<std::string> open_ = {"message"};  // tags, outermost first
  Header header_ = Header::none;
  std::string name_;           // of the header so far, attributes included
  bool saw_response_ = false;  // the turn has its response channel
  bool saw_tools_ = false;
};

}  // namespace weft
