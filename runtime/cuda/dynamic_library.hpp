// dynamic_library.hpp -- DynamicLibrary: a shared library that is opened at run time. Any thread. It is never closed.
#pragma once

#include <span>
#include <string>

namespace leanattn {
inline namespace v1 {

/// A library that stays loaded for the life of the process, because CUDA's libraries have threads and exit handlers of
/// their own.
class DynamicLibrary {
 public:
  /// Opens the first of `candidates` (sonames or paths) that loads; operator bool says whether one did. `failures`,
  /// when not null, receives the loader's message for each candidate that did not load, one on each line.
  static DynamicLibrary open_first(std::span<const std::string> candidates, std::string* failures);

  explicit operator bool() const { return handle_ != nullptr; }
  /// The address of a symbol, or null.
  void* symbol(const char* name) const;
  /// The candidate that loaded.
  const std::string& name() const { return name_; }
  /// The path of the file that contains `address`, without symbolic links; empty when unknown.
  static std::string path_of(const void* address);
  /// The GNU build ID, in hex, of the loaded object that contains `address`; empty when it has none.
  static std::string build_id_of(const void* address);

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace v1
}  // namespace leanattn
