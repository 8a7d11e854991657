// ptx_text.hpp -- PTX text as statements and declarations, without knowledge of what instructions mean. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

/// An operand as it is written.
struct Argument {
  enum class Kind { name, integer, real, address, list };
  Kind kind{};
  std::string name;             ///< of a register, variable or label; of an address the base, empty where it has none
  std::int64_t integer = 0;     ///< or the offset of an address or of a name
  double real = 0;              ///< and `integer` has the bits, where they were written (0f..., 0d...)
  bool negated = false;         ///< "!p"
  std::vector<Argument> items;  ///< of "{a, b}", "a|b" and "(a, b)"; of an address with coordinates, those
};

/// A variable of any space, with its bytes where it has initial values.
struct Variable {
  std::string space, name;  ///< "reg", "shared", "local", "param", "global", "const"
  std::string type;         ///< "b32", "pred", ...
  std::int64_t count = 1;   ///< elements; of registers "<n>" one more than the last number
  bool is_family = false;   ///< registers name0 ... name(count - 1)
  bool is_array = false, is_extern = false;
  int alignment = 1;
  std::vector<std::uint64_t> initial;
  std::vector<std::string> initial_names;  ///< symbols whose addresses `initial` holds, empty where it holds numbers
};

struct Statement {
  enum class Kind { instruction, label, declaration, begin_scope, end_scope, branch_targets };
  Kind kind{};
  int line = 0;
  std::string label;  ///< also of branch targets
  std::string guard;  ///< of "@p" or "@!p", without the mark
  bool guard_negated = false;
  std::string opcode;  ///< with all of its modifiers
  std::vector<Argument> arguments;
  Variable variable;
};

struct FunctionText {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> results, parameters;
  int max_threads = 0, ctas_per_sm = 0, cluster = 1;
  std::vector<Statement> body;
};

struct ModuleText {
  std::string target;
  std::vector<Variable> variables;
  std::vector<FunctionText> functions;
};

/// Ends the process where it does not understand the text.
ModuleText parse_ptx(std::string_view text);

/// Says what is not understood, and ends the process.
[[noreturn]] void give_up(const std::string& what, int line);

}  // namespace emulator
