// JSON of outside origin: duplicate keys, objects of more than kMaxJsonKeys keys and nesting deeper than kMaxJsonDepth are
// refused, numbers that overflow a double too.
#pragma once

#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace weft {

using Json = nlohmann::ordered_json;  // keeps the order of keys

inline constexpr int kMaxJsonDepth = 128;
inline constexpr int64_t kMaxJsonKeys = 16384;  // of one object: Json keeps their order and so searches them one by one

// Parses `text`. Throws Error(kind) that names `place` and the byte offset.
[[nodiscard]] Json parse_json(std::string_view text, std::string_view place, ErrorKind kind = ErrorKind::bad_input);

// Reads and parses a whole file of at most `max_bytes`. The place is the file's path.
[[nodiscard]] Json read_json_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::bad_checkpoint,
                                  int64_t max_bytes = 256LL << 20);

}  // namespace weft
