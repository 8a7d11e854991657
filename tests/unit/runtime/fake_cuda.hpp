// fake_cuda.hpp -- a libcuda.so.1 for tests, with fictional GPUs. Their memory is the host's, they record launches
// instead of running them, and they fail on request. The rules that matter are those of the driver: calls need a
// current context, a lost context stays lost until it is released, a captured stream allows no synchronising call, and
// a cubin must be an ELF file that contains the name of its kernel. Several threads may call it; fake_gpu() itself is
// for times without calls.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// One call of cuLaunchKernelEx.
struct FakeLaunch {
  std::string kernel;
  unsigned grid = 0, threads = 0, shared_bytes = 0;
  bool cooperative = false, programmatic = false;
  CUstream stream = nullptr;
  int device = 0;                        ///< of the context that was current
  std::vector<unsigned char> arguments;  ///< the first FakeGpu::argument_bytes bytes of the first parameter
};

/// The arguments of one call of cuTensorMapEncodeTiled. The map that it makes starts with the address.
struct FakeTensorMap {
  CUtensorMapDataType type{};
  const void* address = nullptr;
  std::vector<cuuint64_t> sizes, strides;  ///< strides of all dimensions but the first, bytes
  std::vector<cuuint32_t> box;
  CUtensorMapSwizzle swizzle{};
  CUtensorMapL2promotion promotion{};
};

/// What a stream is given to do: something with memory, or a launch that the executor has prepared.
struct FakeWork {
  std::function<void()> memory;
  std::shared_ptr<const void> launch;
};

/// What executes kernels, where launches are not only recorded (tests/emulator). All of it or nothing is set.
struct FakeExecutor {
  /// What stands for the image of a library; null for an image that it cannot execute.
  std::function<std::shared_ptr<const void>(const char* image)> load;
  std::function<int(const void* library, const std::string& kernel, int threads, std::size_t shared_bytes)>
      resident_ctas_per_sm;
  /// Copies the parameters of a launch.
  std::function<std::shared_ptr<const void>(const void* library, const std::string& kernel,
                                            const CUlaunchConfig& config, void** params)>
      prepare;
  std::function<void(CUstream stream, FakeWork work)> enqueue;
  std::function<CUresult()> finish;  ///< all work of all streams
};

struct FakeGpu {
  // Its properties.
  int devices = 1;
  int sm_count = 132;
  int context_sm_count = 0;               ///< what a context may use, as a green context's; 0: all
  std::map<CUstream, int> green_streams;  ///< streams of green contexts, with the SMs of these
  int resident_ctas_per_sm = 2;
  int driver_version = 13000;
  std::string name = "NVIDIA Fictional 1";
  std::map<CUdevice_attribute, int> attributes;  ///< other than those above; 0 where absent
  bool peers_reach = true;                       ///< whether GPUs reach each other's memory
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  std::size_t argument_bytes = 0;

  // How it shall behave.
  std::map<std::string, CUresult> fail_once;  ///< the named entry point fails once with this status
  std::string refused_kernel;                 ///< images with a kernel of this name do not load
  bool quiet = false;  ///< launches and tensor maps succeed at once and leave no record: for timing and counting
  bool knows_pointers = false;  ///< every pointer but one is device memory
  CUdeviceptr unknown_pointer = 0;
  std::function<void(const std::string& kernel, void** params)> run;  ///< what stands for a launch outside captures
  /// What a launch takes, in microseconds, between two events. Null: any two events are 250 us apart.
  std::function<double(const std::string& kernel)> launch_us;
  FakeExecutor executor;
  std::function<void(CUtensorMap* map, const FakeTensorMap& encoded)> encode;  ///< what a tensor map is to hold

  // What has happened to it.
  std::vector<FakeTensorMap> tensor_maps;
  std::vector<FakeLaunch> launches;
  std::map<std::string, int> calls;                         ///< by entry point, as cuda.h spells it before its macros
  std::map<CUfunction_attribute, int> function_attributes;  ///< last value set
  int live_contexts = 0, live_buffers = 0, live_pinned = 0, live_streams = 0, live_events = 0, live_graphs = 0,
      live_graph_execs = 0, live_libraries = 0, live_imports = 0;
  std::set<std::pair<int, int>> peer_access;  ///< (device, peer) for which it was enabled
  std::int64_t allocated_bytes = 0;

  int live_objects() const {
    return live_contexts + live_buffers + live_pinned + live_streams + live_events + live_graphs + live_graph_execs +
           live_libraries + live_imports;
  }
};

/// The state of the GPUs, which are all alike. Assign FakeGpu{} to start anew.
FakeGpu& fake_gpu();
/// Its live_objects(), while other threads call the driver.
int live_objects_now();

/// The buffers of cuMemAlloc and cuMemAllocHost that live, as addresses and bytes, in their order.
std::vector<std::pair<CUdeviceptr, std::size_t>> fake_buffers();

/// A kernel of this name that no cubin has, for libraries that launch some of their own.
CUfunction fake_kernel(const std::string& name);
