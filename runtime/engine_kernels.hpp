// engine_kernels.hpp -- KernelStore: the kernels an engine has loaded, each prepared once however many threads ask.
// Thread-safe.
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

#include "runtime/kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// A kernel ready to launch, and what its compile said.
struct PreparedKernel {
  std::optional<LoadedKernel> loaded;  ///< empty only where a test prepares without a GPU
  int threads = 0;
  int shared_bytes = 0;
  int registers = 0;
  int resident_ctas_per_sm = 0;
  std::int64_t resident_ctas = 0;  ///< on the whole device
  double compile_ms = 0;           ///< 0: from cubin.db
};

/// Tells any two kernels apart: a name does so only as far as its letters for features go.
std::string kernel_identity(const KernelSpec& spec);

class KernelStore {
 public:
  /// Generates, compiles and loads. Called by one thread at a time for one spec, by several for different ones.
  using Prepare = std::function<Result<PreparedKernel>(const KernelSpec&)>;
  explicit KernelStore(Prepare prepare) : prepare_(std::move(prepare)) {}

  /// The kernel, prepared by the first caller while the others wait. A failure goes to everybody who waited for it and
  /// is not remembered. Errors: prepare's; internal when it throws.
  Result<std::shared_ptr<const PreparedKernel>> get(const KernelSpec& spec);
  /// Whether get() would return without preparing or waiting.
  bool ready(const KernelSpec& spec) const;
  /// Specs of the kernels that are ready, of which `wanted` is true.
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
  std::unordered_map<std::string, Flight> flights_;  ///< by kernel_identity; done ones stay
};

}  // namespace v1
}  // namespace leanattn
