// The work of `weft text encode|decode|render|parse`: JSON in, JSON out.
#pragma once

#include <string>
#include <string_view>

#include "text/chat.h"

namespace weft {

// {"text": "...", "allow_special": false} or {"segments": [["text", is_control], ...]} -> {"ids": [...], "count": n}
[[nodiscard]] std::string text_encode_json(const ChatFormat& format, std::string_view input);

// {"ids": [...], "control": "none" | "unflagged" | "all", "count": n} -> {"text": "..."}; control defaults to "none"; count,
// which encode writes, may be absent.
[[nodiscard]] std::string text_decode_json(const ChatFormat& format, std::string_view input);

// A chat request -> {"text", "segments": [["text", is_control], ...], "ids", "count", "start": "think" | "response" | "start",
// "notes"}
[[nodiscard]] std::string text_render_json(const ChatFormat& format, std::string_view input);

// {"ids": [...]} or {"text": "..."}, with "start" (default "think"), "end": "stop" | "length" (default "stop"),
// "discard_calls": false, "pieces": n (the text is fed n bytes at a time) -> {"reasoning_content", "content" (null when empty
// beside calls), "tool_calls": [{"name", "arguments"}], "finish_reason", "complete", "events": [...], "counters": {...}}. Calls
// are numbered instead of having random ids, so that the output depends on the input only.
[[nodiscard]] std::string text_parse_json(const ChatFormat& format, std::string_view input);

// All throw Error(bad_input) naming the field; an unknown one too, which of a chat request is a note instead.

}  // namespace weft
