// planted_worker.cpp -- the real worker, except that its compiler plants a fault at the start of some kernels. Its one
// argument says which, by load path and stages: {"cp_async2": "hang", ...}.
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/cuda/compiler.hpp"
#include "tuner/worker/process.hpp"
#include "tuner/worker/serve.hpp"

namespace leanattn {
namespace {

/// What the kernel does instead of its work.
std::string statement(const std::string& fault) {
  if (fault == "hang") return "for (;;) asm volatile(\"nanosleep.u32 1000;\");";
  if (fault == "illegal_address") return "*(volatile int*)16 = 1;";
  if (fault == "trap") return "asm volatile(\"trap;\");";
  return "return;";  // The outputs keep their poison.
}

/// The emitted source with the fault as the entry's first statements.
Result<CompiledKernel> compile_planted(EmittedKernel kernel, const std::string& fault) {
  const std::size_t entry = kernel.source.rfind(kernel.entry + "(");
  const std::size_t body = entry == std::string::npos ? entry : kernel.source.find(") {\n", entry);
  if (body == std::string::npos) return fail(ErrorCode::internal, "the entry of " + kernel.entry + " was not found");
  // The compiler cannot evaluate the condition, so that the rest of the kernel stays.
  kernel.source.insert(body + 4, "  if (gridDim.y == 1) { " + statement(fault) + " }\n");
  return compile(kernel, nullptr);
}

int run(const char* plan) {
  const auto faults = nlohmann::json::parse(plan).get<std::map<std::string, std::string>>();
  WorkerService service = gpu_worker_service();
  service.compile = [faults, as_shipped = service.compile](const KernelSpec& spec) -> Result<CompiledKernel> {
    const auto planted = faults.find(std::string(to_string(spec.load)) + std::to_string(spec.stages));
    if (planted == faults.end()) return as_shipped(spec);
    if (planted->second == "compiler_crash") std::abort();
    Result<EmittedKernel> emitted = emit(spec);
    if (!emitted) return tl::unexpected(emitted.error());
    return compile_planted(std::move(*emitted), planted->second);
  };
  return serve_worker(kWorkerDescriptor, service);
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run(argc > 1 ? argv[1] : "{}"); }
