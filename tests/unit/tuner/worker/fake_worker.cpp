// fake_worker.cpp -- a worker process without a GPU. It has the real protocol and loop around a simulated GPU, and the
// faults that its command line names.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "planted_faults.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/worker/process.hpp"
#include "tuner/worker/serve.hpp"

namespace leanattn {
namespace {

using worker_test::PlantedFault;

void send_raw(const std::string& bytes) { (void)!::send(kWorkerDescriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

std::string header(std::uint32_t text, std::uint32_t blob) {
  std::string bytes = "LAW1";
  bytes.append(reinterpret_cast<const char*>(&text), 4);
  bytes.append(reinterpret_cast<const char*>(&blob), 4);
  return bytes;
}

/// Does what the fault says. Returns only if the process goes on, with the error to answer with if there is one.
std::optional<Error> commit(const PlantedFault& fault) {
  const std::string& what = fault.what;
  if (what == "hang") {
    if (!fault.memory.empty()) std::ofstream(std::filesystem::path(fault.memory) / "hanging");
    for (;;) ::pause();
  }
  if (what == "segv") {
    std::fprintf(stderr, "about to touch\n\x1b[31maddress 8\n");
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would turn it into an exit code
    std::raise(SIGSEGV);
  }
  if (what == "abort") std::abort();
  if (what == "exit") std::_Exit(7);
  if (what == "kill") std::raise(SIGKILL);
  if (what == "garbage") send_raw("CUDA kernel says hello\n");
  if (what == "oversized") send_raw(header(0xFFFFFFFFu, 1));
  if (what == "unasked") send_raw(encode({R"({"is": "nonsense"})"}));
  if (what == "torn") {
    send_raw(header(400, 0) + R"({"is": "checked", "ver)");
    std::_Exit(0);
  }
  if (what == "chatter") {
    const std::string line(1023, '.');
    for (int i = 0; i < 4096; ++i) std::fprintf(i % 2 == 0 ? stdout : stderr, "%s\n", line.c_str());
  }
  if (what == "context_lost") return Error{ErrorCode::context_lost, "an illegal address was touched", {}, {}};
  if (what == "out_of_memory") return Error{ErrorCode::out_of_memory, "cuMemAlloc: out of memory", {}, {}};
  return std::nullopt;
}

/// How often all workers that share the directory have met this candidate or shape before. Counts one more.
int counted(const std::string& directory, const std::string& json) {
  const std::filesystem::path file = std::filesystem::path(directory) / std::to_string(std::hash<std::string>()(json));
  std::ofstream(file, std::ios::app) << '.';
  return static_cast<int>(std::filesystem::file_size(file)) - 1;
}

class FaultyGpu final : public TuneBackend {
 public:
  FaultyGpu(const OpenDevice& device, std::vector<PlantedFault> faults)
      : gpu_(device.problem, 20261121), faults_(std::move(faults)) {
    std::erase_if(faults_, [&](const PlantedFault& f) { return f.ordinal >= 0 && f.ordinal != device.ordinal; });
    gpu_.wrong = [this](const Config& config) {
      return std::any_of(faults_.begin(), faults_.end(),
                         [&](const PlantedFault& f) { return f.what == "wrong" && f.of(config.spec); });
    };
  }

  Result<CompiledSpec> compile(const KernelSpec& spec) override { return gpu_.compile(spec); }
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override {
    const std::string name = kernel_name(spec);
    if (std::string(kernel.cubin.begin(), kernel.cubin.end()) != name)
      return fail(ErrorCode::internal, "not the cubin of " + name);
    adopted_.insert(name);
    return {};
  }
  Result<double> begin_shape(const Shape& shape) override {
    for (const PlantedFault& fault : faults_) {
      if (fault.when != "begin" || (fault.context > 0 && fault.context != shape.longest_context)) continue;
      if (fault.after > 0 && counted(fault.memory, to_json(shape)) < fault.after) continue;
      if (const auto error = commit(fault)) return tl::unexpected(*error);
    }
    return gpu_.begin_shape(shape);
  }
  Result<CheckOutcome> check(const Config& config) override {
    if (!adopted_.contains(kernel_name(config.spec))) return fail(ErrorCode::internal, "a kernel nobody brought");
    for (const PlantedFault& fault : faults_) {
      if (fault.when != "check" || !fault.of(config.spec)) continue;
      if (const auto error = commit(fault)) return tl::unexpected(*error);
    }
    return gpu_.check(config);
  }
  Result<RoundTimes> time(std::span<const Config> configs) override {
    for (const PlantedFault& fault : faults_) {
      if (fault.when != "time") continue;
      for (const Config& config : configs) {
        if (!fault.of(config.spec)) continue;
        const bool accompanied =
            fault.beside.empty() || std::any_of(configs.begin(), configs.end(), [&](const Config& other) {
              return to_string(other.spec.load) == fault.beside;
            });
        if (!accompanied) continue;
        const int before = fault.memory.empty() ? fault.after : counted(fault.memory, to_json(config));
        if (before < fault.after || (fault.until > 0 && before >= fault.until)) continue;
        if (const auto error = commit(fault)) return tl::unexpected(*error);
      }
    }
    return gpu_.time(configs);
  }
  double now_s() const override { return gpu_.now_s(); }

 private:
  SimulatedGpu gpu_;
  std::vector<PlantedFault> faults_;
  std::set<std::string> adopted_;
};

int run(const char* plan) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const auto faults = nlohmann::json::parse(plan).get<std::vector<PlantedFault>>();
  WorkerService service;
  service.begin = [](const std::string&) {};
  service.compile = [&](const KernelSpec& spec) -> Result<CompiledKernel> {
    for (const PlantedFault& fault : faults) {
      if (fault.when != "compile" || !fault.of(spec)) continue;
      if (const auto error = commit(fault)) return tl::unexpected(*error);
    }
    const std::string name = kernel_name(spec);
    CompiledKernel kernel;
    kernel.cubin.assign(name.begin(), name.end());
    kernel.resources.registers = 64;
    kernel.compile_ms = 1;
    return kernel;
  };
  service.open = [&](const OpenDevice& device) -> Result<std::unique_ptr<TuneBackend>> {
    for (const PlantedFault& fault : faults) {
      if (fault.when != "open" || (fault.ordinal >= 0 && fault.ordinal != device.ordinal)) continue;
      if (const auto error = commit(fault)) return tl::unexpected(*error);
    }
    const Features& features = device.problem.features;
    if (device.rank_devices.size() != (in_group(features) ? static_cast<std::size_t>(features.context_parallel) : 0))
      return fail(ErrorCode::internal, "another number of GPUs than ranks");
    return std::make_unique<FaultyGpu>(device, faults);
  };
  return serve_worker(kWorkerDescriptor, service);
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run(argc > 1 ? argv[1] : "[]"); }
