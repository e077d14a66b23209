// Model output of any bytes and any ids: no error, one finish, and the same events however the text is cut.
//
// Byte 0: start, end and discarding. Byte 1: the length of the pieces. The rest is the text, in which the bytes 1 to 9 stand
// for markers and tags, so that the fuzzer meets them often.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

#include "../text/parser_streams.h"
#include "../text/toy_vocabulary.h"

namespace {

using weft::text_test::EventLog;

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const weft::Tokenizer tokenizer = weft::make_kimi_tokenizer(weft::text_test::toy_files(600));
  constexpr std::array<std::string_view, 10> kWords{"",
                                                    "<|open|>",
                                                    "<|close|>",
                                                    "<|sep|>",
                                                    "<|end_of_msg|>",
                                                    "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                                                    "<|open|>argument key=\"k\" type=\"number\"<|sep|>",
                                                    "<|open|>argument key=\"s\"<|sep|>",
                                                    "<|open|>tools<|sep|>",
                                                    "response"};
  std::string text;
  for (size_t i = 2; i < size; ++i) {
    const std::string_view word = data[i] >= 1 && data[i] <= 9 ? kWords[data[i]] : std::string_view();
    if (word.empty()) {
      text += static_cast<char>(data[i]);
    } else {
      text += word;
    }
  }
  weft::text_test::Stream stream{"fuzz",
                                 static_cast<weft::ParserStart>(data[0] % 3),
                                 text,
                                 (data[0] & 4) != 0 ? weft::EndReason::length : weft::EndReason::stop,
                                 {},
                                 {},
                                 (data[0] & 8) != 0};
  const size_t piece = 1 + data[1] % 16;

  const auto run = [&](size_t step) {
    weft::OutputParser parser = weft::text_test::parser_of(stream, tokenizer);
    EventLog log;
    for (size_t at = 0; at < text.size(); at += step) {
      parser.feed_text(std::string_view(text).substr(at, step));
      log.add(parser.take_events());
    }
    parser.finish(stream.end);
    log.add(parser.take_events());
    require(log.sound());
    return std::pair(log, parser.counters());
  };
  const auto [whole, whole_counters] = run(text.size() + 1);
  const auto [pieces, piece_counters] = run(piece);
  require(whole.lines == pieces.lines);
  require(whole.answer().content == pieces.answer().content &&
          whole.answer().tool_calls.size() == pieces.answer().tool_calls.size());

  // The same bytes as ids: whatever the fuzzer says, taken two bytes at a time.
  weft::OutputParser by_ids = weft::text_test::parser_of(stream, tokenizer);
  EventLog log;
  for (size_t i = 2; i + 1 < size; i += 2) {
    by_ids.feed_token(static_cast<weft::TokenId>(data[i] << 8 | data[i + 1]) % (tokenizer.vocab_size() + 8) - 4);
    log.add(by_ids.take_events());
  }
  by_ids.finish(stream.end);
  log.add(by_ids.take_events());
  require(log.sound());
  return 0;
}
