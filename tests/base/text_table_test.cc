#include "base/text_table.h"

#include <gmock/gmock.h>

namespace weft {
namespace {

TEST(TextTable, ColumnsAreAsWideAsTheirCells) {
  EXPECT_EQ(text_table({{"node"}, {"bytes", true}, {"note"}}, {{"stage-0", "1,024", ""}, {"s", "96", "late"}}),
            "node     bytes  note\n"
            "stage-0  1,024\n"
            "s           96  late\n");
}

TEST(TextTable, CharactersCountAndControlsAreEscaped) {
  EXPECT_EQ(text_table({{"a"}, {"b"}}, {{"\xC3\xA4\xC3\xB6", "x"}, {"ab", "\x1b[2J"}}),
            "a   b\n"
            "\xC3\xA4\xC3\xB6  x\n"
            "ab  \\x1b[2J\n");
}

TEST(TextTable, WithoutRowsThereAreTheNames) { EXPECT_EQ(text_table({{"a"}, {"b", true}}, {}), "a  b\n"); }

}  // namespace
}  // namespace weft
