// Text to tokens and back over HTTP (prompt_and_api.md 6.10). All throw ApiError or Error.
#pragma once

#include "server/api/service.h"

namespace weft::api {

// {content | messages (and the other fields of a chat), add_special, parse_special, with_pieces}
//   -> {"tokens": [...], "count": n, "max_model_len": m}; with pieces each token is {"id", "piece"}: a string, or its bytes.
[[nodiscard]] Json tokenize_json(const JsonValue& root, const Service& service);
// {tokens} -> {"content": "..."}; control tokens are written.
[[nodiscard]] Json detokenize_json(const JsonValue& root, const Service& service);
// A chat -> {"prompt": "..."}, to look at: encoding it again would make markers of what users wrote.
[[nodiscard]] Json apply_template_json(const JsonValue& root, const Service& service);

}  // namespace weft::api
