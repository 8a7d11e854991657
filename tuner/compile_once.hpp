// compile_once.hpp -- CompileOnce: a TuneBackend over another one, for several sessions in a row: each kernel is
// compiled once. As a TuneBackend: compile() from any thread, everything else from the sessions' thread.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tuner/tune_backend.hpp"

namespace leanattn {
inline namespace v1 {

class CompileOnce final : public TuneBackend {
 public:
  explicit CompileOnce(TuneBackend& backend) : backend_(backend) {}

  /// Two threads that ask for one spec at once may both compile it; they get the first one's result.
  Result<CompiledSpec> compile(const KernelSpec& spec) override {
    const std::string name = kernel_name(spec);
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = results_.find(name); it != results_.end()) return it->second;
    }
    Result<CompiledSpec> result = backend_.compile(spec);
    const std::lock_guard lock(mutex_);
    return results_.emplace(name, std::move(result)).first->second;
  }
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override {
    return backend_.adopt(spec, kernel);
  }
  Result<double> begin_shape(const Shape& shape) override { return backend_.begin_shape(shape); }
  Result<CheckOutcome> check(const Config& config) override { return backend_.check(config); }
  Result<RoundTimes> time(std::span<const Config> configs) override { return backend_.time(configs); }
  std::optional<CheckOutcome> condemned(const Config& config) const override { return backend_.condemned(config); }
  double now_s() const override { return backend_.now_s(); }

 private:
  TuneBackend& backend_;
  std::mutex mutex_;
  std::map<std::string, Result<CompiledSpec>> results_;  // by kernel_name
};

}  // namespace v1
}  // namespace leanattn
