// background_builds.cpp -- the builder's queue and its thread.
#include "runtime/background_builds.hpp"

#include "runtime/driver.hpp"
#include "runtime/own_thread.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Loading a kernel is forbidden to every thread while another captures a stream in global mode, unless the thread
/// says that its calls have nothing to do with any capture (CUDA driver API, cuThreadExchangeStreamCaptureMode).
void leave_captures_alone() {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (const auto api = driver()) (*api)->cuThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace

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
  if (failed_.contains(identity) || !known_.insert(identity).second) return;
  queue_.push_back(spec);
  if (!thread_.joinable()) thread_ = start_own_thread([this] { run(); });
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
  leave_captures_alone();
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
