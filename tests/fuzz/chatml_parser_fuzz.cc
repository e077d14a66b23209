// Output of a Qwen model of any bytes and any ids: no error, one finish, the same events however the text is cut, and calls
// whose arguments are JSON.
//
// Byte 0: start, end and discarding. Byte 1: the length of the pieces. The rest is the text, in which the bytes 1 to 8 stand
// for markers and parts of calls, so that the fuzzer meets them often.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "text/json_value.h"

#include "../text/chatml_streams.h"
#include "../text/toy_qwen.h"

namespace {

using weft::text_test::EventLog;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const EventLog& log) {
  require(log.sound());
  for (const weft::ToolCall& call : log.answer().tool_calls) {
    const auto arguments = weft::try_parse_json_value(call.arguments, {.duplicate_keys = true});
    require(arguments && arguments->is(weft::JsonValue::Kind::object) && !call.name.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const weft::Tokenizer& tokenizer = weft::text_test::small_qwen();
  constexpr std::array<std::string_view, 9> kWords{
      "",           "<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "{\"name\": \"f\", \"arguments\": ",
      "{\"k\": \"", "\"}}"};
  std::string text;
  for (size_t i = 2; i < size; ++i) {
    if (data[i] >= 1 && data[i] < kWords.size()) {
      text += kWords[data[i]];
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  const weft::text_test::Stream stream{"fuzz",
                                       static_cast<weft::ParserStart>(data[0] % 3),
                                       text,
                                       (data[0] & 4) != 0 ? weft::EndReason::length : weft::EndReason::stop,
                                       {},
                                       {},
                                       (data[0] & 8) != 0};
  const size_t piece = 1 + data[1] % 16;
  const EventLog whole = weft::text_test::run_chatml(stream, tokenizer, {});
  check(whole);
  std::vector<size_t> cuts;
  for (size_t at = piece; at < text.size(); at += piece) cuts.push_back(at);
  const EventLog pieces = weft::text_test::run_chatml(stream, tokenizer, cuts);
  require(whole.lines == pieces.lines && whole.answer().content == pieces.answer().content);

  // The same bytes as ids: whatever the fuzzer says, taken two bytes at a time.
  weft::OutputParser by_ids = weft::chatml_parser(tokenizer, {.start = stream.start, .discard_calls = stream.discard_calls});
  EventLog log;
  for (size_t i = 2; i + 1 < size; i += 2) {
    by_ids.feed_token(static_cast<weft::TokenId>(data[i] << 8 | data[i + 1]) % (tokenizer.vocab_size() + 8) - 4);
    log.add(by_ids.take_events());
  }
  for (const weft::TokenId id : by_ids.closers()) require(id >= 0 && id < tokenizer.vocab_size());
  by_ids.finish(stream.end);
  log.add(by_ids.take_events());
  check(log);
  return 0;
}
