// Schemas of any form: an error of ours, or a grammar under which every answer that masks lead to is JSON and ends in time.
//
// The first byte seeds the choice of tokens, the second is the token limit beyond the shortest answer; the rest is the schema.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/grammar/answer_rules.h"

#include "../text/toy_vocabulary.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

const weft::KimiTokenizer& tokenizer() {
  static const weft::KimiTokenizer made = weft::KimiTokenizer::from_files(weft::text_test::toy_files(400));
  return made;
}

std::optional<weft::grammar::AnswerRules> rules_of(std::string_view schema) {
  static const auto vocabulary = std::make_shared<const weft::grammar::Vocabulary>(tokenizer());
  weft::ChatRequest request = weft::parse_chat_request(R"({"messages": [{"role": "user", "content": ""}]})");
  request.response_format.kind = weft::ResponseFormat::Kind::json_schema;
  request.response_format.schema = weft::parse_json_value(schema, "schema");
  std::vector<std::string> notes;
  return weft::grammar::AnswerRules::of(request, vocabulary, notes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3 || size > 4096) return 0;
  try {
    const auto rules = rules_of({reinterpret_cast<const char*>(data) + 2, size - 2});
    const int64_t shortest = rules->matcher(weft::ParserStart::response, 1 << 20).tokens_to_end();
    if (shortest > 400) return 0;
    const int64_t budget = shortest + data[1] % 64;
    weft::grammar::Matcher matcher = rules->matcher(weft::ParserStart::response, budget);
    weft::text_test::Numbers numbers(data[0]);
    std::vector<uint32_t> words(static_cast<size_t>((tokenizer().vocab_size() + 31) / 32));
    std::string text;
    bool open = true;
    for (int64_t left = budget; open; --left) {
      require(left > 0);
      matcher.fill_mask(words, left);
      std::vector<weft::TokenId> ids;
      for (size_t id = 0; id < words.size() * 32; ++id) {
        if ((words[id / 32] >> (id % 32) & 1U) != 0) ids.push_back(static_cast<weft::TokenId>(id));
      }
      require(!ids.empty());
      const weft::TokenId id = ids[numbers.below(ids.size())];
      if (id == tokenizer().markers().close || id == tokenizer().markers().open) break;
      matcher.accept(id);
      text += tokenizer().token_bytes(id);
    }
    (void)weft::parse_json_value(text, "answer", {.duplicate_keys = true, .max_depth = 4096});
  } catch (const weft::Error& error) {
    // What is wrong with an answer is a fault of the grammar; anything else is one of the schema.
    require(!std::string_view(error.what()).starts_with("[answer]") && error.kind() != weft::ErrorKind::internal);
  }
  return 0;
}
