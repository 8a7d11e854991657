// table.hpp -- Table: text in aligned columns. Plain data; any thread.
#pragma once

#include <string>
#include <vector>

namespace leanattn {
inline namespace v1 {

struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;  ///< each as long as headings
  std::string right_aligned;                   ///< 'r' or 'l' for each column; 'l' for those past its end
};

/// Columns are two spaces apart, lines have no trailing blanks, and every row ends with a newline. Widths are in code
/// points, so that "µ" takes one column.
std::string to_text(const Table& table);

}  // namespace v1
}  // namespace leanattn
