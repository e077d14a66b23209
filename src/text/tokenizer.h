// The Kimi tokenizer: tiktoken.model plus the control tokens of tokenizer_config.json (prompt_and_api.md 1.1 to 1.6).
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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/rank_table.h"

namespace weft {

// A part of a prompt that is encoded on its own (1.5).
struct Segment {
  std::string bytes;
  bool is_control = false;  // the spelling of one control token, which becomes exactly its id

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Ids of the markers, read from the checkpoint by name; -1 for an optional one that it lacks.
struct MarkerIds {
  TokenId open = -1;            // <|open|>
  TokenId close = -1;           // <|close|>
  TokenId sep = -1;             // <|sep|>
  TokenId end_of_message = -1;  // <|end_of_msg|>
  TokenId bos = -1;             // [BOS], optional
  TokenId eos = -1;             // [EOS], optional
  TokenId pad = -1;             // [PAD], optional
  TokenId media_begin = -1;     // <|media_begin|> and its three companions, optional
  TokenId media_content = -1;
  TokenId media_end = -1;
  TokenId media_pad = -1;
};

// What decoding writes for a control token.
enum class ControlText {
  none,       // nothing
  unflagged,  // the name of a token whose `special` flag is false (skip_special_tokens of other programs)
  all,        // the name
};

class KimiTokenizer {
 public:
  // The contents of the files; the last two may be absent.
  struct Files {
    std::string tiktoken_model;
    std::string tokenizer_config;
    std::optional<std::string> config;             // config.json: end token ids
    std::optional<std::string> generation_config;  // generation_config.json: end token ids
  };

  // Reads the files of a checkpoint folder. Throws Error(bad_checkpoint) naming file and fault: what RankTable::parse refuses;
  // a control token outside the 256 ids above the ranks; two control tokens of one name; a structural marker missing; two roles
  // with one id; an end id outside the vocabulary.
  static KimiTokenizer load(const std::filesystem::path& folder);
  // The same from memory. `place` stands for the folder in messages.
  static KimiTokenizer from_files(const Files& files, std::string_view place = "tokenizer");

  KimiTokenizer(KimiTokenizer&&) noexcept;
  KimiTokenizer& operator=(KimiTokenizer&&) noexcept;
  ~KimiTokenizer();

  // Ranks and control tokens together; ids are [0, vocab_size).
  [[nodiscard]] TokenId vocab_size() const;
  [[nodiscard]] TokenId rank_count() const;
  [[nodiscard]] bool is_control(TokenId id) const { return id >= rank_count() && id < vocab_size(); }
  [[nodiscard]] const MarkerIds& markers() const;
  // Ids that end a turn: <|end_of_msg|>, [EOS] and the end ids of the JSON files; ascending, each once (3.9).
  [[nodiscard]] std::span<const TokenId> stop_ids() const;
  [[nodiscard]] bool is_stop(TokenId id) const;
  // The id of a control token's name, or -1.
  [[nodiscard]] TokenId control_id(std::string_view name) const;

  // The ids of `text`. With `allow_special`, spellings of control tokens become their ids; never use that for text of a user.
  // No token is added in front. Throws Error(bad_input) naming the byte offset when `text` is not well-formed UTF-8.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool allow_special = false) const;
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
  struct Impl;
  explicit KimiTokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
