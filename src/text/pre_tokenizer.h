// The pre-tokenizers: scanners that equal the patterns of prompt_and_api.md 1.3 (Kimi K3) and 1.8 (Qwen).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

// The end of the piece that begins at byte `begin` of `text`. `text` is well-formed UTF-8, begin < text.size() and begin is
// the start of a character. `classes` is char_classes(). Time is linear in the text over all pieces.
[[nodiscard]] size_t kimi_piece_end(std::string_view text, size_t begin, const uint8_t* classes);

// The same by the pattern of Qwen, which a tokenizer.json spells so:
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
[[nodiscard]] size_t qwen_piece_end(std::string_view text, size_t begin, const uint8_t* classes);

// All pieces of `text` (well-formed UTF-8), which they cover without a gap.
using PieceEnd = size_t (*)(std::string_view text, size_t begin, const uint8_t* classes);
[[nodiscard]] std::vector<std::string_view> pieces_of(std::string_view text, PieceEnd piece_end);

// The slices of prompt_and_api.md 1.4 step 1: at most 400,000 characters, and within each at most 25,000 consecutive
// white-space or non-white-space characters. `text` is well-formed UTF-8. The widths are part of the reference's behaviour.
inline constexpr size_t kKimiSliceCharacters = 400'000;
inline constexpr size_t kKimiRunCharacters = 25'000;
[[nodiscard]] std::vector<std::string_view> kimi_slices(std::string_view text);

}  // namespace weft
