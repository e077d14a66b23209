// The names that an answer has given in its open objects and in its open call, so that none is given twice: JSON's readers,
// ours among them, refuse an object with the same name twice. Terms cannot say so, because what may follow would depend on
// every name so far; the names are therefore read beside them, from the text.
//
//     guard.accept("{\"a\": 1, \"");
//     guard.remove_repeats(words);   // a" may not follow, \u0061" neither
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/terms.h"
#include "text/tokenizer.h"

namespace weft::grammar {

class Vocabulary;

class NameGuard {
 public:
  // `json_response`: what the response holds is JSON. `in_response`: the text begins inside the response.
  NameGuard(std::shared_ptr<const Vocabulary> vocabulary, bool json_response, bool in_response);

  void accept(std::string_view text);
  void accept(Marker marker);
  // The text would end a name that is there already.
  [[nodiscard]] bool repeats(std::string_view text) const;
  // Clears the bits of tokens of which that is true. Whether there was one.
  bool remove_repeats(std::span<uint32_t> words) const;

 private:
  enum class Place : uint8_t { other, json, header };  // header: behind <|open|> or <|close|>
  enum class Inside : uint8_t { value, key, string };
  // An object or array of JSON.
  struct Container {
    bool is_object = false;
    bool wants_key = false;  // behind { or ,
    std::set<std::string, std::less<>> names;
  };
  // What reading more text changes, without what was there before.
  struct Walk {
    size_t kept = 0;                 // containers that are still open, of those that were
    bool wants_key = false;          // of the innermost of these
    std::vector<Container> opened;   // behind them
    std::vector<std::string> added;  // names of the innermost kept one
    Inside inside = Inside::value;
    bool escaped = false;  // behind a backslash
    std::string key;       // as it is written so far
    bool repeats = false;
  };

  [[nodiscard]] Walk begin() const;
  void read(Walk& walk, char byte) const;
  void end_key(Walk& walk) const;
  static void close_container(Walk& walk);
  void commit(Walk walk);
  // The name of an argument, once the header has it whole.
  [[nodiscard]] static std::optional<std::string_view> argument_name(std::string_view header);
  void end_header();
  void begin_json();

  std::shared_ptr<const Vocabulary> vocabulary_;
  bool json_response_;
  Place place_ = Place::other;
  bool opens_ = false;  // the header stands behind <|open|>
  std::string header_;
  std::set<std::string, std::less<>> arguments_;  // of the open call
  // JSON
  std::vector<Container> open_;
  Inside inside_ = Inside::value;
  bool escaped_ = false;
  std::string key_;
};

}  // namespace weft::grammar
