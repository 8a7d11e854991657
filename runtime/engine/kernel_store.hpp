// kernel_store.hpp -- KernelStore: the kernels that an engine has loaded, each prepared once however many threads ask
// for it. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// A kernel that is ready to launch, and what is known of it from its compilation.
struct PreparedKernel {
  std::optional<LoadedKernel> loaded;  ///< empty only where a test prepares without a GPU
  int threads = 0;
  int shared_bytes = 0;
  int registers = 0;
  int resident_ctas_per_sm = 0;
  std::int64_t resident_ctas = 0;  ///< on the whole GPU
  double compile_ms = 0;           ///< milliseconds; 0: it came from cubin.db
};

/// A text that differs between any two kernels. Their names do not, because these say little about features.
std::string kernel_identity(const KernelSpec& spec);

class KernelStore {
 public:
  /// Generates, compiles and loads a kernel. It is called by one thread at a time for each spec, but by several threads
  /// for different specs.
  using Prepare = std::function<Result<PreparedKernel>(const KernelSpec&)>;
  explicit KernelStore(Prepare prepare) : prepare_(std::move(prepare)) {}

  /// The kernel, which the first caller prepares while the others wait. An error goes to all who waited for it and is
  /// not remembered. Errors: those of prepare; out_of_memory or internal when it throws.
  Result<std::shared_ptr<const PreparedKernel>> get(const KernelSpec& spec);
  /// Whether get() would return at once.
  bool ready(const KernelSpec& spec) const;
  /// The specs of those kernels that are ready and `wanted`.
  std::vector<KernelSpec> ready_specs(const std::function<bool(const KernelSpec&)>& wanted) const;
  std::size_t size() const;

 private:
  using Outcome = Result<std::shared_ptr<const PreparedKernel>>;
  Outcome run(const KernelSpec& spec) const;

  Prepare prepare_;
  mutable std::mutex mutex_;
  struct Flight {
    KernelSpec spec;
    std::shared_future<Outcome> outcome;
    bool landed() const { return outcome.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  };
  std::unordered_map<std::string, Flight> flights_;  ///< by kernel_identity(); those that have landed stay
};

}  // namespace v1
}  // namespace leanattn
