#include "text/xtml_closer.h"

#include <gmock/gmock.h>

#include "text/text_fixture.h"

namespace weft::text_test {
namespace {

std::string closing(const std::string& written, ParserStart start) {
  XtmlCloser closer(mini(), start);
  for (const TokenId id : mini().encode(written, true)) closer.add(id);
  return mini().decode(closer.closers(), ControlText::all);
}

constexpr const char* kEom = "<|end_of_msg|>";
constexpr const char* kMessageEnd = "<|close|>message<|sep|><|end_of_msg|>";

TEST(XtmlCloser, AWholeTurnNeedsItsEndTokenOnly) {
  const std::string whole =
      "It is 4.<|close|>think<|sep|><|open|>response<|sep|>4<|close|>response<|sep|><|close|>message<|sep|>";
  EXPECT_EQ(closing(whole, ParserStart::think), kEom);
  EXPECT_EQ(closing(whole + kEom, ParserStart::think), kEom);
}

TEST(XtmlCloser, ClosesTheChannelAndAddsAMissingResponse) {
  const std::string empty_response = "<|open|>response<|sep|><|close|>response<|sep|>";
  EXPECT_EQ(closing("It is", ParserStart::think), "<|close|>think<|sep|>" + empty_response + kMessageEnd);
  EXPECT_EQ(closing("", ParserStart::think), "<|close|>think<|sep|>" + empty_response + kMessageEnd);
  EXPECT_EQ(closing("It is<|close|>think<|sep|>", ParserStart::think), empty_response + kMessageEnd);
  EXPECT_EQ(closing("Hello", ParserStart::response), std::string("<|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("Hello[EOS]", ParserStart::response), std::string("<|close|>response<|sep|>") + kMessageEnd);
}

TEST(XtmlCloser, ClosesEverythingInsideAToolCall) {
  EXPECT_EQ(closing("<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"a b\" index=\"1\"<|sep|>"
                    "<|open|>argument key=\"k\" type=\"string\"<|sep|>To",
                    ParserStart::think),
            std::string("<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>") + kMessageEnd);
}

TEST(XtmlCloser, EndsATagThatWasBegun) {
  EXPECT_EQ(closing("x<|open|>resp", ParserStart::response), std::string("<|sep|><|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("x<|close|>response", ParserStart::response), std::string("<|sep|><|close|>response<|sep|>") + kMessageEnd);
}

TEST(XtmlCloser, TagsOutsideTheGrammarAndEchoesNeedNoClosing) {
  EXPECT_EQ(closing("<|open|>response<|sep|>x<|open|>b<|sep|>y<|close|>b<|sep|>", ParserStart::response),
            std::string("<|close|>response<|sep|>") + kMessageEnd);
  EXPECT_EQ(closing("x<|close|>response<|sep|><|open|>message role=\"user\"<|sep|>", ParserStart::response), kMessageEnd);
}

}  // namespace
}  // namespace weft::text_test
