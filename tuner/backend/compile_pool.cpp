#include "tuner/backend/compile_pool.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace leanattn {
inline namespace v1 {
namespace {

// How often a waiting caller is asked whether it gives up.
constexpr auto kAskAgain = std::chrono::milliseconds(10);

}  // namespace

int compile_thread_count(int wanted) {
  if (wanted > 0) return wanted;
  const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  return cores > 2 ? cores - 1 : cores;
}

CompilePool::CompilePool(Compile compile, int threads) : compile_(std::move(compile)) {
  threads_.start(static_cast<std::size_t>(compile_thread_count(threads)), [this] { work(); });
}

CompilePool::~CompilePool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_all();
  threads_.join();
}

void CompilePool::enqueue(std::span<const KernelSpec> specs, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<KernelSpec> added;
    for (const KernelSpec& spec : specs) {
      Entry& entry = entries_[kernel_name(spec)];
      if (entry.queued) {
        const auto waits = urgent ? std::find(waiting_.begin(), waiting_.end(), spec) : waiting_.end();
        if (waits == waiting_.end()) continue;
        waiting_.erase(waits);
      }
      entry.queued = true;
      added.push_back(spec);
    }
    waiting_.insert(urgent ? waiting_.begin() : waiting_.end(), added.begin(), added.end());
  }
  work_there_.notify_all();
}

void CompilePool::abandon() {
  {
    const std::lock_guard lock(mutex_);
    for (const KernelSpec& spec : waiting_) entries_[kernel_name(spec)].queued = false;
    waiting_.clear();
  }
  result_there_.notify_all();
}

const Result<CompiledSpec>* CompilePool::find(const KernelSpec& spec) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(kernel_name(spec));
  return it != entries_.end() && it->second.result ? &*it->second.result : nullptr;
}

const Result<CompiledSpec>* CompilePool::wait(const KernelSpec& spec, const std::function<bool()>& give_up) {
  std::unique_lock lock(mutex_);
  const auto it = entries_.find(kernel_name(spec));
  if (it == entries_.end()) return nullptr;
  Entry& entry = it->second;
  while (!entry.result && entry.queued) {
    lock.unlock();
    const bool enough = give_up();
    lock.lock();
    if (entry.result || !entry.queued) break;
    if (enough) return nullptr;
    if (const auto own = std::find(waiting_.begin(), waiting_.end(), spec); threads_.empty() && own != waiting_.end()) {
      waiting_.erase(own);
      compile(spec, lock);
      continue;
    }
    result_there_.wait_for(lock, kAskAgain);
  }
  return entry.result ? &*entry.result : nullptr;
}

void CompilePool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_there_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const KernelSpec spec = waiting_.front();
    waiting_.pop_front();
    compile(spec, lock);
  }
}

void CompilePool::compile(const KernelSpec& spec, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  Result<CompiledSpec> result = compile_(spec);
  lock.lock();
  entries_[kernel_name(spec)].result = std::move(result);
  result_there_.notify_all();
}

}  // namespace v1
}  // namespace leanattn
