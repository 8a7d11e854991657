# Writes OUT: a C++ table of (path below ROOT, text) for every file of TEMPLATES. Raw literals are split below compilers' length limits.
set(text "// Generated from templates/ at build time. Do not edit.\n#include \"generator/templates.hpp\"\nnamespace leanattn {\ninline namespace v1 {\nnamespace {\nconstexpr EmbeddedTemplate kTemplates[] = {\n")
foreach(file IN LISTS TEMPLATES)
  file(RELATIVE_PATH name "${ROOT}" "${file}")
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${hex}")
  # One literal per 60 bytes: adjacent literals concatenate, and a hex escape never swallows the next character.
  string(REGEX REPLACE "((\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?)" "\"\\1\" " bytes "${bytes}")
  string(APPEND text "{\"${name}\", std::string_view(${bytes}\"\", sizeof(${bytes}\"\") - 1)},\n")
endforeach()
string(APPEND text "};\n}  // namespace\nstd::span<const EmbeddedTemplate> embedded_templates() { return kTemplates; }\n}  // namespace v1\n}  // namespace leanattn\n")
file(WRITE "${OUT}" "${text}")
