#include "tuner/search/offline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "generator/kernel_layout.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/one_gpu.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/model/search_space.hpp"
#include "tuner/search/search_effort.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Compiles as a session would. A kernel that does not fit an SM is rejected with a short reason.
Result<CompiledSpec> compile_offline(const KernelSpec& spec, const DeviceFacts& device, CubinCache* cubins) {
  const Result<EmittedKernel> emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  const Result<CompiledKernel> kernel = compile(*emitted, cubins);
  if (!kernel) return tl::unexpected(kernel.error());
  const int resident = resident_ctas_per_sm(device, kernel->resources.registers, emitted->threads,
                                            emitted->shared_bytes + kernel->resources.static_shared_bytes);
  if (resident < 1) {
    return fail(ErrorCode::kernel_rejected, fmt::format("does not fit an SM: {} registers x {} threads",
                                                        kernel->resources.registers, emitted->threads));
  }
  return CompiledSpec{.registers = kernel->resources.registers, .resident = resident, .compile_ms = kernel->compile_ms};
}

/// The registers and spills of a rejected kernel come from the compiler's log.
OfflineCandidate describe(const Config& config, const Result<CompiledSpec>& compiled, double predicted_us) {
  OfflineCandidate candidate;
  candidate.config = config;
  candidate.shared_bytes = layout_of(config.spec).shared_bytes;
  if (compiled) {
    candidate.accepted = true;
    candidate.registers = compiled->registers;
    candidate.resident_ctas = compiled->resident;
    candidate.compile_ms = compiled->compile_ms;
    candidate.predicted_us = predicted_us;
  } else {
    candidate.reason = compiled.error().message;
    const KernelResources resources = parse_ptxas_log(compiled.error().log);
    candidate.registers = resources.registers;
    candidate.spill_bytes = resources.spill_store_bytes + resources.spill_load_bytes;
  }
  return candidate;
}

}  // namespace

std::vector<OfflineTie> model_ties(const OfflineShape& shape) {
  std::vector<OfflineTie> ties;
  for (std::size_t i = 0; i < shape.candidates.size() && shape.candidates[i].accepted; ++i) {
    const bool tied = !ties.empty() && shape.candidates[i].predicted_us <=
                                           (1 + kModelResolution) * shape.candidates[ties.back().first].predicted_us;
    if (!tied) ties.push_back({i, 0});
    ++ties.back().count;
  }
  return ties;
}

Result<std::vector<OfflineShape>> tune_offline(const TuneRequest& request, const DeviceFacts& device,
                                               CubinCache* cubins, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel) {
  if (auto ok = one_gpu_only(request.problem, "tuning without a GPU"); !ok) return tl::unexpected(ok.error());
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (auto ok = require_launches(device, request.problem); !ok) return tl::unexpected(ok.error());
  const double started = now_s();
  const double ends = request.budget ? started + static_cast<double>(request.budget->count()) / 1000.0
                                     : std::numeric_limits<double>::infinity();
  const auto stop = [&] { return now_s() >= ends || (cancel != nullptr && cancel->load()); };
  const std::vector<DecodeStep> steps = steps_of(request, device);

  const CostModel model = default_model(device);
  const SearchEffort effort = effort_for(compile_thread_count(request.compile_threads));
  std::vector<KernelSpec> specs;
  for (const DecodeStep& step : steps) {
    const KernelSpec spec = default_config(step).spec;
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }
  for (const KernelSpec& spec : choose_specs(model, steps, effort.specs)) {
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }

  std::vector<OfflineShape> result;
  for (const Shape& shape : request.shapes) result.push_back({shape, {}});
  if (!request.dry_run) {
    // This comes first, because without NVRTC every single candidate would be rejected for the same reason.
    if (const Result<std::string> version = nvrtc_version(device.arch); !version)
      return tl::unexpected(version.error());
  }
  std::optional<CompilePool> pool;
  if (!request.dry_run) {
    pool.emplace([&](const KernelSpec& spec) { return compile_offline(spec, device, cubins); },
                 request.compile_threads);
    pool->enqueue(specs);
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Result<CompiledSpec> guessed = CompiledSpec{.resident = guess_resident(device, specs[i])};
    const Result<CompiledSpec>* compiled = pool ? pool->wait(specs[i], stop) : &guessed;
    if (compiled == nullptr) {
      for (OfflineShape& shape : result) shape.skipped = static_cast<int>(specs.size() - i);
      break;
    }
    if (!*compiled && compiled->error().code == ErrorCode::unsupported && i == 0)
      return tl::unexpected(compiled->error());
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const int resident = *compiled ? (*compiled)->resident : 1;
      const auto ranked = rank_grids(model.of(specs[i]), steps[s], specs[i], resident);
      if (!ranked.empty())
        result[s].candidates.push_back(describe(ranked.front().config, *compiled, ranked.front().predicted_us));
    }
    if (progress && pool) {
      const double elapsed = now_s() - started;
      progress({.shape = request.shapes.front(),
                .shape_index = 0,
                .shape_count = static_cast<int>(request.shapes.size()),
                .phase = "compile",
                .candidate = kernel_name(specs[i]),
                .done = static_cast<int>(i + 1),
                .total = static_cast<int>(specs.size()),
                .best_us = 0,
                .elapsed_s = elapsed,
                .eta_s = elapsed / static_cast<double>(i + 1) * static_cast<double>(specs.size() - i - 1)});
    }
  }
  if (pool) pool->abandon();
  for (OfflineShape& shape : result) {
    std::stable_sort(shape.candidates.begin(), shape.candidates.end(),
                     [](const OfflineCandidate& a, const OfflineCandidate& b) {
                       if (a.accepted != b.accepted) return a.accepted;
                       if (a.predicted_us != b.predicted_us) return a.predicted_us < b.predicted_us;
                       return kernel_name(a.config.spec) < kernel_name(b.config.spec);
                     });
  }
  return result;
}

}  // namespace v1
}  // namespace leanattn
