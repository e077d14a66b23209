// Chat requests of any bytes, in each format: an Error or a prompt whose control tokens are those of its markup and no others.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/chat.h"
#include "text/text_json.h"

#include "../text/toy_qwen.h"

namespace {

void render(const weft::ChatFormat& format, std::string_view json) {
  try {
    const weft::ChatPrompt prompt = format.render(json);
    const auto is_control = [&](weft::TokenId id) { return format.tokenizer().is_control(id); };
    const auto ids = std::count_if(prompt.ids.begin(), prompt.ids.end(), is_control);
    const auto segments =
        std::count_if(prompt.segments.begin(), prompt.segments.end(), [](const weft::Segment& s) { return s.is_control; });
    if (ids != segments) std::abort();
    for (const weft::Segment& segment : prompt.segments) {
      if (segment.bytes.empty()) std::abort();
    }
  } catch (const weft::Error&) {
  }
  for (const auto command : {weft::text_encode_json, weft::text_decode_json, weft::text_render_json, weft::text_parse_json}) {
    try {
      // What comes out is JSON.
      (void)weft::parse_json_value(command(format, json), "output");
    } catch (const weft::Error& error) {
      if (error.kind() == weft::ErrorKind::internal || std::string_view(error.what()).starts_with("[output]")) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::ChatFormat xtml = weft::ChatFormat::kimi(weft::make_kimi_tokenizer(weft::text_test::toy_files(600)));
  const auto qwen = [](bool thinking) {
    return weft::ChatFormat::qwen(weft::make_qwen_tokenizer(weft::text_test::toy_qwen_files()),
                                  weft::ChatTemplate{thinking, false, thinking});
  };
  static const weft::ChatFormat instruct = qwen(false);
  static const weft::ChatFormat thinking = qwen(true);
  for (const weft::ChatFormat* format : {&xtml, &instruct, &thinking})
    render(*format, {reinterpret_cast<const char*>(data), size});
  return 0;
}
