// kernel_store.cpp -- one promise for each kernel, which the thread that comes first makes and keeps.
#include "runtime/engine/kernel_store.hpp"

#include <fmt/format.h>

#include <exception>

namespace leanattn {
inline namespace v1 {

KernelStore::Outcome KernelStore::run(const KernelSpec& spec) const {
  try {
    auto prepared = prepare_(spec);
    if (!prepared) return tl::unexpected(std::move(prepared.error()));
    return std::make_shared<const PreparedKernel>(*std::move(prepared));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, fmt::format("out of host memory while preparing {}", kernel_name(spec)));
  } catch (const std::exception& exception) {
    return fail(ErrorCode::internal, fmt::format("preparing {}: {}", kernel_name(spec), exception.what()));
  }
}

std::string kernel_identity(const KernelSpec& spec) {
  return fmt::format("{} {:016x}", kernel_name(spec), features_hash(spec.features));
}

Result<std::shared_ptr<const PreparedKernel>> KernelStore::get(const KernelSpec& spec) {
  const std::string name = kernel_identity(spec);
  std::promise<Outcome> promise;
  {
    std::unique_lock lock(mutex_);
    if (const auto found = flights_.find(name); found != flights_.end()) {
      const auto outcome = found->second.outcome;
      lock.unlock();
      return outcome.get();
    }
    flights_.emplace(name, Flight{spec, promise.get_future().share()});
  }
  Outcome outcome = run(spec);
  if (!outcome) {
    // Forgotten before the promise is kept, so that a caller who sees the error and asks again gets a new attempt.
    const std::lock_guard lock(mutex_);
    flights_.erase(name);
  }
  promise.set_value(outcome);
  return outcome;
}

bool KernelStore::ready(const KernelSpec& spec) const {
  const std::lock_guard lock(mutex_);
  const auto found = flights_.find(kernel_identity(spec));
  return found != flights_.end() && found->second.landed();
}

std::vector<KernelSpec> KernelStore::ready_specs(const std::function<bool(const KernelSpec&)>& wanted) const {
  std::vector<KernelSpec> specs;
  const std::lock_guard lock(mutex_);
  for (const auto& [identity, flight] : flights_) {
    if (wanted(flight.spec) && flight.landed()) specs.push_back(flight.spec);
  }
  return specs;
}

std::size_t KernelStore::size() const {
  const std::lock_guard lock(mutex_);
  return flights_.size();
}

}  // namespace v1
}  // namespace leanattn
