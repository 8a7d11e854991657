// background_builds.cpp -- the builder's queue and its thread.
#include "runtime/engine/background_builds.hpp"

#include "runtime/cuda/beside_captures.hpp"
#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {

BackgroundBuilds::~BackgroundBuilds() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundBuilds::request(const KernelSpec& spec) {
  const std::string identity = kernel_identity(spec);
  const std::lock_guard lock(mutex_);
  if (failed_.contains(identity) || known_.contains(identity)) return;
  // Without a thread the stand-in stays, and the next request tries again.
  if (!ensure_own_thread(thread_, [this] { run(); })) return;
  known_.insert(identity);
  queue_.push_back(spec);
  wake_.notify_one();
}

bool BackgroundBuilds::has_failed(const KernelSpec& spec) const {
  const std::lock_guard lock(mutex_);
  return failed_.contains(kernel_identity(spec));
}

void BackgroundBuilds::forgive() {
  const std::lock_guard lock(mutex_);
  failed_.clear();
}

void BackgroundBuilds::run() {
  const BesideCaptures relaxed;  // else nobody may capture a stream in global mode while a kernel is loaded
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const KernelSpec spec = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool built = kernels_.get(spec).has_value();
    lock.lock();
    const std::string identity = kernel_identity(spec);
    known_.erase(identity);
    if (!built) failed_.insert(identity);
    lock.unlock();
    done_();
    lock.lock();
  }
}

}  // namespace v1
}  // namespace leanattn
