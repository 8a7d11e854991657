// background_builds.cpp -- the builder's queue and its thread.
#include "runtime/engine/background_builds.hpp"

#include "runtime/cuda/driver.hpp"
#include "runtime/engine/own_thread.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// While a thread captures a stream in global mode, no other thread may load a kernel, unless that thread declares that
/// its calls have nothing to do with stream captures (CUDA driver API, cuThreadExchangeStreamCaptureMode).
void ignore_stream_captures() {
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
  ignore_stream_captures();
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
