// Answers drawn at random under masks.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "text/toy_vocabulary.h"

#include "grammar_fixture.h"

namespace weft::engine_test {

struct Drawn {
  std::vector<TokenId> ids;
  ChatAnswer answer;
  ParserCounters counters;
  bool complete = false;
};

struct Walk {
  uint64_t seed = 0;
  // Most tokens have no other characters than these, where the mask has such: texts that alike ones are met again in, names
  // that come twice among them. Empty: any.
  std::string_view alphabet = "";
};

// Each token at random, a third of them from those that lead to the end soon.
inline Drawn draw(grammar::Matcher matcher, ParserStart start, int64_t budget, const Walk& walk,
                  const ChatFormat& format = mini_format()) {
  text_test::Numbers numbers(walk.seed);
  const Tokenizer& tokenizer = format.tokenizer();
  OutputParser parser = format.parser(ParserOptions{.start = start});
  AnswerBuilder builder;
  Drawn drawn;
  std::vector<uint32_t> words(static_cast<size_t>((tokenizer.vocab_size() + 31) / 32));
  while (!parser.done() && static_cast<int64_t>(drawn.ids.size()) < budget) {
    const int64_t left = budget - static_cast<int64_t>(drawn.ids.size());
    const bool homeward = numbers.below(3) == 0;
    matcher.fill_mask(words, homeward ? std::min(left, matcher.tokens_to_end() + 3) : left);
    std::vector<TokenId> ids = allowed_ids(words);
    if (!walk.alphabet.empty() && numbers.below(8) != 0) {
      std::vector<TokenId> plain;
      std::ranges::copy_if(ids, std::back_inserter(plain), [&](TokenId id) {
        return !tokenizer.is_control(id) &&
               tokenizer.token_bytes(id).find_first_not_of(walk.alphabet) == std::string_view::npos;
      });
      if (!plain.empty()) ids = plain;
    }
    const TokenId id = ids[numbers.below(ids.size())];
    matcher.accept(id);
    parser.feed_token(id);
    drawn.ids.push_back(id);
  }
  drawn.complete = parser.done();
  parser.finish(drawn.complete ? EndReason::stop : EndReason::length);
  for (const ChatEvent& event : parser.take_events()) builder.add(event);
  drawn.answer = builder.answer();
  drawn.counters = parser.counters();
  return drawn;
}

}  // namespace weft::engine_test
