// kernel_source.hpp -- SourceText, KernelSource: the text of a kernel while its parts write into it. One thread.
// Internal to generator/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"

namespace leanattn {
inline namespace v1 {

/// Counts changes of the text that generator/ writes itself, where they change instructions: for ranks, whose kernels
/// must understand each other, and for generator_revision(). Changes of the templates show in their bytes.
inline constexpr std::string_view kGeneratorVersion = "5";

/// Where in the list of constants a family adds its own: behind those of the query rows, the warps, the steps, and the
/// way in which rows are copied.
enum class ConstantGroup : std::uint8_t { rows, warps, steps, copies };

/// Of each module, the hash of its code (hex). Words and white space do not count.
using ModuleHashes = std::map<std::string_view, std::string>;
ModuleHashes module_hashes(std::span<const EmbeddedTemplate> templates);
/// Those of this library, computed once a process.
const ModuleHashes& module_hashes();
/// kernel_revision() with other templates. Exposed for tests.
std::string kernel_revision(const KernelSpec& spec, const ModuleHashes& hashes);

/// The text of a kernel of any operation.
struct SourceText {
  /// Not null: the text is only to be hashed, and has of each module its hash. It lacks the constants that are 0 or
  /// false, as are those of a feature that the kernel does not have, so that another feature changes no revision.
  const ModuleHashes* hashes = nullptr;
  std::string text = {};

  /// Modules of templates/. What each says of itself begins with "////" and its name.
  void add(std::initializer_list<std::string_view> modules);
  /// The module with the entry point, in which the kernel gets its name.
  void add_entry(std::string_view module, std::string_view kernel_name);
  /// The text of a module, which may have been changed.
  void add_text(std::string_view changed_text);

  /// Constants, with what they are for.
  void number(std::string_view name, int value, std::string_view why);
  void flag(std::string_view name, bool value, std::string_view why);
  void constant(std::string_view type, std::string_view name, std::string_view value, std::string_view why);
  /// A macro without a value.
  void define(std::string_view name);

  /// What its kernel uses of a text, or of all of it (prune/prune.hpp), and what `roots` name. What is only to be
  /// hashed stays as it is.
  std::string pruned(std::string_view of, Arch arch, std::span<const std::string_view> roots = {}) const;
  std::string pruned(Arch arch) const { return pruned(text, arch); }
};

/// The hash of a text without comments and white space (XXH3-64, hex).
std::string code_hash(std::string_view text);

/// That of attention.
struct KernelSource : SourceText {
  KernelSource(const KernelSpec& of, const KernelLayout& laid_out, KernelVariant asked,
               const ModuleHashes* of_modules = nullptr, bool half = false)
      : SourceText{.hashes = of_modules}, spec(of), layout(laid_out), variant(asked), is_half(half) {}

  const KernelSpec& spec;
  const KernelLayout& layout;
  KernelVariant variant;
  bool is_half;  ///< of a kernel that has in front what halves share
};

/// The text of a module, which must be there.
std::string_view template_text(std::string_view module);

/// The type of the matrix instructions' operands: that of q, or fp16 where elements have one byte, because fp16 has all
/// their values.
DType operand_type(const KernelSpec& spec);

/// The modules that no constant changes.
void add_arguments(KernelSource& source);
/// The parts of a kernel beside its family's (families/family.hpp). Each adds its modules.
void add_line(KernelSource& source);
void add_merge(KernelSource& source);
/// And its constants.
void add_constants(KernelSource& source);
void add_merge_constants(KernelSource& source);

/// Partials that a thread loads together. n of them take about 6 n registers, beside what the main loop keeps across a
/// fix-up.
int merge_batch(const KernelLayout& layout);

}  // namespace v1
}  // namespace leanattn
