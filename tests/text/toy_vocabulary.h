// Vocabularies made on the spot, for tests, fuzzers and benchmarks: a tiktoken.model in memory with the control tokens of K3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "text/kimi_tokenizer.h"

namespace weft::text_test {

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// A reproducible stream of numbers below a bound.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % bound;
  }

 private:
  uint64_t state_;
};

// The 256 single bytes, then tokens that each join two earlier ones, as BPE training would leave them: lower-case letters, a
// share of them with a leading space. At most 16 bytes each.
inline std::vector<std::string> toy_tokens(size_t count) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  Numbers numbers(1);
  std::vector<std::string> words;
  for (char c = 'a'; c <= 'z'; ++c) words.emplace_back(1, c);
  std::vector<std::string> spaced{" "};
  std::unordered_set<std::string> seen(tokens.begin(), tokens.end());
  while (tokens.size() < count) {
    const bool with_space = numbers.below(2) == 0;
    const auto& heads = with_space ? spaced : words;
    // Short heads are likelier, as frequent pairs are.
    std::string token =
        heads[numbers.below(1 + numbers.below(heads.size()))] + words[numbers.below(1 + numbers.below(words.size()))];
    if (token.size() > 16 || !seen.insert(token).second) continue;
    (with_space ? spaced : words).push_back(token);
    tokens.push_back(std::move(token));
  }
  tokens.resize(count);
  return tokens;
}

inline std::string model_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) file += fmt::format("{} {}\n", base64(tokens[i]), i);
  return file;
}

// tokenizer_config.json that names the control tokens of K3 directly above `ranks`.
inline std::string config_file(size_t ranks) {
  std::string entries;
  const auto name = [&](size_t offset, std::string_view content, bool special) {
    entries += fmt::format(R"({}"{}": {{"content": "{}", "special": {}}})", entries.empty() ? "" : ", ", ranks + offset,
                           content, special);
  };
  name(0, "[BOS]", true);
  name(1, "[EOS]", true);
  name(2, "<|end_of_msg|>", true);
  name(3, "<|open|>", false);
  name(4, "<|close|>", false);
  name(5, "<|sep|>", false);
  return fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", entries);
}

inline KimiFiles toy_files(size_t ranks) {
  return {.tiktoken_model = model_file(toy_tokens(ranks)),
          .tokenizer_config = config_file(ranks),
          .config = {},
          .generation_config = {}};
}

// Words of the toy language, joined by spaces, with some punctuation, numbers and capitals; about `bytes` long.
inline std::string toy_text(const std::vector<std::string>& tokens, size_t bytes, uint64_t seed) {
  Numbers numbers(seed);
  std::string text;
  while (text.size() < bytes) {
    switch (numbers.below(12)) {
      case 0: text += ". "; break;
      case 1: text += fmt::format(" {}", numbers.below(100'000)); break;
      case 2: text += ",\n"; break;
      case 3: text += "\xC3\xA9\xE4\xBD\xA0"; break;
      default: break;
    }
    text += ' ';
    const uint64_t parts = 1 + numbers.below(2);
    for (uint64_t i = 0; i < parts; ++i) {
      std::string part = tokens[256 + numbers.below(1 + numbers.below(tokens.size() - 256))];
      if (part.front() == ' ') part.erase(0, 1);
      text += part;
    }
  }
  return text;
}

}  // namespace weft::text_test
