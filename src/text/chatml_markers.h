// The control tokens that a Qwen model writes (prompt_and_api.md 1.8, 4.5) by spelling and by id.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "text/tokenizer.h"

namespace weft {

enum class ChatmlMarker : uint8_t { open_think, close_think, open_call, close_call, end, other_end };

inline constexpr std::array<std::string_view, 6> kChatmlMarkers{"<think>",      "</think>",   "<tool_call>",
                                                                "</tool_call>", "<|im_end|>", "<|endoftext|>"};
[[nodiscard]] constexpr std::string_view spelling(ChatmlMarker marker) { return kChatmlMarkers[static_cast<size_t>(marker)]; }

struct ChatmlMarkers {
  explicit ChatmlMarkers(const Tokenizer& tokenizer) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = tokenizer.control_id(kChatmlMarkers[i]);
  }
  [[nodiscard]] TokenId operator[](ChatmlMarker marker) const { return ids[static_cast<size_t>(marker)]; }

  std::array<TokenId, kChatmlMarkers.size()> ids{};
};

}  // namespace weft
