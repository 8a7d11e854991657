// open.cpp -- makes the real parts of an engine: GPU, context, databases, NVRTC.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "cache/cubin/cubin_db.hpp"
#include "cache/environment_variable.hpp"
#include "cache/paths.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/launch_status.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// In `context`, because the handles of default streams mean those of the current one.
Result<bool> capturing_into_graph(const Context& context, CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const CurrentContext scope(context.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto ok = check((*api)->cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing"); !ok)
    return tl::unexpected(std::move(ok.error()));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// The SMs that launches on a stream may use, also by the handle of a default stream.
int sms_of(const Context& context, CUstream_st* stream, int sm_count) {
  const CurrentContext scope(context.get());
  return scope.entered() ? stream_sm_count(stream, sm_count) : sm_count;
}

/// Retains the primary context. The context that was current before stays so.
Result<std::shared_ptr<const Context>> retain_context(int ordinal) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  CUcontext before = nullptr;
  const bool known = (*api)->cuCtxGetCurrent(&before) == CUDA_SUCCESS;
  auto context = Context::retain(ordinal);
  if (!context) return tl::unexpected(std::move(context.error()));
  if (known) (*api)->cuCtxSetCurrent(before);
  return std::make_shared<const Context>(*std::move(context));
}

Result<PreparedKernel> prepare_kernel(const KernelSpec& spec, CubinCache* cubins, const Context& context,
                                      int sm_count) {
  const auto emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  const CurrentContext scope(context.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  CompiledKernel compiled;
  auto loaded = LoadedKernel::prepare(*emitted, cubins, &compiled);
  if (!loaded) return tl::unexpected(std::move(loaded.error()));
  PreparedKernel prepared;
  prepared.threads = loaded->threads();
  prepared.shared_bytes = loaded->shared_bytes();
  prepared.registers = compiled.resources.registers;
  prepared.resident_ctas_per_sm = loaded->resident_ctas_per_sm();
  // The engine may have been made for fewer SMs than its context has.
  prepared.resident_ctas = std::min(loaded->resident_ctas(), std::int64_t{sm_count} * prepared.resident_ctas_per_sm);
  prepared.compile_ms = compiled.from_cache ? 0 : compiled.compile_ms;
  prepared.loaded = *std::move(loaded);
  return prepared;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::open(const EngineCoreOptions& options) {
  auto facts = device_facts(options.device);
  if (!facts) return tl::unexpected(std::move(facts.error()));
  if (facts->arch.major < 8) {
    return fail(ErrorCode::unsupported,
                fmt::format("{} (device {}) has architecture {}", facts->name, options.device, to_string(facts->arch)),
                "Ampere (sm_80) is the oldest supported architecture.");
  }
  auto context = retain_context(options.device);
  if (!context) return tl::unexpected(std::move(context.error()));

  EngineParts parts;
  parts.device = *facts;
  parts.context = *context;
  parts.is_capturing = [held = *context](CUstream_st* stream) { return capturing_into_graph(*held, stream); };
  parts.stream_sms = [held = *context, sms = facts->sm_count](CUstream_st* stream) {
    return sms_of(*held, stream, sms);
  };
  std::optional<std::filesystem::path> directory;
  if (options.disk_cache) {
    auto writable = cache_directory(options.cache_dir);
    auto readable = writable ? writable : cache_directory(options.cache_dir, Access::read);
    if (readable) directory = *std::move(readable);
    if (writable) {
      parts.cache_directory = *std::move(writable);
    } else {
      parts.warnings.push_back(fmt::format("{}: {}",
                                           directory ? "nothing is added to the cache on disk" : "no cache on disk",
                                           writable.error().message));
    }
  }
  std::string warning;
  std::shared_ptr<CubinCache> cubins = open_cubin_db(directory, &warning);
  if (!warning.empty()) parts.warnings.push_back(std::move(warning));
  parts.cubins = cubins;
  parts.prepare = [cubins, held = *context, sms = facts->sm_count](const KernelSpec& spec) {
    return prepare_kernel(spec, cubins.get(), *held, sms);
  };
  parts.open_winners = [model = device_model(*facts), directory, now = current_software(*facts)] {
    return open_layered_winners(model, directory, now);
  };
  warning.clear();
  const std::int64_t wait_bound_ms = wait_bound_from_environment(&warning);
  if (!warning.empty()) parts.warnings.push_back(std::move(warning));
  {
    const CurrentContext scope((*context)->get());
    if (!scope.entered()) return tl::unexpected(scope.entered().error());
    auto status = LaunchStatus::allocate(wait_bound_ms);
    if (!status) return tl::unexpected(std::move(status.error()));
    parts.status = std::make_shared<LaunchStatus>(*std::move(status));
  }
  warning.clear();
  parts.call_capture = CallCapture::from_environment(*facts, &warning);
  if (!warning.empty()) parts.warnings.push_back(std::move(warning));
  const std::string debug = environment_variable("LEANATTN_DEBUG");
  parts.debug = !debug.empty() && debug != "0";
  return std::make_unique<EngineCore>(std::move(parts));
}

}  // namespace v1
}  // namespace leanattn
