#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/commands/progress_line.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/help/command_page.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kPrewarmBatch = "1";
const std::string kPrewarmContext = "1k,8k,64k";

struct PrewarmFlags {
  ShapeFlags shape;
  RequestFlags requests;
  DeviceFlags device;
};

int run(const Console& console, const PrewarmFlags& flags) {
  Result<ModelWorkloads> model = resolve_all(console, flags.shape, kPrewarmBatch, kPrewarmContext);
  if (!model) return report_error(model.error());
  for (Workload& workload : model->workloads) {
    if (const auto step = resolve_requests(flags.requests, workload); !step) return report_error(step.error());
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const Result<Target> target = resolve_target(flags.device, *caches);
  if (!target) return report_error(target.error());
  const LayeredWinners layers = load_layered_winners(target->model, caches->directory, current_software(target->facts));
  for (const std::string& warning : layers.warnings) warn(warning);
  const WinnerTable winners = WinnerTable::build(target->facts, layers);

  std::vector<std::pair<const Workload*, Shape>> steps;
  for (const Workload& workload : model->workloads) {
    for (const Shape& shape : workload.shapes) steps.emplace_back(&workload, shape);
  }

  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(console.quiet, is_terminal(stderr));
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  Table table{.headings = {"kernel", "regs", "cubin bytes", "compile ms", "from"}, .rows = {}, .right_aligned = "lrrr"};
  nlohmann::ordered_json rejected = nlohmann::ordered_json::array();
  // Several shapes often share a kernel and differ only in their grids. What has become of each kernel:
  std::vector<std::pair<KernelSpec, Result<void>>> tried;
  const auto compile_once = [&](const KernelSpec& spec, std::size_t step) -> Result<void> {
    const auto known =
        std::find_if(tried.begin(), tried.end(), [&](const auto& before) { return before.first == spec; });
    if (known != tried.end()) return known->second;
    line.show_transient(fmt::format("[{}/{}] {}", step, steps.size(), kernel_name(spec)));
    const Result<EmittedKernel> kernel = emit(spec);
    const Result<CompiledKernel> compiled =
        kernel ? compile(*kernel, caches->cubins.get()) : tl::unexpected(kernel.error());
    tried.emplace_back(spec, compiled ? Result<void>{} : tl::unexpected(compiled.error()));
    if (!compiled) {
      if (is_about_the_kernel(compiled.error().code))
        rejected.push_back({{"kernel", kernel_name(spec)}, {"reason", compiled.error().message}});
      return tl::unexpected(compiled.error());
    }
    if (std::optional<Error> why = caches->cubins->not_kept()) {
      if (caches->no_directory) why = caches->no_directory;
      why->message = fmt::format("{} was compiled, but is not kept: {}", kernel_name(spec), why->message);
      return tl::unexpected(*std::move(why));
    }
    table.rows.push_back({kernel_name(spec), std::to_string(compiled->resources.registers),
                          std::to_string(compiled->cubin.size()), fmt::format("{:.0f}", compiled->compile_ms),
                          compiled->from_cache ? "cubin.db" : "NVRTC"});
    kernels.push_back({{"kernel", kernel_name(spec)},
                       {"registers", compiled->resources.registers},
                       {"cubin_bytes", compiled->cubin.size()},
                       {"compile_ms", compiled->compile_ms},
                       {"from_cache", compiled->from_cache}});
    return {};
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Result<void> ready;
    for (const Choice& choice : winners.launch_order(steps[i].first->problem, steps[i].second)) {
      if (stop->load()) break;
      ready = compile_once(choice.config.spec, i + 1);
      if (ready || !is_about_the_kernel(ready.error().code)) break;
    }
    if (stop->load()) break;
    if (!ready) {
      line.clear();
      return report_error(ready.error());
    }
  }
  line.clear();
  if (console.json) {
    const nlohmann::ordered_json document{
        {"schema_version", 1},
        {"arch", to_string(target->facts.arch)},
        {"directory",
         caches->directory ? nlohmann::ordered_json(caches->directory->string()) : nlohmann::ordered_json(nullptr)},
        {"kernels", std::move(kernels)},
        {"rejected", std::move(rejected)}};
    print_json(document);
  } else {
    print_table(table);
    for (const auto& kernel : rejected) {
      print_text(fmt::format("An engine here passes {} over: {}\n", kernel["kernel"].get<std::string>(),
                             kernel["reason"].get<std::string>()));
    }
  }
  return stop->load() ? kExitInterrupted : kExitOk;
}

}  // namespace

Command add_prewarm(CLI::App& program) {
  auto flags = std::make_shared<PrewarmFlags>();
  CLI::App* app = program.add_subcommand(
      "prewarm", "Compile the kernels that lookup answers into cubin.db; with --arch no GPU is needed");
  add_shape_flags(*app, flags->shape, kPrewarmBatch, kPrewarmContext);
  add_request_flags(*app, flags->requests);
  add_device_flags(*app, flags->device);
  set_examples(*app, {{"Compile the kernels of a server before it starts",
                       "leanattn prewarm --model llama-3-8b --batch 1,64 --context 8k,64k"},
                      {"Compile them where no GPU is", "leanattn prewarm --model llama-3-8b --arch h100"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
