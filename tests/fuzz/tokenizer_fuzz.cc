// The readers of tiktoken.model, tokenizer_config.json and the end ids, and encoding and decoding of any text. The first byte
// picks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/kimi_tokenizer.h"

#include "../text/toy_vocabulary.h"

namespace {

constexpr size_t kRanks = 600;

const weft::Tokenizer& toy() {
  static const weft::Tokenizer tokenizer = weft::make_kimi_tokenizer(weft::text_test::toy_files(kRanks));
  return tokenizer;
}

void require(bool holds) {
  if (!holds) std::abort();
}

void encode_and_decode(std::string_view bytes) {
  const std::string text = weft::to_valid_utf8(bytes);
  require(!weft::find_ill_formed_utf8(text));
  for (const bool allow_special : {false, true}) {
    const auto ids = toy().encode(text, allow_special);
    require(toy().decode_bytes(ids, weft::ControlText::all) == text);
    for (const weft::TokenId id : ids) require(allow_special || !toy().is_control(id));
  }
  // A stream cut in two gives what the whole gives.
  for (size_t cut = 0; cut <= bytes.size(); cut += 1 + bytes.size() / 8) {
    weft::Utf8Decoder decoder;
    std::string streamed;
    decoder.feed(bytes.substr(0, cut), streamed);
    decoder.feed(bytes.substr(cut), streamed);
    decoder.flush(streamed);
    require(streamed == text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const weft::KimiFiles good = weft::text_test::toy_files(kRanks);
  weft::KimiFiles files = good;
  try {
    switch (data[0] % 5) {
      case 0:  // the whole file
        (void)weft::RankTable::parse(rest, "fuzz");
        break;
      case 1:  // more lines behind a good vocabulary
        (void)weft::RankTable::parse(files.tiktoken_model.append(rest), "fuzz");
        break;
      case 2:
        files.tokenizer_config = rest;
        (void)weft::make_kimi_tokenizer(files);
        break;
      case 3:
        files.generation_config = rest;
        (void)weft::make_kimi_tokenizer(files);
        break;
      default: encode_and_decode(rest); break;
    }
  } catch (const weft::Error&) {
  }
  return 0;
}
