// compile_turn.hpp -- CompileTurn: of all processes that miss one kernel, one compiles it. Any thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>

#include "cache/files.hpp"

namespace leanattn {
inline namespace v1 {

/// The turn to compile one kernel, until destruction. Advisory: whoever cannot have it, because the file system has no
/// locks or its holder takes too long, compiles as well, which costs time and nothing else. A process that dies gives
/// its turns back; from one that was stopped (SIGSTOP, a debugger) the first to wait takes a turn of its own, and the
/// others wait for that one.
class CompileTurn {
 public:
  CompileTurn() = default;  ///< of a cache that no other process sees

  /// Waits while another turn for `key` is held, in this process or any other that uses `directory`.
  static CompileTurn wait(const std::filesystem::path& directory, std::string_view key,
                          std::chrono::milliseconds patience = kPatience);

  /// Whether others are kept waiting.
  bool held() const { return static_cast<bool>(lock_); }

  /// Many times what the slowest kernel takes on a busy machine.
  static constexpr std::chrono::milliseconds kPatience{60000};

 private:
  detail::DescriptionLock lock_;
};

}  // namespace v1
}  // namespace leanattn
