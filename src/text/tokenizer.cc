#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/control_tokens.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace weft {

struct KimiTokenizer::Impl {
  RankTable ranks;
  ControlTokens control;
  MarkerIds markers;
  std::vector<TokenId> stop_ids;

  Impl(const Files& files, std::string_view place);

  [[nodiscard]] TokenId vocab_size() const { return ranks.size() + kControlTokenCount; }
  void find_markers(std::string_view place);
  void add_stop_ids(const std::optional<std::string>& file, std::string_view place);
  void check_roles(std::string_view place);
  void encode_plain(std::string_view text, std::vector<TokenId>& out, RankTable::Scratch& scratch) const;
  void encode(std::string_view text, bool allow_special, std::vector<TokenId>& out, RankTable::Scratch& scratch) const;
};

KimiTokenizer::Impl::Impl(const Files& files, std::string_view place)
    : ranks(RankTable::parse(files.tiktoken_model, fmt::format("{}/tiktoken.model", place))),
      control(parse_json(files.tokenizer_config, fmt::format("{}/tokenizer_config.json", place), ErrorKind::bad_checkpoint),
              ranks.size(), fmt::format("{}/tokenizer_config.json", place)) {
  find_markers(place);
  add_stop_ids(files.config, fmt::format("{}/config.json", place));
  add_stop_ids(files.generation_config, fmt::format("{}/generation_config.json", place));
  check_roles(place);
}

void KimiTokenizer::Impl::find_markers(std::string_view place) {
  const auto find = [&](std::string_view name, bool required) {
    const TokenId id = control.find(name);
    if (id < 0 && required)
      fail(ErrorKind::bad_checkpoint, place, "wanted the control token '{}' in tokenizer_config.json, found none of that name",
           name);
    return id;
  };
  markers = {.open = find("<|open|>", true),
             .close = find("<|close|>", true),
             .sep = find("<|sep|>", true),
             .end_of_message = find("<|end_of_msg|>", true),
             .bos = find("[BOS]", false),
             .eos = find("[EOS]", false),
             .pad = find("[PAD]", false),
             .media_begin = find("<|media_begin|>", false),
             .media_content = find("<|media_content|>", false),
             .media_end = find("<|media_end|>", false),
             .media_pad = find("<|media_pad|>", false)};
  stop_ids.push_back(markers.end_of_message);
  if (markers.eos >= 0) stop_ids.push_back(markers.eos);
}

// eos_token_id of a config.json or generation_config.json: an id, a list of ids, or nothing; a text tower's own config too.
void KimiTokenizer::Impl::add_stop_ids(const std::optional<std::string>& file, std::string_view place) {
  if (!file) return;
  const Json config = parse_json(*file, place, ErrorKind::bad_checkpoint);
  const auto add = [&](const Json& value) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocab_size())
      fail(ErrorKind::bad_checkpoint, place, "eos_token_id: wanted an id below {}, found {}", vocab_size(),
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

void KimiTokenizer::Impl::check_roles(std::string_view place) {
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  for (const TokenId id : stop_ids) {
    for (const TokenId marker : {markers.open, markers.close, markers.sep}) {
      if (id == marker)
        fail(ErrorKind::bad_checkpoint, place, "wanted an id of its own for each role, found id {} as '{}' and as end token",
             id, control.name(id));
    }
  }
  // Text that spells a marker must not become the marker (1.5).
  RankTable::Scratch scratch;
  for (const TokenId marker : {markers.open, markers.close, markers.sep, markers.end_of_message}) {
    std::vector<TokenId> as_text;
    std::vector<TokenId> as_control;
    encode(control.name(marker), false, as_text, scratch);
    encode(control.name(marker), true, as_control, scratch);
    if (as_text == as_control || as_control != std::vector<TokenId>{marker})
      fail(ErrorKind::bad_checkpoint, place, "wanted '{}' as one control token that text cannot spell, found otherwise",
           control.name(marker));
  }
}

void KimiTokenizer::Impl::encode_plain(std::string_view text, std::vector<TokenId>& out, RankTable::Scratch& scratch) const {
  const uint8_t* classes = char_classes();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = kimi_piece_end(text, begin, classes);
    ranks.encode_piece(text.substr(begin, end - begin), out, scratch);
    begin = end;
  }
}

void KimiTokenizer::Impl::encode(std::string_view text, bool allow_special, std::vector<TokenId>& out,
                                 RankTable::Scratch& scratch) const {
  if (const auto offset = find_ill_formed_utf8(text))
    fail(ErrorKind::bad_input, "tokenizer", "wanted well-formed UTF-8, found byte 0x{:02x} at offset {}",
         static_cast<uint8_t>(text[*offset]), *offset);
  for (const std::string_view slice : kimi_slices(text)) {
    if (!allow_special) {
      encode_plain(slice, out, scratch);
      continue;
    }
    size_t plain = 0;  // where the run of ordinary text began
    for (size_t i = 0; i < slice.size();) {
      const auto [id, length] = control.match(slice.substr(i));
      if (id < 0) {
        ++i;
        continue;
      }
      encode_plain(slice.substr(plain, i - plain), out, scratch);
      out.push_back(id);
      i += length;
      plain = i;
    }
    encode_plain(slice.substr(plain), out, scratch);
  }
}

KimiTokenizer::KimiTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KimiTokenizer::KimiTokenizer(KimiTokenizer&&) noexcept = default;
KimiTokenizer& KimiTokenizer::operator=(KimiTokenizer&&) noexcept = default;
KimiTokenizer::~KimiTokenizer() = default;

KimiTokenizer KimiTokenizer::load(const std::filesystem::path& folder) {
  constexpr int64_t kMostBytes = 256LL << 20;
  const auto read = [&](const char* name) { return read_text_file(folder / name, ErrorKind::bad_checkpoint, kMostBytes); };
  const auto read_if_there = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored) ? std::optional(read(name)) : std::nullopt;
  };
  return from_files({.tiktoken_model = read("tiktoken.model"),
                     .tokenizer_config = read("tokenizer_config.json"),
                     .config = read_if_there("config.json"),
                     .generation_config = read_if_there("generation_config.json")},
                    folder.string());
}

KimiTokenizer KimiTokenizer::from_files(const Files& files, std::string_view place) {
  return KimiTokenizer(std::make_unique<Impl>(files, place));
}

TokenId KimiTokenizer::vocab_size() const { return impl_->vocab_size(); }
TokenId KimiTokenizer::rank_count() const { return impl_->ranks.size(); }
const MarkerIds& KimiTokenizer::markers() const { return impl_->markers; }
std::span<const TokenId> KimiTokenizer::stop_ids() const { return impl_->stop_ids; }
bool KimiTokenizer::is_stop(TokenId id) const { return std::binary_search(impl_->stop_ids.begin(), impl_->stop_ids.end(), id); }
TokenId KimiTokenizer::control_id(std::string_view name) const { return impl_->control.find(name); }

std::vector<TokenId> KimiTokenizer::encode(std::string_view text, bool allow_special) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 4);
  RankTable::Scratch scratch;
  impl_->encode(text, allow_special, ids, scratch);
  return ids;
}

std::vector<TokenId> KimiTokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  RankTable::Scratch scratch;
  for (const Segment& segment : segments) {
    if (!segment.is_control) {
      impl_->encode(segment.bytes, false, ids, scratch);
      continue;
    }
    const TokenId id = control_id(segment.bytes);
    if (id < 0) fail(ErrorKind::internal, "tokenizer", "wanted the name of a control token, found segment '{}'", segment.bytes);
    ids.push_back(id);
  }
  return ids;
}

std::string_view KimiTokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size())
    fail(ErrorKind::bad_input, "tokenizer", "wanted a token id in [0, {}), found {}", vocab_size(), id);
  return id < rank_count() ? impl_->ranks.bytes(id) : impl_->control.name(id);
}

std::string KimiTokenizer::decode_bytes(std::span<const TokenId> ids, ControlText control) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const std::string_view token = token_bytes(id);
    const bool shown =
        !is_control(id) || control == ControlText::all || (control == ControlText::unflagged && !impl_->control.special(id));
    if (shown) bytes += token;
  }
  return bytes;
}

std::string KimiTokenizer::decode(std::span<const TokenId> ids, ControlText control) const {
  return to_valid_utf8(decode_bytes(ids, control));
}

}  // namespace weft
