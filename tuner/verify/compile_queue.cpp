// compile_queue.cpp -- threads take the list's indices in order, and results wait in a map until they are asked for.
#include "tuner/verify/compile_queue.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace leanattn {
inline namespace v1 {

CompiledChoice compile_choice(const VerifyKernel& kernel, CubinCache* cubins) {
  CompiledChoice choice;
  choice.kernel = &kernel;
  for (const KernelSpec& spec : kernel.specs) {
    auto emitted = emit(spec);
    if (!emitted) {
      choice.compiled = tl::unexpected(emitted.error());
      return choice;
    }
    choice.emitted = std::move(*emitted);
    choice.compiled = compile(choice.emitted, cubins);
    if (choice.compiled || choice.compiled.error().code != ErrorCode::kernel_rejected) return choice;
    ++choice.rejected;
  }
  return choice;
}

CompileQueue::CompileQueue(const std::vector<VerifyKernel>& kernels, CubinCache* cubins, int threads, std::size_t ahead)
    : kernels_(kernels), cubins_(cubins), ahead_(std::max<std::size_t>(ahead, 1)) {
  const std::size_t wanted =
      threads > 0 ? static_cast<std::size_t>(threads) : std::max(1u, std::thread::hardware_concurrency());
  threads_.start(std::min(wanted, kernels.size()), [this] { work(); });
}

CompileQueue::~CompileQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.join();
}

std::optional<CompiledChoice> CompileQueue::next() {
  std::unique_lock lock(mutex_);
  if (consumed_ == kernels_.size()) return std::nullopt;
  if (threads_.empty()) return compile_choice(kernels_[consumed_++], cubins_);
  changed_.wait(lock, [&] { return ready_.contains(consumed_); });
  auto node = ready_.extract(consumed_++);
  lock.unlock();
  changed_.notify_all();
  return std::move(node.mapped());
}

void CompileQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || started_ == kernels_.size() || started_ < consumed_ + ahead_; });
    if (stopping_ || started_ == kernels_.size()) return;
    const std::size_t mine = started_++;
    lock.unlock();
    CompiledChoice choice = compile_choice(kernels_[mine], cubins_);
    lock.lock();
    ready_.emplace(mine, std::move(choice));
    changed_.notify_all();
  }
}

}  // namespace v1
}  // namespace leanattn
