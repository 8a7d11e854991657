// process_mark.hpp -- ProcessMark: tells whether this is still the process in which something was made. Any thread.
#pragma once

#include <cstdint>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// When a process forks, its child gets a copy of the memory, but no CUDA state and no threads, and locks may stay
/// held.
class ProcessMark {
 public:
  ProcessMark();  ///< marks the calling process
  /// False in a child that was forked since. Takes one load and no system call.
  bool here() const noexcept { return forks_ == forks_so_far(); }
  /// The error to return there: context_lost.
  static Error forked();

 private:
  static std::uint64_t forks_so_far() noexcept;
  std::uint64_t forks_;
};

}  // namespace v1
}  // namespace leanattn
