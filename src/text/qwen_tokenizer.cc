#include "text/qwen_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include <simdjson.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/pre_tokenizer.h"

namespace weft {
namespace {

namespace dom = simdjson::dom;

// The alphabet of byte-level vocabularies: printable bytes of Latin-1 are their own characters, the others U+0100 onwards.
constexpr uint32_t kAlphabetEnd = 0x144;
constexpr std::array<int16_t, kAlphabetEnd> kByteOf = [] {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  size_t next = 0x100;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    table[own ? static_cast<size_t>(byte) : next++] = byte;
  }
  return table;
}();

constexpr size_t kShown = 160;  // bytes of a value in an error

// tokenizer.json, section by section.
class Reader {
 public:
  explicit Reader(std::string place) : place_(std::move(place)) {}

  void read(std::string_view text) {
    const simdjson::padded_string padded(text);
    dom::parser parser;
    simdjson::error_code error = parser.allocate(text.size(), static_cast<size_t>(kMaxJsonDepth));
    if (error == simdjson::MEMALLOC)
      fail(ErrorKind::unavailable, place_, "no memory to parse a tokenizer of {} bytes", text.size());
    dom::element root;
    if (error == simdjson::SUCCESS) error = parser.parse(padded).get(root);
    if (error == simdjson::DEPTH_ERROR)
      fail(ErrorKind::bad_checkpoint, place_, "wanted JSON nested at most {} deep, found more", kMaxJsonDepth);
    if (error != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "wanted a JSON tokenizer, found: {}", simdjson::error_message(error));
    const dom::object file = object(root, "the file");
    refuse_repeats(file);
    for (const char* section : {"truncation", "padding"}) want(file, section, section, {"null"});
    want(object_in(file, "normalizer", "normalizer"), "type", "normalizer.type", {R"("NFC")"});
    read_pre_tokenizer(object_in(file, "pre_tokenizer", "pre_tokenizer"));
    dom::element post;
    if (file["post_processor"].get(post) == simdjson::SUCCESS && !post.is_null())
      want(object(post, "post_processor"), "type", "post_processor.type", {R"("ByteLevel")"});
    want(object_in(file, "decoder", "decoder"), "type", "decoder.type", {R"("ByteLevel")"});
    read_model(object_in(file, "model", "model"));
    read_added(file);
  }

  std::optional<RankTable> ranks;
  std::vector<NamedToken> added;

 private:
  static std::string shown(dom::element value) { return to_valid_utf8(simdjson::minify(value).substr(0, kShown)); }

  dom::object object(dom::element value, std::string_view where) const {
    dom::object found;
    if (value.get(found) != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "{}: wanted an object, found {}", where, shown(value));
    return found;
  }
  dom::element member(dom::object from, std::string_view key, std::string_view where) const {
    dom::element found;
    if (from[key].get(found) != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "{}: wanted a value, found no such key", where);
    return found;
  }
  dom::object object_in(dom::object from, std::string_view key, std::string_view where) const {
    return object(member(from, key, where), where);
  }
  dom::array array_in(dom::object from, std::string_view key, std::string_view where) const {
    const dom::element value = member(from, key, where);
    dom::array found;
    if (value.get(found) != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "{}: wanted an array, found {}", where, shown(value));
    return found;
  }
  void refuse_repeats(dom::object object) const {
    std::set<std::string_view> keys;
    for (const dom::key_value_pair field : object) {
      if (!keys.insert(field.key).second)
        fail(ErrorKind::bad_checkpoint, place_, "wanted each key once, found '{}' twice", field.key);
    }
  }
  // One of `allowed`, as JSON without spaces. What is not there has its usual value, which a type does not have.
  void want(dom::object from, std::string_view key, std::string_view where,
            std::initializer_list<std::string_view> allowed) const {
    dom::element value;
    if (from[key].get(value) != simdjson::SUCCESS) {
      if (key == "type") fail(ErrorKind::bad_checkpoint, place_, "{}: wanted {}, found no such key", where, *allowed.begin());
      return;
    }
    const std::string found = simdjson::minify(value);
    if (std::ranges::find(allowed, found) != allowed.end()) return;
    fail(ErrorKind::unsupported, place_, "{}: wanted {}, found {}", where, fmt::join(allowed, " or "), shown(value));
  }

  void read_pre_tokenizer(dom::object sequence) const {
    want(sequence, "type", "pre_tokenizer.type", {R"("Sequence")"});
    std::vector<dom::object> steps;
    for (const dom::element step : array_in(sequence, "pretokenizers", "pre_tokenizer.pretokenizers"))
      steps.push_back(object(step, "pre_tokenizer.pretokenizers"));
    if (steps.size() != 2)
      fail(ErrorKind::unsupported, place_, "pre_tokenizer.pretokenizers: wanted Split and ByteLevel, found {} steps",
           steps.size());
    want(steps[0], "type", "pre_tokenizer.pretokenizers[0].type", {R"("Split")"});
    want(steps[0], "behavior", "pre_tokenizer.pretokenizers[0].behavior", {R"("Isolated")"});
    want(steps[0], "invert", "pre_tokenizer.pretokenizers[0].invert", {"false"});
    constexpr std::string_view kWhere = "pre_tokenizer.pretokenizers[0].pattern";
    const dom::element pattern = member(object_in(steps[0], "pattern", kWhere), "Regex", kWhere);
    std::string_view regex;
    if (pattern.get(regex) != simdjson::SUCCESS || regex != kQwenPattern)
      fail(ErrorKind::unsupported, place_, "{}: wanted {}, found {}", kWhere, kQwenPattern, shown(pattern));
    want(steps[1], "type", "pre_tokenizer.pretokenizers[1].type", {R"("ByteLevel")"});
    want(steps[1], "add_prefix_space", "pre_tokenizer.pretokenizers[1].add_prefix_space", {"false"});
    const dom::element own = member(steps[1], "use_regex", "pre_tokenizer.pretokenizers[1].use_regex");
    if (shown(own) != "false")
      fail(ErrorKind::unsupported, place_, "pre_tokenizer.pretokenizers[1].use_regex: wanted false, found {}", shown(own));
  }

  void read_model(dom::object model) {
    refuse_repeats(model);
    want(model, "type", "model.type", {R"("BPE")"});
    for (const char* key : {"dropout", "unk_token"}) want(model, key, fmt::format("model.{}", key), {"null"});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      want(model, key, fmt::format("model.{}", key), {"null", R"("")"});
    for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"})
      want(model, key, fmt::format("model.{}", key), {"false"});
    read_vocabulary(object_in(model, "vocab", "model.vocab"));
    read_merges(array_in(model, "merges", "model.merges"));
  }

  void read_vocabulary(dom::object vocabulary) {
    std::vector<std::pair<std::string, int64_t>> entries;
    for (const dom::key_value_pair field : vocabulary) {
      int64_t id = 0;
      if (field.value.get(id) != simdjson::SUCCESS)
        fail(ErrorKind::bad_checkpoint, place_, "model.vocab: wanted an id for '{}', found {}", printable(field.key),
             shown(field.value));
      entries.emplace_back(bytes_of(field.key, "model.vocab"), id);
    }
    std::vector<std::string> tokens(entries.size());
    for (auto& [bytes, id] : entries) {
      if (id < 0 || id >= static_cast<int64_t>(tokens.size()))
        fail(ErrorKind::bad_checkpoint, place_, "model.vocab: wanted ids contiguous from 0, found id {} among {} tokens", id,
             tokens.size());
      std::string& token = tokens[static_cast<size_t>(id)];
      if (!token.empty()) fail(ErrorKind::bad_checkpoint, place_, "model.vocab: wanted each id once, found {} twice", id);
      token = std::move(bytes);
    }
    ranks = RankTable::of_tokens(tokens, place_);
  }

  [[nodiscard]] std::string bytes_of(std::string_view spelled, std::string_view where) const {
    std::string bytes;
    for (std::string_view rest = spelled; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      const int byte = step.good && step.code < kAlphabetEnd ? kByteOf[step.code] : -1;
      if (byte < 0)
        fail(ErrorKind::bad_checkpoint, place_, "{}: wanted a token in the byte alphabet, found '{}'", where,
             printable(spelled.substr(0, kShown)));
      bytes += static_cast<char>(byte);
      rest.remove_prefix(step.length);
    }
    return bytes;
  }

  void read_merges(dom::array list) {
    std::vector<RankTable::Pair> pairs;
    for (const dom::element merge : list) {
      const std::string where = fmt::format("model.merges[{}]", pairs.size());
      const auto [left, right] = parts_of(merge, where);
      const std::string left_bytes = bytes_of(left, where);
      const std::string right_bytes = bytes_of(right, where);
      const RankTable::Pair pair{ranks->find(left_bytes), ranks->find(right_bytes), ranks->find(left_bytes + right_bytes)};
      if (pair.left < 0 || pair.right < 0 || pair.whole < 0)
        fail(ErrorKind::bad_checkpoint, place_, "{}: wanted two tokens that together are one, found {}", where, shown(merge));
      pairs.push_back(pair);
    }
    ranks->set_pairs(pairs, place_);
  }

  // "a b", or ["a", "b"] in newer files.
  [[nodiscard]] std::pair<std::string_view, std::string_view> parts_of(dom::element merge, std::string_view where) const {
    std::string_view text;
    if (merge.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space != text.npos) return {text.substr(0, space), text.substr(space + 1)};
    }
    dom::array both;
    std::vector<std::string_view> parts;
    if (merge.get(both) == simdjson::SUCCESS) {
      for (const dom::element part : both) {
        if (part.get(text) == simdjson::SUCCESS) parts.push_back(text);
      }
      if (parts.size() == 2 && both.size() == 2) return {parts[0], parts[1]};
    }
    fail(ErrorKind::bad_checkpoint, place_, "{}: wanted two tokens, found {}", where, shown(merge));
  }

  void read_added(dom::object file) {
    for (const dom::element element : array_in(file, "added_tokens", "added_tokens")) {
      const std::string where = fmt::format("added_tokens[{}]", added.size());
      const dom::object token = object(element, where);
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
        want(token, flag, fmt::format("{}.{}", where, flag), {"false"});
      NamedToken& read = added.emplace_back();
      int64_t id = 0;
      std::string_view name;
      if (token["id"].get(id) != simdjson::SUCCESS || id < 0 || id > INT32_MAX ||
          token["content"].get(name) != simdjson::SUCCESS || name.empty() ||
          (token["special"].error() != simdjson::NO_SUCH_FIELD && token["special"].get(read.special) != simdjson::SUCCESS))
        fail(ErrorKind::bad_checkpoint, place_, "{}: wanted an id, a name and a flag 'special', found {}", where,
             shown(element));
      if (token["special"].error() == simdjson::NO_SUCH_FIELD) read.special = false;
      read.id = static_cast<TokenId>(id);
      read.name = name;
    }
  }

  std::string place_;
};

// tokenizer_config.json may add tokens; what both files name must agree.
void join_added(std::vector<NamedToken>& added, const std::vector<NamedToken>& more, std::string_view place) {
  std::map<TokenId, std::string> known;
  for (const NamedToken& token : added) known.emplace(token.id, token.name);
  for (const NamedToken& token : more) {
    const auto same = known.find(token.id);
    if (same == known.end()) {
      added.push_back(token);
    } else if (same->second != token.name) {
      fail(ErrorKind::bad_checkpoint, place, "added_tokens_decoder.{}: wanted '{}' as in tokenizer.json, found '{}'", token.id,
           same->second, token.name);
    }
  }
}

ControlTokens control_tokens(std::vector<NamedToken>& added, TokenId first, std::string_view place) {
  std::ranges::sort(added, {}, &NamedToken::id);
  for (size_t i = 0; i < added.size(); ++i) {
    if (added[i].id != first + static_cast<TokenId>(i))
      fail(ErrorKind::bad_checkpoint, place,
           "wanted added tokens without a gap above the {} ids of the vocabulary, found id {} for '{}'", first, added[i].id,
           printable(added[i].name));
  }
  return {added, first, static_cast<TokenId>(added.size()), place};
}

// The end token of tokenizer_config.json: a name, or an object with it.
TokenId end_token(const Json& config, const ControlTokens& control, std::string_view place) {
  if (!config.is_object() || !config.contains("eos_token") || config["eos_token"].is_null()) return -1;
  const Json& eos = config["eos_token"];
  const Json& name = eos.is_object() && eos.contains("content") ? eos["content"] : eos;
  const TokenId id = name.is_string() ? control.find(name.get_ref<const std::string&>()) : -1;
  if (id < 0)
    fail(ErrorKind::bad_checkpoint, place, "eos_token: wanted the name of an added token, found {}",
         name.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kShown));
  return id;
}

}  // namespace

Tokenizer load_qwen_tokenizer(const std::filesystem::path& folder) {
  return make_qwen_tokenizer({.tokenizer = read_tokenizer_file(folder, "tokenizer.json"),
                              .tokenizer_config = read_tokenizer_file_if_there(folder, "tokenizer_config.json"),
                              .config = read_tokenizer_file_if_there(folder, "config.json"),
                              .generation_config = read_tokenizer_file_if_there(folder, "generation_config.json")},
                             folder.string());
}

Tokenizer make_qwen_tokenizer(const QwenFiles& files, std::string_view place) {
  constexpr std::array<std::string_view, 7> kMarkers{"<|im_start|>", "<think>",         "</think>",        "<tool_call>",
                                                     "</tool_call>", "<tool_response>", "</tool_response>"};
  constexpr std::array<std::string_view, 2> kEnds{"<|im_end|>", "<|endoftext|>"};
  const std::string file_place = fmt::format("{}/tokenizer.json", place);
  const std::string config_place = fmt::format("{}/tokenizer_config.json", place);
  Reader reader(file_place);
  reader.read(files.tokenizer);
  Json config;
  if (files.tokenizer_config) {
    config = parse_json(*files.tokenizer_config, config_place, ErrorKind::bad_checkpoint);
    if (config.is_object() && config.contains("added_tokens_decoder"))
      join_added(reader.added, read_added_tokens(config, config_place), config_place);
  }
  ControlTokens control = control_tokens(reader.added, reader.ranks->size(), file_place);

  const TokenId vocab_size = reader.ranks->size() + control.count();
  std::vector<TokenId> stop_ids;
  if (const TokenId eos = end_token(config, control, config_place); eos >= 0) stop_ids.push_back(eos);
  for (const std::string_view name : kEnds) {
    const TokenId id = control.find(name);
    if (id < 0) fail(ErrorKind::bad_checkpoint, file_place, "wanted the control token '{}', found none of that name", name);
    stop_ids.push_back(id);
  }
  add_stop_ids(files.config, fmt::format("{}/config.json", place), vocab_size, stop_ids);
  add_stop_ids(files.generation_config, fmt::format("{}/generation_config.json", place), vocab_size, stop_ids);
  check_roles(control, kMarkers, file_place, stop_ids);

  Tokenizer tokenizer({std::move(*reader.ranks), std::move(control), TextRule::qwen, std::move(stop_ids)});
  check_spellings(tokenizer, kMarkers, file_place);
  check_spellings(tokenizer, kEnds, file_place);
  return tokenizer;
}

}  // namespace weft
