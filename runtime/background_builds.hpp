// background_builds.hpp -- BackgroundBuilds: kernels prepared off the caller's thread, one after another. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/engine_kernels.hpp"

namespace leanattn {
inline namespace v1 {

/// One thread, started by the first request: compiles of one process hardly gain from more, and decode steps want the
/// other cores.
class BackgroundBuilds {
 public:
  /// `done` is called on the builder's thread after each build, failed or not. `kernels` must outlive this.
  BackgroundBuilds(KernelStore& kernels, std::function<void()> done) : kernels_(kernels), done_(std::move(done)) {}
  BackgroundBuilds(const BackgroundBuilds&) = delete;
  BackgroundBuilds& operator=(const BackgroundBuilds&) = delete;
  /// Waits for the build in progress and forgets the rest.
  ~BackgroundBuilds();

  /// Has `spec` prepared, unless that is under way or has failed since the last forgive(). Returns at once.
  void request(const KernelSpec& spec);
  /// Whether preparing `spec` here has failed. It is not tried again until forgive(): a kernel that this machine cannot
  /// build would keep the builder busy for ever.
  bool has_failed(const KernelSpec& spec) const;
  void forgive();

 private:
  void run();

  KernelStore& kernels_;
  std::function<void()> done_;
  mutable std::mutex mutex_;  ///< what follows
  std::condition_variable wake_;
  std::deque<KernelSpec> queue_;
  std::set<std::string> known_;  ///< identities that are queued or being built
  std::set<std::string> failed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
