// table.hpp -- aligned columns for people. Plain data; any thread.
#pragma once

#include <string>
#include <vector>

namespace leanattn {
inline namespace v1 {

struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;  ///< each as long as headings
  std::string right_aligned;                   ///< one character a column: 'r' or 'l'; shorter means 'l'
};

/// Two spaces between columns, no trailing blanks, a newline after every row. Widths count code points, so "µ" is one
/// column.
std::string to_text(const Table& table);

}  // namespace v1
}  // namespace leanattn
