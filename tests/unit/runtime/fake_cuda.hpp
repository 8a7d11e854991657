// fake_cuda.hpp -- a libcuda.so.1 for tests: fictional GPUs whose memory is the host's, which record launches instead
// of running them and fail on request. It keeps the rules that matter (a current context, one that is lost until nobody
// holds it, no synchronising call under capture, a cubin must be an ELF file that holds the kernel's name). Several
// threads may call it; fake_gpu() itself is read and written while none does.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

/// One cuLaunchKernelEx as it arrived.
struct FakeLaunch {
  std::string kernel;
  unsigned grid = 0, threads = 0, shared_bytes = 0;
  bool cooperative = false, programmatic = false;
  CUstream stream = nullptr;
  int device = 0;                        ///< of the context that was current
  std::vector<unsigned char> arguments;  ///< the first FakeGpu::argument_bytes bytes of the first parameter
};

/// What one call of cuTensorMapEncodeTiled was asked for. The map itself starts with the address.
struct FakeTensorMap {
  CUtensorMapDataType type{};
  const void* address = nullptr;
  std::vector<cuuint64_t> sizes, strides;
  std::vector<cuuint32_t> box;
  CUtensorMapSwizzle swizzle{};
  CUtensorMapL2promotion promotion{};
};

struct FakeGpu {
  // What it is.
  int devices = 1;
  int sm_count = 132;
  int context_sm_count = 0;  ///< what a context may use, as a green context's; 0: all
  int resident_ctas_per_sm = 2;
  int driver_version = 13000;
  std::string name = "NVIDIA Fictional 1";
  std::map<CUdevice_attribute, int> attributes;  ///< other than those above; 0 where absent
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  std::size_t argument_bytes = 0;

  // What it shall do.
  std::map<std::string, CUresult> fail_once;  ///< the named entry point fails once with this status
  bool quiet = false;  ///< launches and tensor maps succeed at once and leave no record: for timing and counting
  bool knows_pointers = false;  ///< every pointer but one is device memory
  CUdeviceptr unknown_pointer = 0;
  std::function<void(const std::string& kernel, void** params)> run;  ///< what stands for a launch outside captures

  // What happened to it.
  std::vector<FakeTensorMap> tensor_maps;
  std::vector<FakeLaunch> launches;
  std::map<std::string, int> calls;                         ///< by entry point, as cuda.h spells it before its macros
  std::map<CUfunction_attribute, int> function_attributes;  ///< last value set
  int live_contexts = 0, live_buffers = 0, live_pinned = 0, live_streams = 0, live_events = 0, live_graphs = 0,
      live_graph_execs = 0, live_libraries = 0;
  std::int64_t allocated_bytes = 0;

  int live_objects() const {
    return live_contexts + live_buffers + live_pinned + live_streams + live_events + live_graphs + live_graph_execs +
           live_libraries;
  }
};

/// The GPUs, all alike; assign FakeGpu{} to start afresh.
FakeGpu& fake_gpu();
