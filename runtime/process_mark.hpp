// process_mark.hpp -- ProcessMark: whether this is still the process that something was made in. Any thread.
#pragma once

#include <cstdint>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// CUDA's state, threads and held locks do not come along when a process forks; memory that looks like them does.
class ProcessMark {
 public:
  ProcessMark();  ///< of the calling process
  /// False in a child forked since. One load: no system call.
  bool here() const noexcept { return forks_ == forks_so_far(); }
  /// What to say where it is not: context_lost.
  static Error forked();

 private:
  static std::uint64_t forks_so_far() noexcept;
  std::uint64_t forks_;
};

}  // namespace v1
}  // namespace leanattn
