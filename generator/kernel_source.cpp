#include "generator/kernel_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "generator/kv_encoding.hpp"
#include "generator/prune/prune.hpp"
#include "generator/templates.hpp"

namespace leanattn {
inline namespace v1 {

void SourceText::add(std::initializer_list<std::string_view> modules) {
  for (const std::string_view module : modules) {
    if (hashes == nullptr)
      add_text(template_text(module));
    else
      text.append(hashes->at(module)).push_back('\n');
  }
}

void SourceText::add_entry(std::string_view module, std::string_view kernel_name) {
  if (hashes != nullptr) return add({module});
  constexpr std::string_view kPlaceholder = "KERNEL_NAME";
  std::string named(template_text(module));
  auto at = named.find(kPlaceholder);
  assert(at != std::string::npos);
  for (; at != std::string::npos; at = named.find(kPlaceholder, at))
    named.replace(at, kPlaceholder.size(), kernel_name);
  add_text(named);
}

void SourceText::add_text(std::string_view changed_text) {
  // What a module says of itself behind a line of dashes is for readers of all kernels.
  std::size_t head = 0, told = std::string_view::npos;
  while (changed_text.substr(head).starts_with("//")) {
    if (changed_text.substr(head).starts_with("// ---\n")) told = std::min(told, head);
    head = changed_text.find('\n', head) + 1;
  }
  text += fmt::format("//{}{}\n", changed_text.substr(0, std::min(told, head)), changed_text.substr(head));
}

void SourceText::number(std::string_view name, int value, std::string_view why) {
  constant("int", name, fmt::to_string(value), why);
}

void SourceText::flag(std::string_view name, bool value, std::string_view why) {
  constant("bool", name, value ? "true" : "false", why);
}

void SourceText::constant(std::string_view type, std::string_view name, std::string_view value, std::string_view why) {
  if (hashes != nullptr && (value == "0" || value == "false")) return;
  text += fmt::format("constexpr {} {} = {};   // {}\n", type, name, value, why);
}

void SourceText::define(std::string_view name) { text += fmt::format("#define {}\n", name); }

std::string SourceText::pruned(std::string_view of, Arch arch, std::span<const std::string_view> roots) const {
  if (hashes != nullptr) return std::string(of);
  return remove_unreached(shorten(resolve_branches(of, 100 * arch.major + 10 * arch.minor)), roots);
}

std::string_view template_text(std::string_view module) {
  const auto all = embedded_templates();
  const auto found = std::find_if(all.begin(), all.end(), [module](const auto& t) { return t.name == module; });
  assert(found != all.end() && "a module named here must exist in templates/");
  return found != all.end() ? found->text : std::string_view();
}

DType operand_type(const KernelSpec& spec) { return has_scales(spec.features) ? DType::fp16 : spec.dtype; }

}  // namespace v1
}  // namespace leanattn
