#include "engine/turn_closer.h"

#include <gmock/gmock.h>

#include "engine_fixture.h"

namespace weft::engine_test {
namespace {

std::string closing(const std::string& written, ParserStart start) {
  TurnCloser closer(format().tokenizer(), start);
  for (const TokenId id : ids_of(written)) closer.add(id);
  return text_of(closer.closers());
}

constexpr const char* kEom = "<|end_of_msg|>";
constexpr const char* kMessageEnd = "<|close|>message<|sep|><|end_of_msg|>";

TEST(TurnCloser, AWholeTurnNeedsItsEndTokenOnly) {
  const std::string whole =
      "It is 4.<|close|>think<|sep|><|open|>response<|sep|>4<|close|>response<|sep|><|close|>message<|sep|>";
  EXPECT_EQ(closing(whole, ParserStart::think), kEom);
  EXPECT_EQ(closing(whole + kEom, ParserStart::think), kEom);
}

TEST(TurnCloser, ClosesTheChannelAndAddsAMissingResponse) {
  const std::string empty_response = "<|open|>response<|sep|><|close|>response<|sep|>";
  EXPECT_EQ(closing("It is", ParserStart::think), "<|close|>think<|sep|>" + empty_response + kMessageEnd);
  EXPECT_EQ(closing("", ParserStart::think), "<|close|>think<|sep|>" + empty_response + kMessageEnd);
  EXPECT_EQ(closing("It is<|close|>think<|sep|>", ParserStart::think), empty_response + kMessageEnd);
  EXPECT_EQ(closing("Hello", ParserStart::response), std::string("<|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("Hello[EOS]", ParserStart::response), std::string("<|close|>response<|sep|>") + kMessageEnd);
}

TEST(TurnCloser, ClosesEverythingInsideAToolCall) {
  EXPECT_EQ(closing("<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"a b\" index=\"1\"<|sep|>"
                    "<|open|>argument key=\"k\" type=\"string\"<|sep|>To",
                    ParserStart::think),
            std::string("<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>") + kMessageEnd);
}

TEST(TurnCloser, EndsATagThatWasBegun) {
  EXPECT_EQ(closing("x<|open|>resp", ParserStart::response), std::string("<|sep|><|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("x<|close|>response", ParserStart::response), std::string("<|sep|><|close|>response<|sep|>") + kMessageEnd);
}

TEST(TurnCloser, TagsOutsideTheGrammarAndEchoesNeedNoClosing) {
  EXPECT_EQ(closing("<|open|>response<|sep|>x<|open|>b<|sep|>y<|close|>b<|sep|>", ParserStart::response),
            std::string("<|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("x<|close|>response<|sep|><|open|>message role=\"user\"<|sep|>", ParserStart::response), kMessageEnd);
}

}  // namespace
}  // namespace weft::engine_test
