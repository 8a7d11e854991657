// gpu.hpp -- objects of the driver that free themselves: Context, DeviceBuffer, PinnedBuffer, Stream, Event, Graph,
// LoadedSource; and copies. Any thread that has the owning context current may use them, each object by one thread at a
// time. All of them must be destroyed before their Context. They are for the tuner, tests and benchmarks; the launches
// of an engine only need loaded_kernel.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "leanattn/error.hpp"

struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraphExec_st;
struct CUlib_st;
struct CUstream_st;

namespace leanattn {
inline namespace v1 {

struct CompiledKernel;  // runtime/cuda/compiler.hpp

namespace gpu_detail {
struct DestroyStream {
  void operator()(CUstream_st* stream) const noexcept;
};
struct DestroyEvent {
  void operator()(CUevent_st* event) const noexcept;
};
struct DestroyGraphExec {
  void operator()(CUgraphExec_st* graph) const noexcept;
};
struct UnloadLibrary {
  void operator()(CUlib_st* library) const noexcept;
};
struct FreePinned {
  void operator()(void* memory) const noexcept;
};
}  // namespace gpu_detail

/// A reference to the primary context of a GPU, which is the one that the CUDA runtime and PyTorch use.
class Context {
 public:
  /// Retains the context and makes it current on this thread. Errors: no_driver, driver_too_old, no_device,
  /// out_of_memory, context_lost.
  static Result<Context> retain(int ordinal);

  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;
  ~Context();

  int ordinal() const { return ordinal_; }
  CUctx_st* get() const { return context_; }
  /// Makes it current on the calling thread.
  Result<void> make_current() const;

 private:
  Context() = default;
  int ordinal_ = -1;
  CUctx_st* context_ = nullptr;
};

/// Waits for all work of the current context. An error is usually that of an earlier kernel. Errors: launch_failed,
/// context_lost.
Result<void> synchronize_context();

/// Memory of a GPU.
struct DeviceMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};
/// The memory of the current context's GPU. Errors: context_lost.
Result<DeviceMemory> device_memory();

/// Device memory, aligned to 256 bytes. Its contents are undefined at first.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  ///< empty: data() is null
  /// 0 bytes make an empty buffer. Errors: invalid_argument (negative), out_of_memory (says how much is free),
  /// context_lost.
  static Result<DeviceBuffer> allocate(std::int64_t bytes);

  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::int64_t bytes() const { return bytes_; }
  /// A device pointer, for kernel arguments. The host must not dereference it.
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// The device pointer to the byte at `offset`.
  void* at(std::int64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Page-locked host memory. Copies to and from it are asynchronous and run at the full speed of the link.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// Errors: invalid_argument (negative), out_of_memory.
  static Result<PinnedBuffer> allocate(std::int64_t bytes);

  std::int64_t bytes() const { return bytes_; }
  void* data() const { return memory_.get(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }

 private:
  std::unique_ptr<void, gpu_detail::FreePinned> memory_;
  std::int64_t bytes_ = 0;
};

/// A non-blocking stream, which does not wait for the legacy default stream.
class Stream {
 public:
  static Result<Stream> create();
  CUstream_st* get() const { return stream_.get(); }
  Result<void> synchronize() const;

 private:
  std::unique_ptr<CUstream_st, gpu_detail::DestroyStream> stream_;
};

/// A CUDA event.
class Event {
 public:
  /// An event without timing is cheaper, but elapsed_us() refuses it.
  static Result<Event> create(bool timing = true);
  CUevent_st* get() const { return event_.get(); }
  Result<void> record(CUstream_st* stream) const;
  Result<void> synchronize() const;
  /// Whether everything that was enqueued before the record has ended.
  Result<bool> query() const;

 private:
  std::unique_ptr<CUevent_st, gpu_detail::DestroyEvent> event_;
};

/// Microseconds between two events that were recorded and have completed. The resolution is about half a microsecond.
Result<double> elapsed_us(const Event& start, const Event& end);

/// An instantiated CUDA graph.
class Graph {
 public:
  /// Captures what `body` enqueues on `stream`, in thread-local capture mode, and instantiates the graph. The stream
  /// can be used afterwards, also when body fails. Errors: those of body, launch_failed, context_lost.
  static Result<Graph> capture(const Stream& stream, const std::function<Result<void>(CUstream_st*)>& body);
  Result<void> launch(CUstream_st* stream) const;

 private:
  std::unique_ptr<CUgraphExec_st, gpu_detail::DestroyGraphExec> graph_;
};

/// Enqueue a copy or fill of `bytes`; with 0 bytes they do nothing. Host memory must stay valid and unchanged until the
/// stream has got so far, and the copy is asynchronous only if it is pinned. Device pointers may point into a buffer.
/// Errors: internal (a bad pointer), context_lost.
Result<void> copy_to_device_async(void* device, const void* host, std::int64_t bytes, CUstream_st* stream);
Result<void> copy_to_host_async(void* host, const void* device, std::int64_t bytes, CUstream_st* stream);
Result<void> copy_on_device_async(void* to, const void* from, std::int64_t bytes, CUstream_st* stream);
Result<void> fill_bytes_async(void* device, std::uint8_t value, std::int64_t bytes, CUstream_st* stream);
/// Enqueue a fill of `count` elements of 2 or 4 bytes, to which `device` must be aligned.
Result<void> fill_u16_async(void* device, std::uint16_t value, std::int64_t count, CUstream_st* stream);
Result<void> fill_u32_async(void* device, std::uint32_t value, std::int64_t count, CUstream_st* stream);

/// Copy and wait until the copy is done. Errors: as above.
Result<void> copy_to_device(void* device, const void* host, std::int64_t bytes, const Stream& stream);
Result<void> copy_to_host(void* host, const void* device, std::int64_t bytes, const Stream& stream);

/// Grid and CTA sizes of a launch.
struct LaunchDims {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;  ///< CTAs
  unsigned threads = 1;                         ///< of a CTA
  unsigned shared_bytes = 0;                    ///< dynamic shared memory of a CTA
};

/// The kernels of what compile_source() returned, loaded into the current context.
class LoadedSource {
 public:
  /// Errors: no_driver, driver_too_old, load_failed, out_of_memory, context_lost.
  static Result<LoadedSource> load(const CompiledKernel& compiled);
  /// The kernel of this `extern "C"` name, which may be launched with up to `max_shared_bytes` of dynamic shared
  /// memory, and has clusters of more than 8 CTAs if `large_clusters`. It is valid as long as this object. Errors:
  /// not_found, load_failed, context_lost.
  Result<CUfunc_st*> function(const std::string& name, int max_shared_bytes = 0, bool large_clusters = false) const;

 private:
  std::unique_ptr<CUlib_st, gpu_detail::UnloadLibrary> library_;
};

/// Enqueues one launch. As for cuLaunchKernel, `params` has a pointer to each parameter of the kernel. Errors:
/// launch_failed, context_lost.
Result<void> launch(CUfunc_st* function, const LaunchDims& dims, CUstream_st* stream, void** params);

/// The number of CTAs of this size that one SM holds. Errors: launch_failed, context_lost.
Result<int> occupancy(CUfunc_st* function, unsigned threads, unsigned shared_bytes);

/// launch() with the arguments by value. Their types must be exactly those of the kernel's parameters.
template <class... Args>
Result<void> launch_with(CUfunc_st* function, const LaunchDims& dims, CUstream_st* stream, Args... args) {
  void* params[] = {static_cast<void*>(&args)..., nullptr};
  return launch(function, dims, stream, params);
}

}  // namespace v1
}  // namespace leanattn
