// simulated_program.cpp -- the leanattn program as an engine's tuning sees it, on a simulated GPU: its command
// tune-order, with the real sessions, database and signals. Environment variables plant faults:
//   LEANATTN_SIMULATED        hang: it notes its process id and waits for ever, whatever signals come; half: it dies
//   after
//                             the first shape; memory: the second shape does not fit; wrong: it has wrong kernels only
//   LEANATTN_SIMULATED_NOTE   a file to which each order is appended, one on each line
//   LEANATTN_SIMULATED_DEVICE {"name":...,"l2_bytes":...,"memory_bytes":...} of the GPU
// Its other command, host DIRECTORY PROGRAM, is a program with an engine that tunes, for tests that kill it.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/console/console.hpp"
#include "cli/console/stop.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/search/serve_order.hpp"

namespace leanattn {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

DeviceFacts device_of_the_order(const TuningOrder& order) {
  DeviceFacts device = simulated_device();
  device.ordinal = order.ordinal;
  device.uuid = order.uuid;
  device.driver_version = 13000;
  if (const std::string facts = variable("LEANATTN_SIMULATED_DEVICE"); !facts.empty()) {
    const auto json = nlohmann::json::parse(facts);
    device.name = json.at("name").get<std::string>();
    device.l2_bytes = json.at("l2_bytes").get<std::int64_t>();
    device.memory_bytes = json.at("memory_bytes").get<std::int64_t>();
  }
  return device;
}

[[noreturn]] void hang(const std::string& note) {
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_IGN);
  std::ofstream(note, std::ios::app) << "pid " << ::getpid() << std::endl;
  for (;;) ::pause();
}

/// Says that memory is lacking, from the second shape on.
class SmallGpu final : public TuneBackend {
 public:
  SmallGpu(SimulatedGpu& gpu, std::string fault) : gpu_(gpu), fault_(std::move(fault)) {}
  Result<CompiledSpec> compile(const KernelSpec& spec) override { return gpu_.compile(spec); }
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override { return gpu_.adopt(spec, kernel); }
  Result<double> begin_shape(const Shape& shape) override {
    if (++shapes_ == 2 && fault_ == "half") ::raise(SIGKILL);
    if (shapes_ == 2 && fault_ == "memory") return fail(ErrorCode::out_of_memory, "K and V do not fit", "Free memory.");
    return gpu_.begin_shape(shape);
  }
  Result<CheckOutcome> check(const Config& config) override { return gpu_.check(config); }
  Result<RoundTimes> time(std::span<const Config> configs) override { return gpu_.time(configs); }
  double now_s() const override { return gpu_.now_s(); }

 private:
  SimulatedGpu& gpu_;
  std::string fault_;
  int shapes_ = 0;
};

Result<ModelSummary> carry_out_simulated(const TuningOrder& order, const ProgressSink& progress,
                                         const std::atomic<bool>* stop) {
  const std::string note = variable("LEANATTN_SIMULATED_NOTE"), fault = variable("LEANATTN_SIMULATED");
  if (!note.empty()) std::ofstream(note, std::ios::app) << to_json(order) << std::endl;
  if (fault == "hang") hang(note);
  const DeviceFacts device = device_of_the_order(order);
  TuneRequest request;
  request.problem = order.problem;
  request.shapes = order.shapes;
  request.budget = order.budget;
  request.compile_threads = 2;
  request.command = "simulated tune-order";
  auto db = TuningDb::open(order.cache_directory, OpenMode::read_write, nullptr);
  if (!db) return tl::unexpected(db.error());
  SimulatedGpu gpu(order.problem, 1);
  if (!variable("LEANATTN_SIMULATED_DEVICE").empty()) {
    // The test compiles what wins, so it must be what compiles without spilling. Kernels that wait are for GPUs of
    // which a look-up knows how many CTAs are resident.
    gpu.spills = [](const KernelSpec& spec) {
      return spec.fixup == FixUp::wait || loads_to_registers(spec.load) || spec.warps * spec.ctas_per_sm > 8;
    };
  }
  if (fault == "wrong") gpu.wrong = [](const Config&) { return true; };
  SmallGpu backend(gpu, fault);
  // How good the winner is does not matter here.
  const SearchEffort effort{.specs = 3,
                            .grids_per_spec = 2,
                            .sweep_specs = 1,
                            .refine_specs = 1,
                            .twin_specs = 1,
                            .refine_generations = 1,
                            .race_size = 3,
                            .finalists = 2,
                            .confirm_rounds_max = 12};
  auto summary = run_session(request, device, current_environment(device), backend, **db, effort, progress, stop);
  if (!summary) return tl::unexpected(summary.error());
  return ModelSummary{.summary = std::move(*summary), .ordinals = {device.ordinal}, .failures = {}, .warnings = {}};
}

int host(const std::filesystem::path& directory, const std::string& program) {
  EngineParts parts = fictional_parts();
  parts.device = simulated_device();
  parts.device.ordinal = 0;
  parts.cache_directory = directory;
  EngineCore engine(std::move(parts));
  const Shape shape{.batch = 1, .longest_context = 4096};
  return engine.tune({}, {&shape, 1}, {.budget_s = 600, .program = program}) ? kExitOk : kExitFailure;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.at(0) == "host") return host(arguments.at(1), arguments.at(2));
  const std::atomic<bool>* stop = stop_on_signals();
  const std::string order{std::istreambuf_iterator<char>(std::cin), {}};
  const auto served = serve_order(order, stdout, [&](const TuningOrder& asked, const ProgressSink& progress) {
    return carry_out_simulated(asked, progress, stop);
  });
  return served ? kExitOk : report_error(served.error());
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run({argv + 1, argv + argc}); }
