// dynamic_library.hpp -- dlopen with a search list, and what was opened. Any thread; libraries are never closed.
#pragma once

#include <span>
#include <string>

namespace leanattn {
inline namespace v1 {

/// A library that stays loaded for the life of the process: CUDA's libraries keep threads and exit handlers of their
/// own.
class DynamicLibrary {
 public:
  /// Opens the first of `candidates` (sonames or paths) that loads; check with operator bool. `failures`, when not
  /// null, receives one line for each candidate that did not load, with the loader's words.
  static DynamicLibrary open_first(std::span<const std::string> candidates, std::string* failures);

  explicit operator bool() const { return handle_ != nullptr; }
  /// Address of a symbol, or null.
  void* symbol(const char* name) const;
  /// The candidate that loaded.
  const std::string& name() const { return name_; }
  /// Path of the file that holds `address` (a symbol of this library), symbolic links resolved; empty when unknown.
  static std::string path_of(const void* address);
  /// GNU build ID, hex, of the loaded object that holds `address`; empty when it has none.
  static std::string build_id_of(const void* address);

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace v1
}  // namespace leanattn
