// verify.cpp -- runs the parts of a verify run one after the other and makes its report.
#include "tuner/verify/verify.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "generator/generator.hpp"
#include "generator/parse_enum.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/gpu.hpp"
#include "tuner/verify/compile_queue.hpp"
#include "tuner/verify/feature_plan.hpp"
#include "tuner/verify/planned_run.hpp"
#include "tuner/verify/random_plan.hpp"
#include "tuner/verify/rank_plan.hpp"
#include "tuner/verify/runner.hpp"
#include "tuner/verify/themes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kCompiledAhead = 2000;  // that may wait for the GPU, about 50 KB each

/// Keeps the specs whose kernel_name contains the filter, and the kernels that have any left.
std::vector<VerifyKernel> filtered(std::vector<VerifyKernel> kernels, const std::string& filter) {
  if (filter.empty()) return kernels;
  for (VerifyKernel& kernel : kernels) {
    std::erase_if(kernel.specs,
                  [&](const KernelSpec& spec) { return kernel_name(spec).find(filter) == std::string::npos; });
  }
  std::erase_if(kernels, [](const VerifyKernel& kernel) { return kernel.specs.empty(); });
  return kernels;
}

std::vector<VerifyKernel> plan(VerifyPart part, Arch arch, const VerifyOptions& options) {
  switch (part) {
    case VerifyPart::themes: return representative_kernels(arch, options.quick);
    case VerifyPart::features: return feature_kernels(arch, options.quick);
    case VerifyPart::random:
      // The compiler refuses about one in fifty, so some more are planned than are asked for.
      return random_kernels(arch, options.seed, random_combinations(options) / kRandomCasesPerKernel * 26 / 25);
    case VerifyPart::combinations: return verify_combinations(arch, options.quick);
    case VerifyPart::groups: {
      auto kernels = rank_kernels(arch, options.quick);
      if (options.quick) return kernels;
      auto parts = rank_part_kernels(arch);
      std::move(parts.begin(), parts.end(), std::back_inserter(kernels));
      return kernels;
    }
  }
  return {};
}

}  // namespace

std::string_view to_string(VerifyPart part) {
  switch (part) {
    case VerifyPart::themes: return "themes";
    case VerifyPart::features: return "features";
    case VerifyPart::random: return "random";
    case VerifyPart::combinations: return "combinations";
    case VerifyPart::groups: return "groups";
  }
  return "themes";
}

Result<VerifyPart> parse_verify_part(std::string_view text) {
  return parse_enum("part", text,
                    std::array{VerifyPart::themes, VerifyPart::features, VerifyPart::random, VerifyPart::combinations,
                               VerifyPart::groups});
}

std::size_t random_rank_combinations(const VerifyOptions& options) {
  return options.quick ? 8 : options.extended ? 600 : 60;
}

std::size_t random_combinations(const VerifyOptions& options) {
  return options.quick ? 200 : options.extended ? 20000 : 2000;
}

Result<VerifyReport> verify(const VerifyOptions& options, CubinCache* cubins, const VerifySink& group_done,
                            const std::atomic<bool>* cancel) {
  const auto started = std::chrono::steady_clock::now();
  const auto device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  const auto context = Context::retain(options.device);
  if (!context) return tl::unexpected(context.error());
  auto runner = VerifyRunner::create(options, *device, cubins, group_done, cancel);
  if (!runner) return tl::unexpected(runner.error());

  const auto kernels_of = [&](VerifyPart part) {
    const bool wanted = !options.only || *options.only == part;
    return wanted ? filtered(plan(part, device->arch, options), options.filter) : std::vector<VerifyKernel>();
  };
  const auto representative = kernels_of(VerifyPart::themes);
  // All parts are in one list, so that one queue compiles them in order.
  std::vector<VerifyKernel> kernels;
  std::vector<std::size_t> ends;
  const auto cases_of = [&](const KernelSpec& spec) { return random_cases(spec, options.seed); };
  const std::pair<VerifyPart, PlannedRun> kParts[] = {
      {VerifyPart::features,
       {.name = "features", .cases = feature_cases, .cross_check_every = 5, .every_group_runs = true}},
      {VerifyPart::random, {.name = "random", .cases = cases_of, .cross_check_every = 7}},
      {VerifyPart::combinations, {.name = "combinations", .cases = combination_cases}},
  };
  for (const auto& [part, run] : kParts) {
    auto more = kernels_of(part);
    std::move(more.begin(), more.end(), std::back_inserter(kernels));
    ends.push_back(kernels.size());
  }
  const auto of_ranks = kernels_of(VerifyPart::groups);
  std::vector<VerifyKernel> random_ranks;
  if (!options.only || *options.only == VerifyPart::groups)
    random_ranks =
        filtered(random_rank_kernels(device->arch, options.seed, random_rank_combinations(options)), options.filter);
  if (representative.empty() && kernels.empty() && of_ranks.empty() && random_ranks.empty()) {
    return fail(ErrorCode::invalid_argument, "no kernel has '" + options.filter + "' in its name",
                "Kernel names look like " + kernel_name(KernelSpec{}) + ".");
  }
  const auto loaded = load_representatives(*runner, representative);
  if (!loaded) return tl::unexpected(loaded.error());
  // Compilation takes longest, so it goes on while the themes keep the GPU busy. These cubins are not kept, because
  // they would fill the user's cache.
  CompileQueue queue(kernels, nullptr, 0, kCompiledAhead);
  if (auto ok = verify_themes(*runner, *loaded); !ok) return tl::unexpected(ok.error());
  std::size_t begin = 0;
  for (std::size_t i = 0; i < std::size(kParts); begin = ends[i++]) {
    const std::span part(kernels.data() + begin, ends[i] - begin);
    if (auto ok = verify_planned(*runner, part, queue, kParts[i].second); !ok) return tl::unexpected(ok.error());
  }

  if (auto ok = verify_ranks(*runner, of_ranks, rank_lengths); !ok) return tl::unexpected(ok.error());
  const auto lengths_of = [&](const KernelSpec& spec) { return random_rank_lengths(spec, options.seed); };
  if (auto ok = verify_ranks(*runner, random_ranks, lengths_of); !ok) return tl::unexpected(ok.error());

  VerifyReport report;
  report.device = *device;
  report.seed = options.seed;
  report.interrupted = runner->cancelled();
  report.groups = runner->take_groups();
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
  json["nvrtc_version"] = nvrtc_version().value_or("");
  json["generator_revision"] = generator_revision();
  json["seed"] = report.seed;
  json["seconds"] = report.seconds;
  json["passed"] = report.passed;
  json["interrupted"] = report.interrupted;
  json["groups"] = nlohmann::json::array();
  for (const VerifyGroup& group : report.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"kernels", group.kernels},
                              {"refused", group.refused},
                              {"cases", group.cases},
                              {"failed", group.failed},
                              {"worst_error_ratio", group.worst_error_ratio},
                              {"failures", group.failures}});
  }
  return json.dump(2);
}

}  // namespace v1
}  // namespace leanattn
