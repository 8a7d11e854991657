// verify.cpp -- runs the parts of a verify run one after the other and makes its report.
#include "tuner/verify/verify.hpp"

#include <array>
#include <chrono>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "generator/generator.hpp"
#include "generator/parse_enum.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/gpu.hpp"
#include "tuner/verify/compile_queue.hpp"
#include "tuner/verify/planned_run.hpp"
#include "tuner/verify/rank_plan.hpp"
#include "tuner/verify/recurrent_plan.hpp"
#include "tuner/verify/run_plan.hpp"
#include "tuner/verify/runner.hpp"
#include "tuner/verify/themes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kCompiledAhead = 2000;  // that may wait for the GPU, about 50 KB each

/// Compiles the oracle for each score expression of the plan into the cache, beside everything else. Where there is no
/// thread for it, nothing happens, and the oracle is compiled when it is needed.
std::future<void> compile_oracles(const RunPlan& plan, Arch arch, CubinCache& cubins, const std::atomic<bool>* cancel) {
  std::set<std::string> scores;
  for (const VerifyKernel& kernel : plan.kernels) scores.insert(kernel.specs.front().features.score);
  scores.erase("");
  return std::async(std::launch::async | std::launch::deferred, [arch, &cubins, cancel, scores = std::move(scores)] {
    for (const std::string& score : scores) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return;
      static_cast<void>(OracleKernels::compile(arch, &cubins, score));
    }
  });
}

/// The parts about attention.
Result<std::vector<VerifyGroup>> verify_attention(const RunPlan& plan, const VerifyOptions& options,
                                                  const DeviceFacts& device, CubinCache* cubins,
                                                  const VerifySink& group_done, const std::atomic<bool>* cancel) {
  // Compilation takes longest, so it goes on while the oracle is made and the GPU works. These cubins are not kept,
  // because they would fill the user's cache.
  CompileQueue queue(plan.kernels, nullptr, 0, kCompiledAhead);
  const auto oracles = cubins == nullptr ? std::future<void>() : compile_oracles(plan, device.arch, *cubins, cancel);
  auto runner = VerifyRunner::create(options, device, cubins, group_done, cancel);
  if (!runner) return tl::unexpected(runner.error());
  const auto loaded = load_representatives(*runner, plan.representatives, queue);
  if (!loaded) return tl::unexpected(loaded.error());
  if (auto ok = verify_themes(*runner, *loaded); !ok) return tl::unexpected(ok.error());
  for (const RunPart& part : plan.parts) {
    const auto ok = part.rank_lengths ? verify_ranks(*runner, part.of(plan.kernels), queue, part.rank_lengths)
                                      : verify_planned(*runner, part.of(plan.kernels), queue, part.run);
    if (!ok) return tl::unexpected(ok.error());
  }
  return runner->take_groups();
}

}  // namespace

std::string_view to_string(VerifyPart part) {
  switch (part) {
    case VerifyPart::themes: return "themes";
    case VerifyPart::features: return "features";
    case VerifyPart::prefill: return "prefill";
    case VerifyPart::random: return "random";
    case VerifyPart::combinations: return "combinations";
    case VerifyPart::groups: return "groups";
    case VerifyPart::recurrent: return "recurrent";
  }
  return "themes";
}

Result<VerifyPart> parse_verify_part(std::string_view text) {
  return parse_enum("part", text,
                    std::array{VerifyPart::themes, VerifyPart::features, VerifyPart::prefill, VerifyPart::random,
                               VerifyPart::combinations, VerifyPart::groups, VerifyPart::recurrent});
}

std::size_t random_rank_combinations(const VerifyOptions& options) { return options.extended ? 600 : 60; }

std::size_t random_combinations(const VerifyOptions& options) { return options.extended ? 20000 : 2000; }

Result<VerifyReport> verify(const VerifyOptions& options, CubinCache* cubins, const VerifySink& group_done,
                            const std::atomic<bool>* cancel) {
  const auto started = std::chrono::steady_clock::now();
  const auto device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  const auto context = Context::retain(options.device);
  if (!context) return tl::unexpected(context.error());
  const RunPlan plan = plan_run(device->arch, options);
  const bool with_recurrent = !options.only || *options.only == VerifyPart::recurrent;
  const auto recurrent = with_recurrent ? recurrent_plan(device->arch, options) : std::vector<RecurrentSpec>();
  if (plan.kernels.empty() && recurrent.empty()) {
    return fail(ErrorCode::invalid_argument, "no kernel has '" + options.filter + "' in its name",
                "Kernel names look like " + kernel_name(KernelSpec{}) + ".");
  }
  std::vector<VerifyGroup> groups;
  if (!plan.kernels.empty()) {
    auto checked = verify_attention(plan, options, *device, cubins, group_done, cancel);
    if (!checked) return tl::unexpected(checked.error());
    groups = *std::move(checked);
  }
  auto more = verify_recurrent(recurrent, options, group_done, cancel);
  if (!more) return tl::unexpected(more.error());
  std::move(more->begin(), more->end(), std::back_inserter(groups));

  VerifyReport report;
  report.device = *device;
  report.seed = options.seed;
  report.coverage = plan.coverage;
  report.interrupted = cancel != nullptr && cancel->load(std::memory_order_relaxed);
  report.groups = std::move(groups);
  std::int64_t cases = 0, failed = 0;
  for (const VerifyGroup& group : report.groups) {
    cases += group.cases;
    failed += group.failed;
  }
  report.passed = failed == 0 && cases > 0 && !report.interrupted;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

std::string to_json(const VerifyReport& report) {
  nlohmann::json json;
  json["schema_version"] = 1;
  json["device"] = {{"name", report.device.name},
                    {"arch", to_string(report.device.arch)},
                    {"sm_count", report.device.sm_count},
                    {"driver_version", report.device.driver_version},
                    {"driver_release", report.device.driver_release}};
  json["nvrtc_version"] = nvrtc_version(report.device.arch).value_or("");
  json["generator_revision"] = generator_revision();
  json["seed"] = report.seed;
  json["seconds"] = report.seconds;
  json["passed"] = report.passed;
  json["interrupted"] = report.interrupted;
  if (const auto& coverage = report.coverage) {
    json["coverage"] = {
        {"kernels", coverage->kernels}, {"of_kernels", coverage->of_kernels}, {"traits", coverage->traits}};
  }
  json["groups"] = nlohmann::json::array();
  for (const VerifyGroup& group : report.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"kernels", group.kernels},
                              {"refused", group.refused},
                              {"cases", group.cases},
                              {"failed", group.failed},
                              {"worst_error_ratio", group.worst_error_ratio},
                              {"seconds", group.seconds},
                              {"failures", group.failures}});
  }
  return json.dump(2);
}

}  // namespace v1
}  // namespace leanattn
