// fake_cuda.cpp -- the functions of driver.hpp's table on a FakeGpu.
#include "tests/unit/runtime/fake_cuda.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

struct CUctx_st {
  int device = 0;
  int references = 0;
  CUresult lost = CUDA_SUCCESS;  ///< what every call says since a kernel died in it
};
struct CUuserObject_st {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
};
/// A user object, which graphs and their instances refer to.
using FakeUserObject = std::shared_ptr<CUuserObject_st>;
struct CUstream_st {
  bool capturing = false;
  cuuint64_t capture_id = 0;
  CUgraph graph = nullptr;  // of the capture
};
struct CUevent_st {
  unsigned flags = 0;
  std::size_t launches = 0;  ///< that were recorded before it
};
struct CUgraph_st {
  std::vector<FakeLaunch> launches;
  std::vector<FakeWork> work;
  std::vector<FakeUserObject> retained;
};
struct CUgraphExec_st {
  std::vector<FakeLaunch> launches;
  std::vector<FakeWork> work;
  std::vector<FakeUserObject> retained;
};
struct CUkern_st {
  std::string name;
  std::shared_ptr<const void> library;  // of the executor
};
struct CUlib_st {
  std::string image;
  std::shared_ptr<const void> loaded;  // by the executor
  std::map<std::string, CUkern_st> kernels;
};

namespace {

FakeGpu gpu;
CUctx_st primary_contexts[6] = {{0}, {1}, {2}, {3}, {4}, {5}};
std::recursive_mutex mutex;
thread_local CUcontext current_context = nullptr;
thread_local std::vector<CUcontext> contexts_below;  // that were current when it was pushed
thread_local CUstream_st per_thread_stream;          // CU_STREAM_PER_THREAD of this thread
int capturing_streams = 0;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::map<CUdeviceptr, std::size_t> buffer_sizes, pinned_sizes;

/// Counts the call, and returns the status with which the test wants it to fail, if any.
std::optional<CUresult> enter(const char* name) {
  ++gpu.calls[name];
  const auto it = gpu.fail_once.find(name);
  if (it == gpu.fail_once.end()) return std::nullopt;
  const CUresult status = it->second;
  gpu.fail_once.erase(it);
  if (status == CUDA_ERROR_ILLEGAL_ADDRESS && current_context != nullptr) current_context->lost = status;
  return status;
}

/// The stream that a handle means on this thread; null for the legacy default stream.
CUstream meant(CUstream handle) {
  if (handle == CU_STREAM_PER_THREAD) return &per_thread_stream;
  return handle == CU_STREAM_LEGACY ? nullptr : handle;
}

/// Gives work to the executor, or to the graph of a capture that an executor shall launch. Without one, what is to be
/// done with memory is done at once.
void submit(CUstream handle, FakeWork work) {
  CUstream const stream = meant(handle);
  if (!gpu.executor.enqueue) {
    if (work.memory) work.memory();
  } else if (stream != nullptr && stream->capturing) {
    stream->graph->work.push_back(std::move(work));
  } else {
    gpu.executor.enqueue(stream, std::move(work));
  }
}
/// Waits for all work. A kernel that fails takes the context with it.
CUresult finish() {
  if (!gpu.executor.finish) return CUDA_SUCCESS;
  const CUresult status = gpu.executor.finish();
  if (status != CUDA_SUCCESS && current_context != nullptr) current_context->lost = status;
  return current_context != nullptr ? current_context->lost : status;
}

bool valid_device(CUdevice device) {
  return device >= 0 && device < gpu.devices && device < static_cast<int>(std::size(primary_contexts));
}

}  // namespace

FakeGpu& fake_gpu() { return gpu; }

int live_objects_now() {
  const std::lock_guard guard(mutex);
  return gpu.live_objects();
}

std::vector<std::pair<CUdeviceptr, std::size_t>> fake_buffers() {
  const std::lock_guard guard(mutex);
  std::map<CUdeviceptr, std::size_t> all = buffer_sizes;
  all.insert(pinned_sizes.begin(), pinned_sizes.end());
  return {all.begin(), all.end()};
}

CUfunction fake_kernel(const std::string& name) {
  const std::lock_guard guard(mutex);
  static std::map<std::string, CUkern_st> kernels;
  return reinterpret_cast<CUfunction>(&kernels.try_emplace(name, CUkern_st{name, nullptr}).first->second);
}

#define LOCKED() const std::lock_guard guard(mutex)
#define ENTER(name) \
  LOCKED();         \
  if (const auto told = enter(#name)) return *told
#define NEED_CONTEXT()                                               \
  if (current_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT; \
  if (current_context->lost != CUDA_SUCCESS) return current_context->lost
#define NOT_UNDER_CAPTURE()                                                    \
  if (capturing_streams > 0 && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) \
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

extern "C" {

CUresult cuInit(unsigned) {
  ENTER(cuInit);
  return CUDA_SUCCESS;
}
// NVRTC asks for these private tables when it uses the compute cache of the driver.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  ++gpu.calls["cuGetExportTable"];
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetErrorName(CUresult status, const char** text) {
  *text = status == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OF_A_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "told to fail";
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  *version = gpu.driver_version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  *count = gpu.devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(cuDeviceGet);
  *device = ordinal;
  return valid_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, gpu.name.c_str(), static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i * 17);
  uuid->bytes[0] = static_cast<char>(device);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  ENTER(cuDeviceGetAttribute);
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto it = gpu.attributes.find(attribute);
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? gpu.sm_count
           : it == gpu.attributes.end()                          ? 0
                                                                 : it->second;
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = static_cast<std::size_t>(gpu.memory_bytes);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  ++gpu.live_contexts;
  ++primary_contexts[device].references;
  *context = &primary_contexts[device];
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  LOCKED();
  --gpu.live_contexts;
  if (--primary_contexts[device].references == 0) primary_contexts[device].lost = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  LOCKED();
  *flags = 0;
  *active = primary_contexts[device].references > 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current_context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  current_context = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  CUcontext const before = current_context;
  const CUresult status = cuCtxSetCurrent(context);
  if (status == CUDA_SUCCESS) contexts_below.push_back(before);
  return status;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = current_context;
  current_context = nullptr;
  if (contexts_below.empty()) return CUDA_SUCCESS;
  current_context = contexts_below.back();
  contexts_below.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  NEED_CONTEXT();
  *device = current_context->device;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevResource(CUcontext, CUdevResource* resource, CUdevResourceType type) {
  ENTER(cuCtxGetDevResource);
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  resource->type = type;
  resource->sm.smCount = static_cast<unsigned>(gpu.context_sm_count > 0 ? gpu.context_sm_count : gpu.sm_count);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  ENTER(cuStreamGetCtx_v2);
  NEED_CONTEXT();
  *context = current_context;
  const auto it = gpu.green_streams.find(stream);
  // The handle is the number of SMs.
  *green =
      it == gpu.green_streams.end() ? nullptr : reinterpret_cast<CUgreenCtx>(static_cast<std::uintptr_t>(it->second));
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  ENTER(cuGreenCtxGetDevResource);
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  resource->type = type;
  resource->sm.smCount = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(green));
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  NEED_CONTEXT();
  NOT_UNDER_CAPTURE();
  return finish();
}

CUresult cuDeviceCanAccessPeer(int* reaches, CUdevice from, CUdevice to) {
  ENTER(cuDeviceCanAccessPeer);
  if (!valid_device(from) || !valid_device(to)) return CUDA_ERROR_INVALID_DEVICE;
  *reaches = from != to && gpu.peers_reach;
  return CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
  ENTER(cuCtxEnablePeerAccess);
  NEED_CONTEXT();
  if (!gpu.peers_reach || peer == current_context) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const bool fresh = gpu.peer_access.insert({current_context->device, peer->device}).second;
  return fresh ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}
// Handles hold the address: all processes of these GPUs are this one.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  ENTER(cuIpcGetMemHandle);
  NEED_CONTEXT();
  if (buffer_sizes.find(pointer) == buffer_sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = {};
  std::memcpy(handle, &pointer, sizeof pointer);
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned) {
  ENTER(cuIpcOpenMemHandle);
  NEED_CONTEXT();
  std::memcpy(pointer, &handle, sizeof *pointer);
  if (buffer_sizes.find(*pointer) == buffer_sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  ++gpu.live_imports;
  return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr) {
  ENTER(cuIpcCloseMemHandle);
  --gpu.live_imports;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* pointer, std::size_t bytes) {
  ENTER(cuMemAlloc);
  NEED_CONTEXT();
  NOT_UNDER_CAPTURE();
  if (static_cast<std::int64_t>(bytes) > gpu.memory_bytes - gpu.allocated_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // The bytes behind it belong to no buffer.
  *pointer = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, bytes / 256 * 256 + 512));
  // What nobody has written is NaN for those that execute. Pages of more than that are left to those that use them.
  constexpr std::size_t kSpoilt = 64 << 20;
  if (gpu.executor.load) std::memset(reinterpret_cast<void*>(*pointer), 0xff, std::min(bytes, kSpoilt));
  buffer_sizes[*pointer] = bytes;
  gpu.allocated_bytes += static_cast<std::int64_t>(bytes);
  ++gpu.live_buffers;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr pointer) {
  LOCKED();
  if (current_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  finish();
  const auto it = buffer_sizes.find(pointer);
  if (it == buffer_sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  gpu.allocated_bytes -= static_cast<std::int64_t>(it->second);
  buffer_sizes.erase(it);
  std::free(reinterpret_cast<void*>(pointer));
  --gpu.live_buffers;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  LOCKED();
  NEED_CONTEXT();
  *total_bytes = static_cast<std::size_t>(gpu.memory_bytes);
  *free_bytes = static_cast<std::size_t>(gpu.memory_bytes - gpu.allocated_bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void** memory, std::size_t bytes) {
  ENTER(cuMemAllocHost);
  NEED_CONTEXT();
  NOT_UNDER_CAPTURE();
  *memory = std::malloc(bytes);
  pinned_sizes[reinterpret_cast<CUdeviceptr>(*memory)] = bytes;
  ++gpu.live_pinned;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* memory) {
  LOCKED();
  if (current_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  finish();
  pinned_sizes.erase(reinterpret_cast<CUdeviceptr>(memory));
  std::free(memory);
  --gpu.live_pinned;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync);
  // Memory of the host that is not pinned may change as soon as the call returns.
  const std::string staged(static_cast<const char*>(from), bytes);
  submit(stream, {[=] { std::memcpy(reinterpret_cast<void*>(to), staged.data(), bytes); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync);
  submit(stream, {[=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  LOCKED();
  submit(stream,
         {[=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
  LOCKED();
  submit(stream, {[=] { std::memset(reinterpret_cast<void*>(to), value, count); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
  LOCKED();
  submit(stream, {[=] { std::fill_n(reinterpret_cast<unsigned short*>(to), count, value); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
  LOCKED();
  submit(stream, {[=] { std::fill_n(reinterpret_cast<unsigned*>(to), count, value); }, nullptr});
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  LOCKED();
  const auto behind = buffer_sizes.upper_bound(pointer);
  if (behind != buffer_sizes.begin() && pointer - std::prev(behind)->first < std::prev(behind)->second) {
    const auto& [start, bytes] = *std::prev(behind);
    switch (attribute) {
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = start; return CUDA_SUCCESS;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(value) = bytes; return CUDA_SUCCESS;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (!gpu.knows_pointers || pointer == gpu.unknown_pointer || attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  ENTER(cuStreamCreate);
  NEED_CONTEXT();
  *stream = new CUstream_st;
  ++gpu.live_streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  LOCKED();
  finish();
  delete stream;
  --gpu.live_streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
  ENTER(cuStreamSynchronize);
  NOT_UNDER_CAPTURE();
  return finish();
}
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  const CUstream_st* const stream = meant(handle);
  *status = stream != nullptr && stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode) {
  ENTER(cuStreamBeginCapture);
  CUstream const stream = meant(handle);
  if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  static cuuint64_t captures = 0;
  stream->capturing = true;
  stream->capture_id = ++captures;
  stream->graph = new CUgraph_st;
  ++capturing_streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  CUstream const stream = meant(handle);
  if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capturing = false;
  --capturing_streams;
  *graph = nullptr;
  const std::unique_ptr<CUgraph_st> captured(std::exchange(stream->graph, nullptr));
  ENTER(cuStreamEndCapture);
  *graph = new CUgraph_st(*captured);
  ++gpu.live_graphs;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode**, std::size_t*) {
  const CUstream_st* const stream = meant(handle);
  const bool capturing = stream != nullptr && stream->capturing;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (!capturing) return CUDA_SUCCESS;
  *id = stream->capture_id;
  *graph = stream->graph;
  return CUDA_SUCCESS;
}
CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy, unsigned, unsigned) {
  *object = new CUuserObject_st{pointer, destroy};
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned) {
  object->destroy(object->pointer);
  delete object;
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned, unsigned) {
  ENTER(cuGraphRetainUserObject);
  graph->retained.push_back(FakeUserObject(object, [](CUuserObject mine) { cuUserObjectRelease(mine, 1); }));
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  ENTER(cuGraphInstantiate);
  *exec = new CUgraphExec_st{graph->launches, graph->work, graph->retained};
  ++gpu.live_graph_execs;
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  ENTER(cuGraphLaunch);
  for (auto launch : exec->launches) {
    launch.stream = stream;
    gpu.launches.push_back(std::move(launch));
  }
  for (const FakeWork& work : exec->work) submit(stream, work);
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  LOCKED();
  delete graph;
  --gpu.live_graphs;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  LOCKED();
  delete exec;
  --gpu.live_graph_execs;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  *mode = std::exchange(capture_mode, *mode);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  LOCKED();
  NEED_CONTEXT();
  *event = new CUevent_st{flags};
  ++gpu.live_events;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  LOCKED();
  delete event;
  --gpu.live_events;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream) {
  LOCKED();
  event->launches = gpu.launches.size();
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent) {
  ENTER(cuEventSynchronize);
  return finish();
}
CUresult cuEventQuery(CUevent) {
  ENTER(cuEventQuery);
  return finish();
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = 0.25f;
  LOCKED();
  if (!gpu.launch_us) return CUDA_SUCCESS;
  double us = 0;
  for (std::size_t i = start->launches; i < end->launches; ++i) us += gpu.launch_us(gpu.launches[i].kernel);
  *milliseconds = static_cast<float>(us / 1000);
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  ENTER(cuLibraryLoadData);
  if (std::memcmp(code,
                  "\x7f"
                  "ELF",
                  4) != 0) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  // Cubins are 64-bit ELF files that end with their table of section headers.
  std::uint64_t table = 0;
  std::uint16_t entry_size = 0, entries = 0;
  std::memcpy(&table, static_cast<const char*>(code) + 40, 8);
  std::memcpy(&entry_size, static_cast<const char*>(code) + 58, 2);
  std::memcpy(&entries, static_cast<const char*>(code) + 60, 2);
  const std::string image(static_cast<const char*>(code), table + std::uint64_t{entry_size} * entries);
  if (!gpu.refused_kernel.empty() && image.find(gpu.refused_kernel) != std::string::npos)
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::shared_ptr<const void> loaded;
  if (gpu.executor.load) loaded = gpu.executor.load(static_cast<const char*>(code));
  if (gpu.executor.load && loaded == nullptr) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *library = new CUlib_st{image, loaded, {}};
  ++gpu.live_libraries;
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) {
  LOCKED();
  delete library;
  --gpu.live_libraries;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  ENTER(cuLibraryGetKernel);
  if (library->image.find(std::string("\0.text.", 7) + name + '\0') == std::string::npos) return CUDA_ERROR_NOT_FOUND;
  *kernel = &library->kernels.try_emplace(name, CUkern_st{name, library->loaded}).first->second;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  NEED_CONTEXT();
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  ENTER(cuFuncSetAttribute);
  gpu.function_attributes[attribute] = value;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  ENTER(cuFuncGetAttribute);
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, std::size_t bytes) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = gpu.resident_ctas_per_sm;
  const CUkern_st& kernel = *reinterpret_cast<CUkernel>(function);
  if (kernel.library != nullptr)
    *blocks = gpu.executor.resident_ctas_per_sm(kernel.library.get(), kernel.name, threads, bytes);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill) {
  map->opaque[0] = reinterpret_cast<std::uintptr_t>(address);
  if (gpu.quiet) return CUDA_SUCCESS;
  ENTER(cuTensorMapEncodeTiled);
  FakeTensorMap encoded{type,    address,  {sizes, sizes + rank}, {strides, strides + rank - 1}, {box, box + rank},
                        swizzle, promotion};
  if (gpu.encode) gpu.encode(map, encoded);
  gpu.tensor_maps.push_back(std::move(encoded));
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  if (gpu.quiet) return CUDA_SUCCESS;
  ENTER(cuLaunchKernelEx);
  NEED_CONTEXT();
  FakeLaunch launch;
  launch.kernel = reinterpret_cast<CUkernel>(function)->name;
  launch.grid = config->gridDimX * config->gridDimY * config->gridDimZ;
  launch.threads = config->blockDimX * config->blockDimY * config->blockDimZ;
  launch.shared_bytes = config->sharedMemBytes;
  launch.stream = config->hStream;
  launch.device = current_context->device;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) launch.cooperative = attribute.value.cooperative != 0;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launch.programmatic = attribute.value.programmaticStreamSerializationAllowed != 0;
    }
  }
  // Only decode kernels have an argument block. The generator's are named after their architecture.
  if (gpu.argument_bytes > 0 && (launch.kernel == "decode" || launch.kernel.starts_with("lean_sm"))) {
    const auto* bytes = static_cast<const unsigned char*>(params[0]);
    launch.arguments.assign(bytes, bytes + gpu.argument_bytes);
  }
  const CUstream_st* const stream = meant(config->hStream);
  const bool captured = stream != nullptr && stream->capturing;
  const CUkern_st& kernel = *reinterpret_cast<CUkernel>(function);
  if (kernel.library != nullptr) {
    submit(config->hStream, {nullptr, gpu.executor.prepare(kernel.library.get(), kernel.name, *config, params)});
  }
  if (!captured && gpu.run) gpu.run(launch.kernel, params);
  (captured ? stream->graph->launches : gpu.launches).push_back(std::move(launch));
  return CUDA_SUCCESS;
}

}  // extern "C"
