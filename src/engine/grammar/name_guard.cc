#include "engine/grammar/name_guard.h"

#include <algorithm>
#include <utility>

#include "engine/grammar/matcher.h"
#include "text/json_value.h"

namespace weft::grammar {

NameGuard::NameGuard(std::shared_ptr<const Vocabulary> vocabulary, bool json_response, bool in_response)
    : vocabulary_(std::move(vocabulary)),
      json_response_(json_response),
      place_(json_response && in_response ? Place::json : Place::other) {}

NameGuard::Walk NameGuard::begin() const {
  Walk walk;
  walk.kept = open_.size();
  walk.wants_key = !open_.empty() && open_.back().wants_key;
  walk.inside = inside_;
  walk.escaped = escaped_;
  walk.key = key_;
  return walk;
}

// The grammar sees to it that the text is JSON.
void NameGuard::read(Walk& walk, char byte) const {
  if (walk.inside != Inside::value) {
    if (walk.inside == Inside::key && (byte != '"' || walk.escaped)) walk.key += byte;
    if (byte == '"' && !walk.escaped) {
      if (walk.inside == Inside::key) end_key(walk);
      walk.inside = Inside::value;
    }
    walk.escaped = byte == '\\' && !walk.escaped;
    return;
  }
  bool& wants_key = walk.opened.empty() ? walk.wants_key : walk.opened.back().wants_key;
  switch (byte) {
    case '{':
    case '[': walk.opened.push_back({byte == '{', byte == '{', {}}); break;
    case '}':
    case ']': close_container(walk); break;
    case ',':
      wants_key = walk.opened.empty() ? walk.kept > 0 && open_[walk.kept - 1].is_object : walk.opened.back().is_object;
      break;
    case '"':
      walk.inside = wants_key ? Inside::key : Inside::string;
      wants_key = false;
      walk.key.clear();
      break;
    default: break;
  }
}

void NameGuard::end_key(Walk& walk) const {
  std::optional<JsonValue> name = try_parse_json_value('"' + std::exchange(walk.key, {}) + '"');
  if (!name) return;
  if (!walk.opened.empty()) {
    walk.repeats = !walk.opened.back().names.insert(std::move(name->text)).second || walk.repeats;
    return;
  }
  const bool known =
      open_[walk.kept - 1].names.contains(name->text) || std::ranges::find(walk.added, name->text) != walk.added.end();
  walk.repeats = walk.repeats || known;
  walk.added.push_back(std::move(name->text));
}

void NameGuard::close_container(Walk& walk) {
  if (!walk.opened.empty()) {
    walk.opened.pop_back();
    return;
  }
  if (walk.kept > 0) --walk.kept;
  walk.added.clear();
  walk.wants_key = false;
}

void NameGuard::commit(Walk walk) {
  open_.resize(walk.kept);
  if (!open_.empty()) {
    open_.back().wants_key = walk.wants_key;
    for (std::string& name : walk.added) open_.back().names.insert(std::move(name));
  }
  for (Container& container : walk.opened) open_.push_back(std::move(container));
  inside_ = walk.inside;
  escaped_ = walk.escaped;
  key_ = std::move(walk.key);
}

void NameGuard::accept(std::string_view text) {
  if (place_ == Place::header) header_ += text;
  if (place_ != Place::json) return;
  Walk walk = begin();
  for (const char byte : text) read(walk, byte);
  commit(std::move(walk));
}

void NameGuard::accept(Marker marker) {
  if (marker == Marker::sep && place_ == Place::header) {
    end_header();
    return;
  }
  // The body of a call of ChatML is JSON, arguments and all.
  if (marker == Marker::open_call || (marker == Marker::close_think && json_response_)) return begin_json();
  opens_ = marker == Marker::open;
  place_ = opens_ || marker == Marker::close ? Place::header : Place::other;
  header_.clear();
}

std::optional<std::string_view> NameGuard::argument_name(std::string_view header) {
  constexpr std::string_view kBegin = "argument key=\"";
  if (!header.starts_with(kBegin)) return std::nullopt;
  header.remove_prefix(kBegin.size());
  const size_t end = header.find('"');
  return end == std::string_view::npos ? std::nullopt : std::optional(header.substr(0, end));
}

void NameGuard::end_header() {
  place_ = Place::other;
  if (!opens_) return;
  bool json = json_response_ && header_ == "response";
  if (header_.starts_with("call ")) arguments_.clear();
  if (const std::optional<std::string_view> name = argument_name(header_)) {
    arguments_.emplace(*name);
    json = !header_.ends_with(" type=\"string\"");
  }
  if (json) begin_json();
}

void NameGuard::begin_json() {
  place_ = Place::json;
  open_.clear();
  inside_ = Inside::value;
}

bool NameGuard::repeats(std::string_view text) const {
  if (place_ == Place::header) {
    if (!opens_ || arguments_.empty() || argument_name(header_)) return false;
    const std::string header = header_ + std::string(text);
    const std::optional<std::string_view> name = argument_name(header);
    return name && arguments_.contains(*name);
  }
  if (place_ != Place::json) return false;
  Walk walk = begin();
  for (const char byte : text) read(walk, byte);
  return walk.repeats;
}

bool NameGuard::remove_repeats(std::span<uint32_t> words) const {
  if (place_ == Place::other || (place_ == Place::header && (!opens_ || arguments_.empty()))) return false;
  // Elsewhere a token that ends a name has both of its quotes.
  const bool in_name = place_ == Place::header || inside_ == Inside::key;
  bool found = false;
  for (const Vocabulary::Quoted& token : vocabulary_->quoted()) {
    if (!in_name && token.quotes < 2) continue;
    uint32_t& word = words[static_cast<size_t>(token.id) / 32];
    const uint32_t bit = 1U << (static_cast<uint32_t>(token.id) % 32);
    if ((word & bit) == 0 || !repeats(vocabulary_->tokenizer().token_bytes(token.id))) continue;
    word &= ~bit;
    found = true;
  }
  return found;
}

}  // namespace weft::grammar
