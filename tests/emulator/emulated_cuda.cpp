// emulated_cuda.cpp -- the fake driver (tests/unit/runtime/fake_cuda.hpp) as a GPU that executes kernels: it interprets
// the PTX that emulated_nvrtc.cpp puts behind cubins. Work waits in its stream until somebody waits for any stream;
// then the launches at the heads of all streams run beside each other.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>

#include "tests/emulator/machine.hpp"
#include "tests/emulator/native_checks.hpp"
#include "tests/emulator/tensor_map.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace {

using namespace emulator;

std::int64_t number(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}
int attribute(CUdevice_attribute which) { return fake_gpu().attributes[which]; }

/// A library. `checks`: its kernels are those of checks, which the host executes.
struct Library {
  std::shared_ptr<const Program> program;
  bool checks = false;
};

/// The text behind a cubin, a 64-bit ELF file that ends with a table of sections or of segments.
std::shared_ptr<const void> load(const char* image) {
  const auto field = [&](int at, std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, image + at, bytes);
    return value;
  };
  const std::uint64_t segments_end = field(32, 8) + field(54, 2) * field(56, 2);
  const std::uint64_t sections_end = field(40, 8) + field(58, 2) * field(60, 2);
  const char* const text = image + std::max(segments_end, sections_end);
  if (std::strncmp(text, "//", 2) != 0) return nullptr;  // another compiler's, which ends there
  return std::make_shared<Library>(Library{decode(text), std::string_view(text).starts_with(kChecksMark)});
}

int resident_ctas_per_sm(const void* library, const std::string& name, int threads, std::size_t shared_bytes) {
  const Program& program = *static_cast<const Library*>(library)->program;
  const Kernel& kernel = program.kernels.find(name)->second;
  const auto shared = program.shared_bytes + static_cast<std::int64_t>(shared_bytes);
  std::int64_t ctas = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / shared;
  ctas = std::min<std::int64_t>(ctas, attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / threads);
  // Registers are those of which a launch bound says how many CTAs shall fit.
  return static_cast<int>(std::min<std::int64_t>(ctas, std::max(kernel.ctas_per_sm, 1)));
}

std::shared_ptr<const void> prepare(const void* library, const std::string& name, const CUlaunchConfig& config,
                                    void** params) {
  const std::shared_ptr<const Program> program = static_cast<const Library*>(library)->program;
  auto launch = std::make_shared<LaunchConfig>();
  launch->native = static_cast<const Library*>(library)->checks;
  launch->program = program;
  launch->kernel = &program->kernels.find(name)->second;
  launch->grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  launch->block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  launch->dynamic_shared_bytes = config.sharedMemBytes;
  const int threads = static_cast<int>(config.blockDimX * config.blockDimY * config.blockDimZ);
  launch->most_ctas =
      fake_gpu().sm_count * std::max(1, resident_ctas_per_sm(library, name, threads, config.sharedMemBytes));
  launch->parameters.assign(launch->kernel->parameter_bytes, 0);
  for (std::size_t i = 0; i < launch->kernel->parameters.size(); ++i) {
    const Parameter& parameter = launch->kernel->parameters[i];
    std::memcpy(launch->parameters.data() + parameter.offset, params[i], static_cast<std::size_t>(parameter.bytes));
  }
  return launch;
}

// Calls come under the fake driver's lock.
std::map<CUstream, std::deque<FakeWork>> streams;
Machine& machine() {
  static Machine& only = *new Machine;
  return only;
}

void enqueue(CUstream stream, FakeWork work) { streams[stream].push_back(std::move(work)); }

CUresult finish() {
  while (true) {
    std::vector<LaunchConfig> launches;
    bool ran = false;
    for (auto& [stream, work] : streams) {
      for (; !work.empty() && work.front().memory; work.pop_front()) work.front().memory();
      if (work.empty()) continue;
      const auto& launch = *static_cast<const LaunchConfig*>(work.front().launch.get());
      ran = true;
      if (!launch.native || !run_native_check(launch)) launches.push_back(launch);
      work.pop_front();
    }
    if (!ran) return CUDA_SUCCESS;
    machine().memory.clear();
    for (const auto& [address, bytes] : fake_buffers()) machine().memory.push_back({address, bytes, true});
    try {
      machine().run(std::move(launches));
    } catch (const Fault& fault) {
      std::fprintf(stderr, "emulator: %s\n", fault.what());
      streams.clear();
      return CUDA_ERROR_LAUNCH_FAILED;
    }
  }
}

void encode(CUtensorMap* map, const FakeTensorMap& encoded) {
  TensorMap made;
  made.address = reinterpret_cast<std::uint64_t>(encoded.address);
  made.rank = static_cast<std::uint8_t>(encoded.sizes.size());
  for (std::size_t i = 0; i < encoded.sizes.size(); ++i) {
    made.sizes[i] = static_cast<std::uint32_t>(encoded.sizes[i]);
    made.box[i] = encoded.box[i];
    if (i > 0) made.strides[i - 1] = encoded.strides[i - 1];
  }
  // Of the formats of which the library makes maps.
  made.element_bytes = encoded.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64 ? 8
                       : encoded.type == CU_TENSOR_MAP_DATA_TYPE_INT32 ? 4
                                                                       : 2;
  made.swizzle_bytes = encoded.swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                       : encoded.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                       : encoded.swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                                      : 0;
  made.mark = kTensorMapMark;
  std::memcpy(map, &made, sizeof made);
}

// This runs after the constructors of fake_cuda.cpp, whose objects are linked first.
[[gnu::constructor]] void set_up() {
  const char* const arch = std::getenv("EMULATOR_ARCH");
  const bool ampere = arch != nullptr && std::string(arch) == "sm_80";
  FakeGpu& gpu = fake_gpu();
  gpu.name = ampere ? "Emulated A100" : "Emulated H100";
  gpu.sm_count = static_cast<int>(number("EMULATOR_SMS", 6));
  gpu.memory_bytes = std::int64_t{8} << 30;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = ampere ? 8 : 9;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = (ampere ? 40 : 50) << 20;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = (ampere ? 164 : 228) << 10;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = (ampere ? 163 : 227) << 10;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32;
  gpu.attributes[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1;
  gpu.executor = {load, resident_ctas_per_sm, prepare, enqueue, finish};
  gpu.encode = encode;
  machine().random.seed(static_cast<std::uint64_t>(number("EMULATOR_SEED", 1)));
}

}  // namespace
