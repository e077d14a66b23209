// Schemas of any form: an error of ours, or a grammar under which every answer that masks lead to is JSON and ends in time.
//
// The first byte seeds the choice of tokens and says which format it is, where the answer begins, whether the schema is that of
// the response or of the arguments of a call, and whether mostly few characters are chosen, so that names come again; the
// second is the token limit beyond the shortest answer; the rest is the schema. What was written is read by the output parser,
// as a client's answer is: the model may open a channel that the prompt opened already.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/grammar/answer_rules.h"
#include "text/chat.h"

#include "../text/toy_qwen.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

using weft::ChatFormat;

const ChatFormat& format_of(bool is_qwen) {
  static const ChatFormat xtml = ChatFormat::kimi(weft::make_kimi_tokenizer(weft::text_test::toy_files(400)));
  static const ChatFormat chatml =
      ChatFormat::qwen(weft::make_qwen_tokenizer(weft::text_test::toy_qwen_files()), weft::ChatTemplate{true, false, true});
  return is_qwen ? chatml : xtml;
}

weft::grammar::AnswerRules rules_of(const std::string& schema, bool as_arguments, bool is_qwen) {
  const auto made = [](const ChatFormat& format) {
    return std::make_shared<const weft::grammar::Vocabulary>(format.tokenizer(), format.style());
  };
  static const auto xtml = made(format_of(false));
  static const auto chatml = made(format_of(true));
  const auto& vocabulary = is_qwen ? chatml : xtml;
  weft::ChatRequest request = weft::parse_chat_request(R"({"messages": [{"role": "user", "content": ""}]})");
  const weft::JsonValue parsed = weft::parse_json_value(schema, "schema");
  if (as_arguments) {
    request.tools = weft::parse_json_value(R"([{"name": "f", "strict": true, "parameters": )" + schema + "}]", "tools");
    request.tool_choice.kind = weft::ToolChoice::Kind::required;
  } else {
    request.response_format.kind = weft::ResponseFormat::Kind::json_schema;
    request.response_format.schema = parsed;
  }
  std::vector<std::string> notes;
  return weft::grammar::AnswerRules::of(request, vocabulary, notes).value();
}

// The tokens are random ones of the masks. Nothing: the schema's shortest answer is too long to be drawn here.
std::optional<weft::ChatAnswer> draw(const weft::grammar::AnswerRules& rules, weft::ParserStart start, uint8_t seed,
                                     int64_t beyond, bool few, const ChatFormat& format) {
  const weft::Tokenizer& tokenizer = format.tokenizer();
  const int64_t shortest = rules.matcher(start, 1 << 20).tokens_to_end();
  if (shortest > 400) return std::nullopt;
  const int64_t budget = shortest + beyond;
  weft::grammar::Matcher matcher = rules.matcher(start, budget);
  weft::OutputParser parser = format.parser(weft::ParserOptions{.start = start});
  weft::text_test::Numbers numbers(seed);
  std::vector<uint32_t> words(static_cast<size_t>((tokenizer.vocab_size() + 31) / 32));
  for (int64_t left = budget; !parser.done(); --left) {
    require(left > 0);
    matcher.fill_mask(words, left);
    std::vector<weft::TokenId> ids;
    for (size_t id = 0; id < words.size() * 32; ++id) {
      if ((words[id / 32] >> (id % 32) & 1U) != 0) ids.push_back(static_cast<weft::TokenId>(id));
    }
    require(!ids.empty());
    if (few && numbers.below(8) != 0) {
      const auto is_few = [&](weft::TokenId token) {
        return !tokenizer.is_control(token) &&
               tokenizer.token_bytes(token).find_first_not_of("a\",:{}1") == std::string_view::npos;
      };
      std::vector<weft::TokenId> plain;
      std::ranges::copy_if(ids, std::back_inserter(plain), is_few);
      if (!plain.empty()) ids = plain;
    }
    const weft::TokenId id = ids[numbers.below(ids.size())];
    matcher.accept(id);
    parser.feed_token(id);
  }
  require(parser.counters().stray_markers == 0 && parser.counters().abandoned_calls == 0);
  weft::AnswerBuilder builder;
  for (const weft::ChatEvent& event : parser.take_events()) builder.add(event);
  return builder.answer();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3 || size > 4096) return 0;
  const auto start = static_cast<weft::ParserStart>(data[0] % 3);
  const bool as_arguments = data[0] / 3 % 2 == 1;
  constexpr weft::JsonRules kDeep{.max_depth = 4096};  // and no name twice
  try {
    const bool is_qwen = data[0] / 12 % 2 == 1;
    const auto rules = rules_of({reinterpret_cast<const char*>(data) + 2, size - 2}, as_arguments, is_qwen);
    const std::optional<weft::ChatAnswer> answer =
        draw(rules, start, data[0], data[1] % 64, data[0] / 6 % 2 == 1, format_of(is_qwen));
    if (!answer) return 0;
    require(as_arguments == !answer->tool_calls.empty());
    if (!as_arguments) (void)weft::parse_json_value(answer->content, "answer", kDeep);
    for (const weft::ToolCall& call : answer->tool_calls) (void)weft::parse_json_value(call.arguments, "answer", kDeep);
  } catch (const weft::Error& error) {
    // What is wrong with an answer is a fault of the grammar; anything else is one of the schema.
    require(!std::string_view(error.what()).starts_with("[answer]") && error.kind() != weft::ErrorKind::internal);
  }
  return 0;
}
