#include "bench/phases/fix_up_cost.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "bench/phases/subject.hpp"
#include "bench/phases/summary_json.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTokensOfACta = 256;

Config config_for(const DeviceFacts& device, const DecodeProblem& problem, int contributors) {
  Config config{base_spec(device.arch, problem), static_cast<std::int64_t>(problem.kv_heads) * contributors};
  config.spec.load = device.arch.major >= 9 ? LoadPath::bulk : LoadPath::cp_async;
  config.spec.tile = 64, config.spec.warps = 4, config.spec.warp_tokens = 16, config.spec.ctas_per_sm = 1;
  config.spec.stages = 4;
  while (config.spec.stages > 1 && !validate(config.spec)) --config.spec.stages;
  return config;
}

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
  return result;
}

/// The figures of one kind of fix-up, which config.spec names.
Result<Json> cost_of(GpuBackend& backend, const Config& config, CubinCache* cubins) {
  const auto emitted = emit(config.spec);
  if (!emitted) return tl::unexpected(emitted.error());
  auto whole = Subject::make(backend, config, emitted, cubins);
  if (!whole) return tl::unexpected(whole.error());
  if (auto ok = whole->require_correct(); !ok) return tl::unexpected(ok.error());
  const auto stopped = Subject::make(backend, config, emit(config.spec, KernelVariant::unmerged), cubins);
  if (!stopped) return tl::unexpected(stopped.error());
  const auto of_whole = whole->graph(), of_stopped = stopped->graph();
  if (!of_whole) return tl::unexpected(of_whole.error());
  if (!of_stopped) return tl::unexpected(of_stopped.error());
  const auto samples = race(backend, {&*of_whole, &*of_stopped});
  if (!samples) return tl::unexpected(samples.error());
  return Json{{"kernel", kernel_name(config.spec)},
              {"us", summary_json(samples->us[0])},
              {"stopped_us", summary_json(samples->us[1])},
              {"cost_us", summary_json(differences(samples->us[0], samples->us[1]))},
              {"samples_us", samples->us},
              {"noise", samples->noise}};
}

}  // namespace

Result<Json> fix_up_cost(const DeviceFacts& device, int contributors, CubinCache* cubins) {
  DecodeProblem problem;
  problem.kv_heads = std::max(1, device.sm_count / contributors);
  problem.q_heads = 4 * problem.kv_heads;
  const Shape shape{.batch = 1, .longest_context = contributors * kTokensOfACta};
  const auto backend = GpuBackend::create(device, problem, L2Policy::cold, cubins);
  if (!backend) return tl::unexpected(backend.error());
  if (const auto begun = (*backend)->begin_shape(shape); !begun) return tl::unexpected(begun.error());
  Config config = config_for(device, problem, contributors);

  Json forms = Json::object();
  for (const FixUp form : {FixUp::ticket, FixUp::wait}) {
    config.spec.fixup = form;
    Result<Json> cost = cost_of(**backend, config, cubins);
    if (!cost) return cost;
    forms[to_string(form)] = std::move(*cost);
  }
  return Json{{"contributors", contributors},
              {"kv_heads", problem.kv_heads},
              {"context", shape.longest_context},
              {"grid", config.grid},
              {"forms", std::move(forms)}};
}

}  // namespace leanattn
