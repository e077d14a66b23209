// Text in columns, for reports that people read.
//
//     text_table({{"node"}, {"bytes", true}}, {{"stage-0", "1,024"}, {"stage-1", "96"}});
//     // node     bytes
//     // stage-0  1,024
//     // stage-1     96
#pragma once

#include <string>
#include <vector>

namespace weft {

struct TextColumn {
  std::string name;
  bool right = false;  // numbers
};

// Each row has a cell for each column. Lines end with a line break; what a terminal would obey is escaped.
[[nodiscard]] std::string text_table(const std::vector<TextColumn>& columns, const std::vector<std::vector<std::string>>& rows);

}  // namespace weft
