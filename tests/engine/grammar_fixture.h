// What the tests of engine/grammar share.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "engine/grammar/answer_rules.h"
#include "text/chat.h"
#include "text/toy_qwen.h"

namespace weft::engine_test {

inline const ChatFormat& mini_format() {
  static const ChatFormat format = ChatFormat::load(std::filesystem::path(WEFT_SOURCE_DIR) / "models/k3-mini");
  return format;
}

inline std::shared_ptr<const grammar::Vocabulary> mini_vocabulary() {
  static const auto vocabulary = std::make_shared<const grammar::Vocabulary>(mini_format().tokenizer(), mini_format().style());
  return vocabulary;
}

// A small vocabulary of Qwen, and ChatML. `thinking`: the prompt opens the reasoning.
inline ChatFormat make_qwen_format(bool thinking) {
  return ChatFormat::qwen(make_qwen_tokenizer(text_test::toy_qwen_files()),
                          ChatTemplate{.opens_think = thinking, .can_turn_off = false, .keeps_reasoning = thinking});
}
inline const ChatFormat& qwen_format() {
  static const ChatFormat format = make_qwen_format(true);
  return format;
}
inline std::shared_ptr<const grammar::Vocabulary> qwen_vocabulary() {
  static const auto vocabulary = std::make_shared<const grammar::Vocabulary>(qwen_format().tokenizer(), qwen_format().style());
  return vocabulary;
}

inline const Json& schema_cases() {
  static const Json cases = read_json_file(std::filesystem::path(WEFT_SOURCE_DIR) / "tests/fixtures/grammar/schemas.json");
  return cases;
}

// A schema's grammar alone.
struct Compiled {
  std::unique_ptr<grammar::Terms> terms;
  grammar::Term start = grammar::kNothing;

  [[nodiscard]] bool accepts(std::string_view text) const { return terms->nullable(terms->after(start, text)); }
};

inline Compiled compile_schema(const std::string& schema) {
  const JsonValue root = parse_json_value(schema, "schema");
  Compiled made;
  made.terms = std::make_unique<grammar::Terms>(mini_vocabulary()->trie());
  const grammar::TextTerms text(*made.terms);
  grammar::SchemaCompiler compiler(text, root, "schema");
  made.start = compiler.json();
  compiler.finish();
  made.terms->seal();
  return made;
}

// A request for the answer to one message, with more fields.
inline ChatRequest request_with(const std::string& fields) {
  return parse_chat_request(R"({"messages": [{"role": "user", "content": "Go"}], )" + fields + "}");
}

inline grammar::AnswerRules rules_of(const ChatRequest& request,
                                     const std::shared_ptr<const grammar::Vocabulary>& vocabulary = mini_vocabulary()) {
  std::vector<std::string> notes;
  return grammar::AnswerRules::of(request, vocabulary, notes).value();
}

inline std::vector<TokenId> allowed_ids(const std::vector<uint32_t>& words) {
  std::vector<TokenId> ids;
  for (size_t id = 0; id < words.size() * 32; ++id) {
    if ((words[id / 32] >> (id % 32) & 1U) != 0) ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

}  // namespace weft::engine_test
