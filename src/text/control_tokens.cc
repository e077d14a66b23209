#include "text/control_tokens.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace weft {

std::vector<NamedToken> read_added_tokens(const Json& config, std::string_view place) {
  const auto wanted = [&](std::string_view what, const Json& found) {
    fail(ErrorKind::bad_checkpoint, place, "wanted {}, found {}", what,
         found.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200));
  };
  if (!config.is_object()) wanted("an object", config);
  const auto added = config.find("added_tokens_decoder");
  if (added == config.end())
    fail(ErrorKind::bad_checkpoint, place,
         "wanted key 'added_tokens_decoder' with the names of the control tokens, found none");
  if (!added->is_object()) wanted("'added_tokens_decoder' as an object", *added);
  std::vector<NamedToken> tokens;
  std::set<TokenId> ids;
  for (const auto& [key, value] : added->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) fail(ErrorKind::bad_checkpoint, place, "added_tokens_decoder: wanted decimal ids as keys, found '{}'", key);
    if (!value.is_object() || !value.contains("content") || !value["content"].is_string() ||
        value["content"].get_ref<const std::string&>().empty())
      wanted(fmt::format("added_tokens_decoder.{} as an object with a non-empty string 'content'", key), value);
    NamedToken& token = tokens.emplace_back(NamedToken{std::stoi(key), value["content"].get<std::string>(), true});
    if (!ids.insert(token.id).second)
      fail(ErrorKind::bad_checkpoint, place, "added_tokens_decoder: wanted each id once, found {} twice", token.id);
    if (const auto special = value.find("special"); special != value.end()) {
      if (!special->is_boolean()) wanted(fmt::format("added_tokens_decoder.{}.special as a boolean", key), *special);
      token.special = special->get<bool>();
    }
  }
  return tokens;
}

ControlTokens::ControlTokens(const std::vector<NamedToken>& named, TokenId first, TokenId count, std::string_view place)
    : first_(first), tokens_(static_cast<size_t>(count)), trie_(1) {
  for (const NamedToken& token : named) {
    if (token.id < first_ || token.id - first_ >= count)
      fail(ErrorKind::bad_checkpoint, place,
           "wanted ids of the {} control tokens above the ordinary ones, {} to {}, found {} for '{}'", count, first_,
           first_ + count - 1, token.id, token.name);
    tokens_[static_cast<size_t>(token.id - first_)] = token;
  }
  for (TokenId i = 0; i < count; ++i) {
    NamedToken& token = tokens_[static_cast<size_t>(i)];
    if (token.id < 0) token.name = fmt::format("<|reserved_token_{}|>", first_ + i);
    uint32_t node = 0;
    for (char c : token.name) {
      auto& children = trie_[node].children;
      const auto child = std::find_if(children.begin(), children.end(), [c](const auto& entry) { return entry.first == c; });
      if (child != children.end()) {
        node = child->second;
      } else {
        const auto fresh = static_cast<uint32_t>(trie_.size());
        children.emplace_back(c, fresh);
        trie_.emplace_back();
        node = fresh;
      }
    }
    if (trie_[node].id >= 0)
      fail(ErrorKind::bad_checkpoint, place, "wanted each control token's name once, found '{}' for ids {} and {}", token.name,
           trie_[node].id, first_ + i);
    trie_[node].id = first_ + i;
  }
}

std::pair<TokenId, size_t> ControlTokens::match(std::string_view text) const {
  std::pair<TokenId, size_t> best{-1, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = trie_[node].children;
    const auto child =
        std::find_if(children.begin(), children.end(), [&](const auto& entry) { return entry.first == text[i]; });
    if (child == children.end()) break;
    node = child->second;
    if (trie_[node].id >= 0) best = {trie_[node].id, i + 1};
  }
  return best;
}

TokenId ControlTokens::find(std::string_view name) const {
  const auto [id, length] = match(name);
  return length == name.size() ? id : -1;
}

}  // namespace weft
