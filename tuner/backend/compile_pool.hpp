// compile_pool.hpp -- CompilePool: compiles specs on several threads, in the order in which they were asked for, while
// the caller measures what is ready. One thread makes and destroys it. Any thread may ask it for kernels, since
// sessions on equal devices share one. Its own threads only compile.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/threads.hpp"
#include "tuner/backend/backend.hpp"

namespace leanattn {
inline namespace v1 {

class CompilePool {
 public:
  using Compile = std::function<Result<CompiledSpec>(const KernelSpec&)>;

  /// `compile` is called from `threads` threads at once, or from as many as there are. threads 0: one per core.
  CompilePool(Compile compile, int threads);
  /// Waits for the compilations that have begun. The rest is abandoned.
  ~CompilePool();
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  /// Each spec is compiled once, however often it is asked for. Urgent ones come before everything that waits, even
  /// when they have been asked for before.
  void enqueue(std::span<const KernelSpec> specs, bool urgent = false);
  /// Drops what has not been started.
  void abandon();

  /// The result, or null when it is not there yet or was never asked for. It stays valid as long as the pool.
  const Result<CompiledSpec>* find(const KernelSpec& spec) const;
  /// Waits for the result; a pool without threads compiles it on that of the caller. Null when `give_up`, which is
  /// asked now and then, said true first, or when the spec will not be compiled.
  const Result<CompiledSpec>* wait(const KernelSpec& spec, const std::function<bool()>& give_up);

 private:
  struct Entry {
    bool queued = false;
    std::optional<Result<CompiledSpec>> result;
  };
  void work();
  /// Compiles on this thread. Called with the lock, which it gives up meanwhile.
  void compile(const KernelSpec& spec, std::unique_lock<std::mutex>& lock);

  Compile compile_;
  mutable std::mutex mutex_;
  std::condition_variable work_there_, result_there_;
  std::map<std::string, Entry> entries_;  // by kernel_name; its nodes never move
  std::deque<KernelSpec> waiting_;
  bool stopping_ = false;
  ThreadGroup threads_;
};

/// How many threads to compile with: `wanted`, or one per core, leaving one core to the measurements where there are
/// more than two.
int compile_thread_count(int wanted);

}  // namespace v1
}  // namespace leanattn
