// Stop strings: what is shown of a text, however it is cut.
#include "engine/stop_strings.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Shown {
  std::string text;
  std::optional<std::string> matched;
};

Shown feed(const std::vector<std::string>& stops, std::string_view text, size_t piece) {
  StopStrings filter(stops);
  Shown shown;
  for (size_t at = 0; at < text.size(); at += piece) {
    if (filter.feed(text.substr(at, piece), shown.text)) break;
  }
  if (!filter.matched()) filter.flush(shown.text);
  shown.matched = filter.matched();
  return shown;
}

TEST(StopStrings, TheCutDoesNotMatter) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
    Shown wanted;
  };
  const std::vector<Case> cases = {
      {{"END"}, "one EN two END three", {"one EN two ", "END"}},
      {{"END"}, "ENENDX", {"EN", "END"}},
      {{"aab"}, "aaaab", {"aa", "aab"}},
      {{"abc", "bc"}, "xabc", {"x", "abc"}},    // complete together: the longest
      {{"abcd", "bc"}, "xabcd", {"xa", "bc"}},  // complete first
      {{"\n\n"}, "a\nb\n\nc", {"a\nb", "\n\n"}},
      {{"ü"}, "f\xC3\xBCr", {"f", "\xC3\xBC"}},
      {{"stop"}, "sto", {"sto", std::nullopt}},  // held back until the end
      {{"aab"}, "aaab", {"a", "aab"}},           // what goes on may begin within what was held
      {{"abac"}, "ababac", {"ab", "abac"}},
      {{"abab"}, "abaabab", {"aba", "abab"}},
      {{}, "anything", {"anything", std::nullopt}},
  };
  for (const Case& test : cases) {
    for (size_t piece = 1; piece <= test.text.size(); ++piece) {
      const Shown found = feed(test.stops, test.text, piece);
      EXPECT_EQ(found.text, test.wanted.text) << test.text << " in pieces of " << piece;
      EXPECT_EQ(found.matched, test.wanted.matched) << test.text << " in pieces of " << piece;
    }
  }
}

TEST(StopStrings, OnlyWhatMayBeginOneIsHeld) {
  StopStrings filter({"hello", "help"});
  std::string shown;
  EXPECT_FALSE(filter.feed("say hel", shown));
  EXPECT_EQ(shown, "say ");
  EXPECT_FALSE(filter.feed("m", shown));
  EXPECT_EQ(shown, "say helm");
  EXPECT_FALSE(filter.feed("he", shown));
  filter.flush(shown);
  EXPECT_EQ(shown, "say helmhe");
  EXPECT_FALSE(filter.feed("llo", shown)) << "what was flushed begins nothing any more";
  EXPECT_TRUE(filter.feed("help", shown));
  EXPECT_EQ(shown, "say helmhello");
}

TEST(StopStrings, AnEmptyOneIsRefused) {
  EXPECT_THAT([] { StopStrings({"a", ""}); }, ThrowsMessage<Error>(HasSubstr("found an empty one")));
}

}  // namespace
}  // namespace weft
