// The readers of tokenizer.json, tokenizer_config.json, the end ids and the chat template, and encoding and decoding of any
// text. The first byte picks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chatml_template.h"
#include "text/normalize.h"

#include "../text/toy_qwen.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

const weft::QwenFiles& good() {
  static const weft::QwenFiles files = weft::text_test::toy_qwen_files(300);
  return files;
}

void read(const weft::QwenFiles& files) {
  try {
    const weft::Tokenizer tokenizer = weft::make_qwen_tokenizer(files, "fuzz");
    const std::string text = "ab {\"c\": \xC3\xA9}\n";
    require(tokenizer.decode_bytes(tokenizer.encode(text)) == text);
  } catch (const weft::Error& error) {
    require(std::string_view(error.what()).starts_with("[fuzz/") && error.kind() != weft::ErrorKind::internal);
  }
}

void encode_and_decode(std::string_view bytes) {
  const weft::Tokenizer& toy = weft::text_test::small_qwen();
  const std::string text = weft::to_valid_utf8(bytes);
  std::string storage;
  const std::string normal(weft::to_nfc(text, storage));
  require(!weft::find_ill_formed_utf8(normal));
  require(weft::to_nfc(normal, storage) == normal);
  require(toy.decode_bytes(toy.encode(text)) == normal);
  for (const weft::TokenId id : toy.encode(text)) require(!toy.is_control(id));
  (void)toy.decode_bytes(toy.encode(text, true), weft::ControlText::all);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  weft::QwenFiles files = good();
  switch (data[0] % 6) {
    case 0:
      files.tokenizer = rest;
      read(files);
      break;
    case 1: {  // a piece of a good file is another
      if (rest.size() < 3) break;
      const size_t at = (static_cast<size_t>(data[1]) << 8 | data[2]) % files.tokenizer.size();
      files.tokenizer.replace(at, data[3], rest.substr(3));
      read(files);
      break;
    }
    case 2:
      files.tokenizer_config = rest;
      read(files);
      break;
    case 3:
      files.generation_config = rest;
      read(files);
      break;
    case 4: try { (void)weft::read_chat_template(rest, "fuzz");
      } catch (const weft::Error&) {
      }
      break;
    default: encode_and_decode(rest); break;
  }
  return 0;
}
