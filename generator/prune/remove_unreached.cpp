// remove_unreached.cpp -- takes out declarations that no kernel reaches.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "generator/prune/prune.hpp"
#include "generator/prune/source_text.hpp"

namespace leanattn {
inline namespace v1 {

std::vector<std::string_view> names_in(std::string_view code) {
  std::vector<std::string_view> names;
  for (std::size_t at = 0; at < code.size();) {
    const bool name = prune::begins_name(code[at]);
    const std::size_t next = name ? prune::name_end(code, at) : prune::token_end(code, at);
    if (name) names.push_back(code.substr(at, next - at));
    at = !name && code[at] >= '0' && code[at] <= '9' ? prune::name_end(code, at) : next;
  }
  return names;
}

namespace prune {
namespace {

/// A declaration of namespace scope with the comments right above it, or a directive.
struct Item {
  std::string_view text;
  std::vector<std::string_view> declares, uses;
  bool is_root = false, is_check = false, opens_module = false;
  bool kept = false;
};

/// The names that the declaration `code`, which begins with no comment, declares.
std::vector<std::string_view> declared_names(std::string_view code) {
  std::vector<std::string_view> names;
  const auto name_at = [&](std::size_t at) {
    at = skip_blank(code, at);
    return code.substr(at, name_end(code, at) - at);
  };
  const auto name_before = [&](std::size_t at) {
    while (at > 0 && is_space(code[at - 1])) --at;
    std::size_t begin = at;
    while (begin > 0 && in_name(code[begin - 1])) --begin;
    return code.substr(begin, at - begin);
  };
  if (code.starts_with('#')) {
    for (std::size_t at = code.find("#define "); at != kEnd; at = code.find("#define ", at + 1))
      names.push_back(name_at(at + 8));
    return names;
  }
  if (code.starts_with("typedef")) return {name_before(code.rfind(';'))};
  if (code.starts_with("enum")) {
    const std::size_t open = code.find('{');
    if (const auto own = name_at(4); !own.empty()) names.push_back(own);
    for (std::size_t at = open + 1; at < code.size() && code[at] != '}';) {
      names.push_back(name_at(at));
      const std::size_t stop = code.find_first_of(",}", at);
      at = code[stop] == ',' ? stop + 1 : stop;
    }
    return names;
  }
  std::size_t at = 0;
  if (code.starts_with("template")) at = skip_blank(code, code.find('\n'));
  if (starts_with_word(code, at, "struct")) {
    at = skip_blank(code, at + 6);
    if (starts_with_word(code, at, "alignas")) at = closing(code, code.find('(', at));
    return {name_at(at)};
  }
  // A function's name stands before its parameters, which launch bounds do not count as; a constant's before "=".
  for (; at < code.size(); at = begins_name(code[at]) ? name_end(code, at) : token_end(code, at)) {
    if (code[at] == '=') {
      names.push_back(name_before(at));
      while (at < code.size() && code[at] != ',' && code[at] != ';')
        at = code[at] == '(' || code[at] == '{' ? closing(code, at) : token_end(code, at);
    } else if (code[at] == '(' && names.empty()) {
      const std::string_view name = name_before(at);
      if (name == "__launch_bounds__") {
        at = closing(code, at) - 1;
        continue;
      }
      return {name};
    }
  }
  return names;
}

/// Where the declaration or directive at `at` ends, its line included.
std::size_t item_end(std::string_view text, std::size_t at) {
  if (text[at] == '#') {
    // A conditional is one item with all that it holds.
    int open = 0;
    do {
      const std::size_t begin = text.find_first_not_of(" \n", at), end = line_end(text, begin);
      const std::string_view line = text.substr(begin, end - begin);
      open += line.starts_with("#if");
      open -= line.starts_with("#endif");
      at = std::min(end + 1, text.size());
      if (line.ends_with('\\')) ++open, at = std::min(line_end(text, at) + 1, text.size()), --open;
    } while (open > 0 && at < text.size());
    return at;
  }
  while (at < text.size() && text[at] != ';' && text[at] != '{')
    at = text[at] == '(' ? closing(text, at) : token_end(text, at);
  if (at < text.size() && text[at] == '{') {
    at = closing(text, at);
    // "= {...};" and "struct {...};" go on.
    if (at < text.size() && text[at] == ';') ++at;
  }
  return std::min(line_end(text, at) + 1, text.size());
}

std::vector<Item> items_of(std::string_view text) {
  std::vector<Item> items;
  std::size_t at = 0;
  while (at < text.size()) {
    Item item;
    // Blank lines and comments before the declaration; a blank line parts what introduces a module from what follows.
    const std::size_t begin = at;
    std::size_t code = at;
    while (code < text.size() && (text[code] == '\n' || text.substr(code).starts_with("//"))) {
      const bool blank = text[code] == '\n';
      if (text.substr(code).starts_with("////")) item.opens_module = true;
      code = std::min(line_end(text, code) + 1, text.size());
      if (blank && item.opens_module) break;
    }
    if (item.opens_module || code >= text.size()) {
      item.text = text.substr(begin, code - begin);
      at = code;
    } else {
      at = item_end(text, code);
      item.text = text.substr(begin, at - begin);
      const std::string_view declaration = text.substr(code, at - code);
      item.is_root = declaration.starts_with("extern");
      item.is_check = declaration.starts_with("static_assert");
      if (!item.is_check) item.declares = declared_names(declaration);
      item.uses = names_in(declaration);
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace
}  // namespace prune

std::string remove_unreached(std::string_view source, std::span<const std::string_view> roots) {
  std::vector<prune::Item> items = prune::items_of(source);
  std::unordered_map<std::string_view, std::vector<std::size_t>> declared_by;
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (const std::string_view name : items[i].declares) declared_by[name].push_back(i);
  }
  std::vector<std::size_t> reached;
  const auto keep = [&](std::size_t i) {
    if (!items[i].kept) reached.push_back(i);
    items[i].kept = true;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto is_named = [&](std::string_view root) { return std::ranges::count(items[i].declares, root) > 0; };
    if (items[i].is_root || std::ranges::any_of(roots, is_named)) keep(i);
  }
  const auto declarations = [&](std::string_view name) -> const std::vector<std::size_t>& {
    static const std::vector<std::size_t> none;
    const auto found = declared_by.find(name);
    return found == declared_by.end() ? none : found->second;
  };
  const auto follow = [&] {
    while (!reached.empty()) {
      const std::size_t i = reached.back();
      reached.pop_back();
      for (const std::string_view name : items[i].uses) {
        for (const std::size_t by : declarations(name)) keep(by);
      }
    }
  };
  follow();
  // A check stays, with all that it names, if it is about something that is there.
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto is_there = [&](std::string_view name) {
      const auto& by = declarations(name);
      return std::any_of(by.begin(), by.end(), [&](std::size_t other) { return items[other].kept; });
    };
    if (items[i].is_check && std::any_of(items[i].uses.begin(), items[i].uses.end(), is_there)) keep(i);
    follow();
  }
  std::string out;
  std::string_view module;  // what introduces it, until something of it is kept
  for (const prune::Item& item : items) {
    if (item.opens_module) {
      module = item.text.substr(item.text.find('/'), item.text.find_last_not_of('\n') + 1 - item.text.find('/'));
      continue;
    }
    if (!item.kept) continue;
    const std::string_view text = item.text.substr(item.text.find_first_not_of('\n'));
    // A blank line parts what introduces a module from a comment; what is left out leaves no second blank line.
    if (!module.empty()) {
      if (!out.empty()) out.push_back('\n');
      out.append(std::exchange(module, {})).push_back('\n');
      if (text.starts_with("//")) out.push_back('\n');
    } else if (text.size() < item.text.size() && !out.ends_with("\n\n")) {
      out.push_back('\n');
    }
    out.append(text);
  }
  return out;
}

}  // namespace v1
}  // namespace leanattn
