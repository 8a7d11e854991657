// background_builds.hpp -- BackgroundBuilds: prepares kernels one after the other on a thread of its own. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/engine/kernel_store.hpp"

namespace leanattn {
inline namespace v1 {

/// There is one thread, which the first request starts. Compilations in one process hardly gain from more, and decode
/// steps need the other cores.
class BackgroundBuilds {
 public:
  /// `done` is called on the builder's thread after each build, also after one that failed. `kernels` must outlive
  /// this.
  BackgroundBuilds(KernelStore& kernels, std::function<void()> done) : kernels_(kernels), done_(std::move(done)) {}
  BackgroundBuilds(const BackgroundBuilds&) = delete;
  BackgroundBuilds& operator=(const BackgroundBuilds&) = delete;
  /// Waits for the build in progress and drops the rest.
  ~BackgroundBuilds();

  /// Has `spec` prepared, unless this is under way or has failed since the last forgive(). Returns at once.
  void request(const KernelSpec& spec);
  /// Whether preparing `spec` has failed here. It is not tried again before forgive(), because a kernel that cannot be
  /// built on this machine would otherwise keep the builder busy for ever.
  bool has_failed(const KernelSpec& spec) const;
  /// Forgets what has failed.
  void forgive();

 private:
  void run();

  KernelStore& kernels_;
  std::function<void()> done_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_;
  std::deque<KernelSpec> queue_;
  std::set<std::string> known_;  ///< identities that are queued or being built
  std::set<std::string> failed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
