#include "base/text_table.h"

#include <algorithm>

#include "base/utf8.h"

namespace weft {
namespace {

// Characters, of well-formed text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string text_table(const std::vector<TextColumn>& columns, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> lines(1);
  for (const TextColumn& column : columns) lines.front().push_back(column.name);
  for (const std::vector<std::string>& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t c = 0; c < columns.size(); ++c) line.push_back(printable(row.at(c)));
  }
  std::vector<size_t> widths(columns.size());
  for (const std::vector<std::string>& line : lines) {
    for (size_t c = 0; c < columns.size(); ++c) widths[c] = std::max(widths[c], width_of(line[c]));
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    std::string written;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string space(widths[c] - width_of(line[c]), ' ');
      written += c == 0 ? "" : "  ";
      written += columns[c].right ? space + line[c] : line[c] + space;
    }
    written.erase(written.find_last_not_of(' ') + 1);
    text += written + '\n';
  }
  return text;
}

}  // namespace weft
