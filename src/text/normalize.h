// Unicode normalisation form C (prompt_and_api.md 1.8).
#pragma once

#include <string>
#include <string_view>

namespace weft {

// The NFC form of `text` (well-formed UTF-8): `text` itself when it needs no change that a look at its characters can rule out,
// else `storage`, which it fills. Characters that the Unicode version of utf8proc does not know stay as they are.
[[nodiscard]] std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace weft
