// gpu.cpp -- calls of the driver with their errors checked.
#include "runtime/cuda/gpu.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/load_cubin.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// The table, for destructors. It is not null there, because an object exists only after driver() has succeeded.
const DriverApi* opened_driver() {
  const auto api = driver();
  return api ? *api : nullptr;
}

CUdeviceptr device_pointer(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Makes a call of the driver and checks its status.
template <class Call>
Result<void> with_driver(const char* name, ErrorCode code, Call&& call) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  return check(call(**api), name, code);
}

}  // namespace

namespace gpu_detail {

// Destroying fails only when the context is lost, and then there is nothing left to free.
void DestroyStream::operator()(CUstream_st* stream) const noexcept {
  if (const auto* api = opened_driver()) api->cuStreamDestroy(stream);
}
void DestroyEvent::operator()(CUevent_st* event) const noexcept {
  if (const auto* api = opened_driver()) api->cuEventDestroy(event);
}
void DestroyGraphExec::operator()(CUgraphExec_st* graph) const noexcept {
  if (const auto* api = opened_driver()) api->cuGraphExecDestroy(graph);
}
void UnloadLibrary::operator()(CUlib_st* library) const noexcept {
  if (const auto* api = opened_driver()) api->cuLibraryUnload(library);
}
void FreePinned::operator()(void* memory) const noexcept {
  if (const auto* api = opened_driver()) api->cuMemFreeHost(memory);
}

}  // namespace gpu_detail

Result<Context> Context::retain(int ordinal) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  int count = 0;
  if (const auto ok = check((*api)->cuDeviceGetCount(&count), "cuDeviceGetCount"); !ok)
    return tl::unexpected(ok.error());
  if (ordinal < 0 || ordinal >= count) {
    return fail(ErrorCode::no_device, fmt::format("there is no CUDA device {}: {} visible", ordinal, count),
                "Devices count from 0; CUDA_VISIBLE_DEVICES decides which there are.");
  }
  CUdevice device = 0;
  if (const auto ok = check((*api)->cuDeviceGet(&device, ordinal), "cuDeviceGet"); !ok)
    return tl::unexpected(ok.error());
  Context context;
  const auto retained = check((*api)->cuDevicePrimaryCtxRetain(&context.context_, device), "cuDevicePrimaryCtxRetain",
                              ErrorCode::no_device);
  if (!retained) return tl::unexpected(retained.error());
  context.ordinal_ = ordinal;
  if (const auto ok = context.make_current(); !ok) return tl::unexpected(ok.error());
  return context;
}

Context::Context(Context&& other) noexcept
    : ordinal_(std::exchange(other.ordinal_, -1)), context_(std::exchange(other.context_, nullptr)) {}

Context& Context::operator=(Context&& other) noexcept {
  std::swap(ordinal_, other.ordinal_);
  std::swap(context_, other.context_);
  return *this;
}

Context::~Context() {
  if (context_ == nullptr) return;
  const auto* api = opened_driver();
  CUdevice device = 0;
  if (api == nullptr || api->cuDeviceGet(&device, ordinal_) != CUDA_SUCCESS) return;
  CUcontext current = nullptr;
  const bool ours = api->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context_;
  api->cuDevicePrimaryCtxRelease(device);
  // A framework or another engine may keep the context alive. Otherwise it is destroyed now, and then it must not stay
  // current on this thread.
  unsigned flags = 0;
  int active = 0;
  if (ours && api->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active == 0) {
    api->cuCtxSetCurrent(nullptr);
  }
}

Result<void> Context::make_current() const {
  return with_driver("cuCtxSetCurrent", ErrorCode::internal,
                     [&](const DriverApi& api) { return api.cuCtxSetCurrent(context_); });
}

Result<void> synchronize_context() {
  return with_driver("cuCtxSynchronize", ErrorCode::launch_failed,
                     [](const DriverApi& api) { return api.cuCtxSynchronize(); });
}

Result<DeviceMemory> device_memory() {
  std::size_t free_bytes = 0, total_bytes = 0;
  const auto ok = with_driver("cuMemGetInfo", ErrorCode::internal,
                              [&](const DriverApi& api) { return api.cuMemGetInfo(&free_bytes, &total_bytes); });
  if (!ok) return tl::unexpected(ok.error());
  return DeviceMemory{static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes)};
}

Result<DeviceBuffer> DeviceBuffer::allocate(std::int64_t bytes) {
  if (bytes < 0) return fail(ErrorCode::invalid_argument, fmt::format("a buffer of {} bytes was asked for", bytes));
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  CUdeviceptr pointer = 0;
  const auto ok = with_driver("cuMemAlloc", ErrorCode::out_of_memory, [&](const DriverApi& api) {
    return api.cuMemAlloc(&pointer, static_cast<std::size_t>(bytes));
  });
  if (!ok) {
    auto error = ok.error();
    if (error.code == ErrorCode::out_of_memory) {
      const auto memory = device_memory();
      error.message +=
          memory ? fmt::format(" ({} bytes asked for, {} of {} free)", bytes, memory->free_bytes, memory->total_bytes)
                 : fmt::format(" ({} bytes asked for)", bytes);
    }
    return tl::unexpected(std::move(error));
  }
  buffer.data_ = reinterpret_cast<void*>(pointer);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  // Frees the old memory now and not together with `other`, because callers reuse a variable for many gigabytes.
  DeviceBuffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (const auto* api = opened_driver()) api->cuMemFree(device_pointer(data_));
}

Result<PinnedBuffer> PinnedBuffer::allocate(std::int64_t bytes) {
  if (bytes < 0)
    return fail(ErrorCode::invalid_argument, fmt::format("a pinned buffer of {} bytes was asked for", bytes));
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* memory = nullptr;
  const auto ok = with_driver("cuMemAllocHost", ErrorCode::out_of_memory, [&](const DriverApi& api) {
    return api.cuMemAllocHost(&memory, static_cast<std::size_t>(bytes));
  });
  if (!ok) return tl::unexpected(ok.error());
  buffer.memory_.reset(memory);
  buffer.bytes_ = bytes;
  return buffer;
}

Result<Stream> Stream::create() {
  CUstream handle = nullptr;
  const auto ok = with_driver("cuStreamCreate", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING);
  });
  if (!ok) return tl::unexpected(ok.error());
  Stream stream;
  stream.stream_.reset(handle);
  return stream;
}

Result<void> Stream::synchronize() const {
  return with_driver("cuStreamSynchronize", ErrorCode::launch_failed,
                     [&](const DriverApi& api) { return api.cuStreamSynchronize(stream_.get()); });
}

Result<Event> Event::create(bool timing) {
  CUevent handle = nullptr;
  const unsigned flags = timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  const auto ok = with_driver("cuEventCreate", ErrorCode::internal,
                              [&](const DriverApi& api) { return api.cuEventCreate(&handle, flags); });
  if (!ok) return tl::unexpected(ok.error());
  Event event;
  event.event_.reset(handle);
  return event;
}

Result<void> Event::record(CUstream_st* stream) const {
  return with_driver("cuEventRecord", ErrorCode::internal,
                     [&](const DriverApi& api) { return api.cuEventRecord(event_.get(), stream); });
}

Result<void> Event::synchronize() const {
  return with_driver("cuEventSynchronize", ErrorCode::launch_failed,
                     [&](const DriverApi& api) { return api.cuEventSynchronize(event_.get()); });
}

Result<bool> Event::query() const {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const CUresult status = (*api)->cuEventQuery(event_.get());
  if (status == CUDA_ERROR_NOT_READY) return false;
  if (const auto ok = check(status, "cuEventQuery", ErrorCode::launch_failed); !ok) return tl::unexpected(ok.error());
  return true;
}

Result<double> elapsed_us(const Event& start, const Event& end) {
  float milliseconds = 0;
  const auto ok = with_driver("cuEventElapsedTime", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuEventElapsedTime(&milliseconds, start.get(), end.get());
  });
  if (!ok) return tl::unexpected(ok.error());
  return static_cast<double>(milliseconds) * 1000.0;
}

Result<Graph> Graph::capture(const Stream& stream, const std::function<Result<void>(CUstream_st*)>& body) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const auto begun = check((*api)->cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                           "cuStreamBeginCapture", ErrorCode::launch_failed);
  if (!begun) return tl::unexpected(begun.error());
  const auto filled = body(stream.get());
  CUgraph captured = nullptr;
  const auto ended =
      check((*api)->cuStreamEndCapture(stream.get(), &captured), "cuStreamEndCapture", ErrorCode::launch_failed);
  if (!filled || !ended) {
    if (captured != nullptr) (*api)->cuGraphDestroy(captured);
    return tl::unexpected(filled ? ended.error() : filled.error());
  }
  CUgraphExec instantiated = nullptr;
  const auto made =
      check((*api)->cuGraphInstantiate(&instantiated, captured, 0), "cuGraphInstantiate", ErrorCode::launch_failed);
  (*api)->cuGraphDestroy(captured);
  if (!made) return tl::unexpected(made.error());
  Graph graph;
  graph.graph_.reset(instantiated);
  return graph;
}

Result<void> Graph::launch(CUstream_st* stream) const {
  return with_driver("cuGraphLaunch", ErrorCode::launch_failed,
                     [&](const DriverApi& api) { return api.cuGraphLaunch(graph_.get(), stream); });
}

Result<void> copy_to_device_async(void* device, const void* host, std::int64_t bytes, CUstream_st* stream) {
  if (bytes == 0) return {};
  return with_driver("cuMemcpyHtoDAsync", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemcpyHtoDAsync(device_pointer(device), host, static_cast<std::size_t>(bytes), stream);
  });
}

Result<void> copy_to_host_async(void* host, const void* device, std::int64_t bytes, CUstream_st* stream) {
  if (bytes == 0) return {};
  return with_driver("cuMemcpyDtoHAsync", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemcpyDtoHAsync(host, device_pointer(device), static_cast<std::size_t>(bytes), stream);
  });
}

Result<void> copy_on_device_async(void* to, const void* from, std::int64_t bytes, CUstream_st* stream) {
  if (bytes == 0) return {};
  return with_driver("cuMemcpyDtoDAsync", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemcpyDtoDAsync(device_pointer(to), device_pointer(from), static_cast<std::size_t>(bytes), stream);
  });
}

Result<void> fill_bytes_async(void* device, std::uint8_t value, std::int64_t bytes, CUstream_st* stream) {
  if (bytes == 0) return {};
  return with_driver("cuMemsetD8Async", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemsetD8Async(device_pointer(device), value, static_cast<std::size_t>(bytes), stream);
  });
}

Result<void> fill_u16_async(void* device, std::uint16_t value, std::int64_t count, CUstream_st* stream) {
  if (count == 0) return {};
  return with_driver("cuMemsetD16Async", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemsetD16Async(device_pointer(device), value, static_cast<std::size_t>(count), stream);
  });
}

Result<void> fill_u32_async(void* device, std::uint32_t value, std::int64_t count, CUstream_st* stream) {
  if (count == 0) return {};
  return with_driver("cuMemsetD32Async", ErrorCode::internal, [&](const DriverApi& api) {
    return api.cuMemsetD32Async(device_pointer(device), value, static_cast<std::size_t>(count), stream);
  });
}

Result<void> copy_to_device(void* device, const void* host, std::int64_t bytes, const Stream& stream) {
  const auto queued = copy_to_device_async(device, host, bytes, stream.get());
  return queued ? stream.synchronize() : queued;
}

Result<void> copy_to_host(void* host, const void* device, std::int64_t bytes, const Stream& stream) {
  const auto queued = copy_to_host_async(host, device, bytes, stream.get());
  return queued ? stream.synchronize() : queued;
}

Result<LoadedSource> LoadedSource::load(const CompiledKernel& compiled) {
  const auto library = load_cubin(compiled.cubin);
  if (!library) return tl::unexpected(library.error());
  LoadedSource source;
  source.library_.reset(*library);
  return source;
}

Result<CUfunc_st*> LoadedSource::function(const std::string& name, int max_shared_bytes, bool large_clusters) const {
  return load_function(library_.get(), name, max_shared_bytes,
                       max_shared_bytes > 0 ? CarveOut::largest_shared : CarveOut::automatic, large_clusters);
}

Result<void> launch(CUfunc_st* function, const LaunchDims& dims, CUstream_st* stream, void** params) {
  return with_driver("cuLaunchKernelEx", ErrorCode::launch_failed, [&](const DriverApi& api) {
    CUlaunchConfig config{};
    config.gridDimX = dims.grid_x;
    config.gridDimY = dims.grid_y;
    config.gridDimZ = dims.grid_z;
    config.blockDimX = dims.threads;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.sharedMemBytes = dims.shared_bytes;
    config.hStream = stream;
    return api.cuLaunchKernelEx(&config, function, params, nullptr);
  });
}

Result<int> occupancy(CUfunc_st* function, unsigned threads, unsigned shared_bytes) {
  int resident = 0;
  const auto ok =
      with_driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", ErrorCode::launch_failed, [&](const DriverApi& api) {
        return api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, static_cast<int>(threads),
                                                               shared_bytes);
      });
  if (!ok) return tl::unexpected(ok.error());
  return resident;
}

}  // namespace v1
}  // namespace leanattn
