#include "engine/token_end.h"

#include <algorithm>

namespace weft {

bool TokenEnd::asked(TokenId id, int64_t generated) const {
  return generated >= options_.least && std::ranges::find(options_.ids, id) != options_.ids.end();
}

void TokenEnd::restrict(std::span<uint32_t> mask, int64_t generated) const {
  std::vector<TokenId> banned;
  if (!may_end(generated + 1)) banned.assign(tokenizer_->stop_ids().begin(), tokenizer_->stop_ids().end());
  if (generated + 1 < options_.least) banned.insert(banned.end(), options_.ids.begin(), options_.ids.end());
  if (banned.empty()) return;
  std::vector<uint32_t> rest(mask.begin(), mask.end());
  for (const TokenId id : banned) {
    const auto word = static_cast<size_t>(id) / 32;
    if (word < rest.size()) rest[word] &= ~(uint32_t{1} << (static_cast<uint32_t>(id) % 32));
  }
  // A schema that is complete leaves nothing else.
  if (std::ranges::any_of(rest, [](uint32_t word) { return word != 0; })) std::ranges::copy(rest, mask.begin());
}

}  // namespace weft
