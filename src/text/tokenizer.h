// Text to token ids and back: ordinary tokens, which text is made of, and above them control tokens, which only the program
// writes.
//
// Control tokens come only from segments that the renderer marks as control; message text that spells one is ordinary text:
//
//     tokenizer.encode("<|open|>");                 // several ordinary tokens
//     tokenizer.encode(Segment{"<|open|>", true});  // the one id of the marker
//
// A loaded tokenizer is immutable; all its functions are safe to call from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/control_tokens.h"
#include "text/rank_table.h"

namespace weft {

// A part of a prompt that is encoded on its own (1.5).
struct Segment {
  std::string bytes;
  bool is_control = false;  // the spelling of one control token, which becomes exactly its id

  friend bool operator==(const Segment&, const Segment&) = default;
};

// What decoding writes for a control token.
enum class ControlText {
  none,       // nothing
  unflagged,  // the name of a token whose `special` flag is false (skip_special_tokens of other programs)
  all,        // the name
};

// How ordinary text is cut into the pieces that BPE works on.
enum class TextRule : uint8_t {
  kimi,  // slices of bounded length, then the pattern of 1.3
  qwen,  // NFC, then the pattern of 1.8
};

struct TokenizerParts {
  RankTable ranks;
  ControlTokens control;  // directly above the ranks
  TextRule rule = TextRule::kimi;
  std::vector<TokenId> stop_ids;  // ascending, each once
};

// Ids of which only so many are wanted.
struct LimitedIds {
  std::vector<TokenId> ids;  // all, unless there are more than wanted
  int64_t count = 0;         // how many there are; when `cut`, at least so many
  bool cut = false;          // there are more than wanted, and not all were looked for
};

class Tokenizer {
 public:
  // The readers of files (kimi_tokenizer.h, qwen_tokenizer.h) make the parts.
  explicit Tokenizer(TokenizerParts parts);
  Tokenizer(Tokenizer&&) noexcept = default;
  Tokenizer& operator=(Tokenizer&&) noexcept = default;

  // Ordinary and control tokens together; ids are [0, vocab_size).
  [[nodiscard]] TokenId vocab_size() const { return rank_count() + parts_.control.count(); }
  // Ordinary tokens are [0, rank_count).
  [[nodiscard]] TokenId rank_count() const { return parts_.ranks.size(); }
  [[nodiscard]] bool is_control(TokenId id) const { return id >= rank_count() && id < vocab_size(); }
  // A control token that no file names: nothing writes or reads it.
  [[nodiscard]] bool is_reserved(TokenId id) const { return is_control(id) && parts_.control.reserved(id); }
  // A control token with the flag of that name, which says nothing about its use (1.2).
  [[nodiscard]] bool is_special(TokenId id) const { return is_control(id) && parts_.control.special(id); }
  // Ids that end a turn; ascending, each once (3.9).
  [[nodiscard]] std::span<const TokenId> stop_ids() const { return parts_.stop_ids; }
  [[nodiscard]] bool is_stop(TokenId id) const;
  // The id of a control token's name, or -1.
  [[nodiscard]] TokenId control_id(std::string_view name) const { return parts_.control.find(name); }

  // The ids of `text`. With `allow_special`, spellings of control tokens become their ids; never use that for text of a user.
  // No token is added in front. Throws Error(bad_input) naming the byte offset when `text` is not well-formed UTF-8.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool allow_special = false) const;
  // The same, but it ends as soon as it is certain that there are more than `most`: what is far beyond a context costs no more
  // than what fills it.
  [[nodiscard]] LimitedIds encode_limited(std::string_view text, bool allow_special, int64_t most) const;
  [[nodiscard]] LimitedIds encode_limited(std::span<const Segment> segments, int64_t most) const;
  // Each segment on its own, joined. Throws Error(internal) for a control segment that names no control token.
  [[nodiscard]] std::vector<TokenId> encode(std::span<const Segment> segments) const;
  [[nodiscard]] std::vector<TokenId> encode(const Segment& segment) const { return encode(std::span(&segment, 1)); }

  // The raw bytes of a token, or a control token's name. Throws Error(bad_input) for an id outside [0, vocab_size). The view
  // lives as long as the tokenizer.
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // The raw bytes of `ids`, which need not be well-formed UTF-8: pass them through a Utf8Decoder to show them.
  [[nodiscard]] std::string decode_bytes(std::span<const TokenId> ids, ControlText control = ControlText::none) const;
  // The same as well-formed UTF-8; each maximal ill-formed part is one U+FFFD.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, ControlText control = ControlText::none) const;

 private:
  struct Scratch {
    RankTable::Scratch merging;
    std::string normalized;
    size_t most = SIZE_MAX;  // ids that are wanted
    size_t at_least = 0;     // not 0: there are at least so many, which is more, and encoding has ended
  };
  // More ids than wanted are certain where `bytes` are still to be encoded. Says so in the scratch.
  bool is_beyond(size_t bytes, const std::vector<TokenId>& out, Scratch& scratch) const;
  void encode(std::span<const Segment> segments, std::vector<TokenId>& out, Scratch& scratch) const;
  void encode_plain(std::string_view text, std::vector<TokenId>& out, Scratch& scratch) const;
  void encode(std::string_view text, bool allow_special, std::vector<TokenId>& out, Scratch& scratch) const;

  TokenizerParts parts_;
  size_t longest_ = 1;  // bytes of the longest token, control tokens included
};

// ---- What the readers of files share.

// Reads a file of a checkpoint's text side; nothing when it is not there.
[[nodiscard]] std::string read_tokenizer_file(const std::filesystem::path& folder, const char* name);
[[nodiscard]] std::optional<std::string> read_tokenizer_file_if_there(const std::filesystem::path& folder, const char* name);

// Appends eos_token_id of a config.json or generation_config.json (an id, a list of ids, or nothing; a text tower's own config
// too). Throws Error(bad_checkpoint) naming `place` for an id that is not below `vocab_size`.
void add_stop_ids(const std::optional<std::string>& file, std::string_view place, TokenId vocab_size,
                  std::vector<TokenId>& stop_ids);
// Puts the ids in order. Throws Error(bad_checkpoint) naming `place` when one of the names in `markers` is no control token, or
// is an end token too.
void check_roles(const ControlTokens& control, std::span<const std::string_view> markers, std::string_view place,
                 std::vector<TokenId>& stop_ids);
// Text that spells a marker must not become the marker (1.5). Throws Error(bad_checkpoint) naming `place`.
void check_spellings(const Tokenizer& tokenizer, std::span<const std::string_view> markers, std::string_view place);

}  // namespace weft
