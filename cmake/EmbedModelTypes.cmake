# Writes OUT: the text of FILE, data/model_types.json, as a C++ literal. It has a line for each type; raw literals of a few lines each stay
# below compilers' length limits.
file(STRINGS "${FILE}" lines)
set(text "// Generated from data/model_types.json at build time. Do not edit.\n#include <string_view>\nnamespace leanattn {\ninline namespace v1 {\nstd::string_view embedded_model_types();\nstd::string_view embedded_model_types() {\n  static constexpr std::string_view kText =\n")
foreach(line IN LISTS lines)
  string(APPEND text "R\"~(${line}\n)~\"\n")
endforeach()
string(APPEND text ";\n  return kText;\n}\n}  // namespace v1\n}  // namespace leanattn\n")
file(WRITE "${OUT}" "${text}")
