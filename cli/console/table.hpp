// table.hpp -- Table: text in aligned columns. Plain data; any thread, except for print_table.
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
/// points, so that "µ" takes one column. Cells are cleaned of what would steer a terminal. A table that is wider than
/// `columns` (0: no limit) has its last column on lines of their own, indented below their rows; one that is still too
/// wide has a line for each cell, "heading  value", and an empty line between rows.
std::string to_text(const Table& table, std::size_t columns = 0);
/// Writes the table to stdout, as wide as the terminal that stdout may be. Main thread.
void print_table(const Table& table);

}  // namespace v1
}  // namespace leanattn
