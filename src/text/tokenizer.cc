#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace weft {
namespace {

constexpr int64_t kMostLimited = int64_t{1} << 40;  // ids; no prompt has so many

LimitedIds limited(std::vector<TokenId> ids, size_t at_least) {
  const bool cut = at_least > 0;
  const auto count = static_cast<int64_t>(cut ? at_least : ids.size());
  return {std::move(ids), count, cut};
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  for (TokenId id = 0; id < vocab_size(); ++id) longest_ = std::max(longest_, token_bytes(id).size());
}

bool Tokenizer::is_stop(TokenId id) const { return std::binary_search(parts_.stop_ids.begin(), parts_.stop_ids.end(), id); }

bool Tokenizer::is_beyond(size_t bytes, const std::vector<TokenId>& out, Scratch& scratch) const {
  if (scratch.most == SIZE_MAX) return false;
  if (out.size() <= scratch.most && bytes <= (scratch.most - out.size()) * longest_) return false;
  scratch.at_least = out.size() + (bytes + longest_ - 1) / longest_;
  return true;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<TokenId>& out, Scratch& scratch) const {
  const uint8_t* classes = char_classes();
  const bool is_qwen = parts_.rule == TextRule::qwen;
  if (is_qwen) text = to_nfc(text, scratch.normalized);
  const PieceEnd piece_end = is_qwen ? qwen_piece_end : kimi_piece_end;
  for (size_t begin = 0; begin < text.size();) {
    if (is_beyond(text.size() - begin, out, scratch)) return;
    const size_t end = piece_end(text, begin, classes);
    parts_.ranks.encode_piece(text.substr(begin, end - begin), out, scratch.merging);
    begin = end;
  }
}

void Tokenizer::encode(std::string_view text, bool allow_special, std::vector<TokenId>& out, Scratch& scratch) const {
  if (const auto offset = find_ill_formed_utf8(text))
    fail(ErrorKind::bad_input, "tokenizer", "wanted well-formed UTF-8, found byte 0x{:02x} at offset {}",
         static_cast<uint8_t>(text[*offset]), *offset);
  // Normalisation changes the number of bytes: where there is one, they are counted behind it.
  if (parts_.rule == TextRule::kimi && is_beyond(text.size(), out, scratch)) return;
  const std::vector<std::string_view> slices = parts_.rule == TextRule::kimi ? kimi_slices(text) : std::vector{text};
  for (const std::string_view slice : slices) {
    if (scratch.at_least > 0) return;
    if (!allow_special) {
      encode_plain(slice, out, scratch);
      continue;
    }
    size_t plain = 0;  // where the run of ordinary text began
    for (size_t i = 0; i < slice.size() && scratch.at_least == 0;) {
      const auto [id, length] = parts_.control.match(slice.substr(i));
      if (id < 0) {
        ++i;
        continue;
      }
      encode_plain(slice.substr(plain, i - plain), out, scratch);
      out.push_back(id);
      i += length;
      plain = i;
    }
    if (scratch.at_least == 0) encode_plain(slice.substr(plain), out, scratch);
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool allow_special) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 4);
  Scratch scratch;
  encode(text, allow_special, ids, scratch);
  return ids;
}

LimitedIds Tokenizer::encode_limited(std::string_view text, bool allow_special, int64_t most) const {
  std::vector<TokenId> ids;
  Scratch scratch;
  scratch.most = static_cast<size_t>(std::clamp(most, int64_t{0}, kMostLimited));
  encode(text, allow_special, ids, scratch);
  return limited(std::move(ids), scratch.at_least);
}

void Tokenizer::encode(std::span<const Segment> segments, std::vector<TokenId>& out, Scratch& scratch) const {
  for (const Segment& segment : segments) {
    if (is_beyond(0, out, scratch)) return;
    if (!segment.is_control) {
      encode(segment.bytes, false, out, scratch);
      if (scratch.at_least > 0) return;
      continue;
    }
    const TokenId id = control_id(segment.bytes);
    if (id < 0) fail(ErrorKind::internal, "tokenizer", "wanted the name of a control token, found segment '{}'", segment.bytes);
    out.push_back(id);
  }
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  Scratch scratch;
  encode(segments, ids, scratch);
  return ids;
}

LimitedIds Tokenizer::encode_limited(std::span<const Segment> segments, int64_t most) const {
  std::vector<TokenId> ids;
  Scratch scratch;
  scratch.most = static_cast<size_t>(std::clamp(most, int64_t{0}, kMostLimited));
  encode(segments, ids, scratch);
  return limited(std::move(ids), scratch.at_least);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size())
    fail(ErrorKind::bad_input, "tokenizer", "wanted a token id in [0, {}), found {}", vocab_size(), id);
  return id < rank_count() ? parts_.ranks.bytes(id) : parts_.control.name(id);
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> ids, ControlText control) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const std::string_view token = token_bytes(id);
    const bool shown = !is_control(id) || control == ControlText::all || (control == ControlText::unflagged && !is_special(id));
    if (shown) bytes += token;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, ControlText control) const {
  return to_valid_utf8(decode_bytes(ids, control));
}

std::string read_tokenizer_file(const std::filesystem::path& folder, const char* name) {
  constexpr int64_t kMostBytes = 256LL << 20;
  return read_text_file(folder / name, ErrorKind::bad_checkpoint, kMostBytes);
}

std::optional<std::string> read_tokenizer_file_if_there(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  return std::filesystem::exists(folder / name, ignored) ? std::optional(read_tokenizer_file(folder, name)) : std::nullopt;
}

void add_stop_ids(const std::optional<std::string>& file, std::string_view place, TokenId vocab_size,
                  std::vector<TokenId>& stop_ids) {
  if (!file) return;
  const Json config = parse_json(*file, place, ErrorKind::bad_checkpoint);
  const auto add = [&](const Json& value) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocab_size)
      fail(ErrorKind::bad_checkpoint, place, "eos_token_id: wanted an id below {}, found {}", vocab_size,
           value.dump().substr(0, 100));
    stop_ids.push_back(value.get<TokenId>());
  };
  const auto add_all = [&](const Json& object) {
    if (!object.is_object()) return;
    const auto eos = object.find("eos_token_id");
    if (eos == object.end() || eos->is_null()) return;
    if (!eos->is_array()) return add(*eos);
    for (const Json& value : *eos) add(value);
  };
  add_all(config);
  if (config.is_object() && config.contains("text_config")) add_all(config["text_config"]);
}

void check_roles(const ControlTokens& control, std::span<const std::string_view> markers, std::string_view place,
                 std::vector<TokenId>& stop_ids) {
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  for (const std::string_view marker : markers) {
    const TokenId id = control.find(marker);
    if (id < 0) fail(ErrorKind::bad_checkpoint, place, "wanted the control token '{}', found none of that name", marker);
    if (std::binary_search(stop_ids.begin(), stop_ids.end(), id))
      fail(ErrorKind::bad_checkpoint, place, "wanted an id of its own for each role, found id {} as '{}' and as end token", id,
           marker);
  }
}

void check_spellings(const Tokenizer& tokenizer, std::span<const std::string_view> markers, std::string_view place) {
  for (const std::string_view marker : markers) {
    const std::vector<TokenId> as_control = tokenizer.encode(marker, true);
    if (tokenizer.encode(marker) == as_control || as_control != std::vector<TokenId>{tokenizer.control_id(marker)})
      fail(ErrorKind::bad_checkpoint, place, "wanted '{}' as one control token that text cannot spell, found otherwise",
           marker);
  }
}

}  // namespace weft
