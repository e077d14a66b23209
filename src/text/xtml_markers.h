// The markers of XTML (prompt_and_api.md 1.2, 3.1) by spelling and by id.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "text/tokenizer.h"

namespace weft {

inline constexpr std::array<std::string_view, 4> kXtmlMarkers{"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};

struct XtmlMarkers {
  explicit XtmlMarkers(const Tokenizer& tokenizer)
      : open(tokenizer.control_id(kXtmlMarkers[0])),
        close(tokenizer.control_id(kXtmlMarkers[1])),
        sep(tokenizer.control_id(kXtmlMarkers[2])),
        end_of_message(tokenizer.control_id(kXtmlMarkers[3])) {}

  TokenId open;
  TokenId close;
  TokenId sep;
  TokenId end_of_message;
};

}  // namespace weft
