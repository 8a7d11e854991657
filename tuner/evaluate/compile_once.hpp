// compile_once.hpp -- CompileOnce: a backend over another backend that compiles each kernel only once, for several
// tuning sessions in a row. Any thread may call compile(); only the sessions' thread may call the rest.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "tuner/backend/backend.hpp"

namespace leanattn {
inline namespace v1 {

class CompileOnce final : public TuneBackend {
 public:
  explicit CompileOnce(TuneBackend& backend) : backend_(backend) {}

  /// Two threads that ask for the same spec at the same time may both compile it. Both get the result of the first.
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
