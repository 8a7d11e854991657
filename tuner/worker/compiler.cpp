#include "tuner/worker/compiler.hpp"

#include <fmt/format.h>

#include "tuner/backend/compiled_spec.hpp"

namespace leanattn {
inline namespace v1 {

Result<std::unique_ptr<WorkerProcess>> WorkerCompiler::take_worker() {
  {
    const std::lock_guard lock(mutex_);
    while (!idle_.empty()) {
      std::unique_ptr<WorkerProcess> worker = std::move(idle_.back());
      idle_.pop_back();
      if (worker->alive()) return worker;
    }
  }
  Result<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::start(options_.command);
  if (!worker) return worker;
  const auto greeted = (*worker)->call(Hello{.cache_directory = options_.cache_directory},
                                       limit_of(options_, {.kind = WorkerCall::Kind::start}), &stopping_);
  if (!greeted) return fail(ErrorCode::internal, "no process to compile in: " + greeted.error().reason);
  if (const auto* refused = std::get_if<Error>(&*greeted)) return tl::unexpected(*refused);
  return worker;
}

Result<CompiledSpec> WorkerCompiler::compile(const KernelSpec& spec) {
  const Result<EmittedKernel> emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  Result<std::unique_ptr<WorkerProcess>> worker = take_worker();
  if (!worker) return tl::unexpected(worker.error());
  const auto limit = limit_of(options_, {.kind = WorkerCall::Kind::compile, .configs = {Config{.spec = spec}}});
  auto reply = (*worker)->call(CompileKernel{spec}, limit, &stopping_);
  if (!reply) return fail(ErrorCode::compile_failed, reply.error().reason);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(*worker));
  if (const auto* error = std::get_if<Error>(&*reply)) return tl::unexpected(*error);
  auto* kernel = std::get_if<CompiledKernel>(&*reply);
  if (kernel == nullptr) return fail(ErrorCode::internal, "a compiling worker answered something else");
  Result<CompiledSpec> fits = fit_on_device(device_, *emitted, *kernel);
  if (fits) kernels_.try_emplace(kernel_name(spec), std::move(*kernel));
  return fits;
}

const CompiledKernel* WorkerCompiler::find(const KernelSpec& spec) const {
  const std::lock_guard lock(mutex_);
  const auto it = kernels_.find(kernel_name(spec));
  return it == kernels_.end() ? nullptr : &it->second;
}

}  // namespace v1
}  // namespace leanattn
