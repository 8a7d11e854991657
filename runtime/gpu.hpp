// gpu.hpp -- RAII over the driver: Context, DeviceBuffer, PinnedBuffer, Stream, Event, Graph, LoadedSource, copies.
// Any thread that has the owning context current; one object is used from one thread at a time. Everything but a
// Context must be destroyed before the Context that it was made in. Building blocks for the tuner, tests and benches:
// the launch path of an engine needs only kernel.hpp.
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

struct CompiledKernel;  // runtime/compiler.hpp

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

/// Holds one reference on a device's primary context (the one the CUDA runtime and PyTorch use).
class Context {
 public:
  /// Retains it and makes it current on this thread. Errors: no_driver, driver_too_old, no_device, out_of_memory,
  /// context_lost.
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

/// Waits for everything enqueued in the current context. A failure here is usually an earlier kernel's: context_lost.
Result<void> synchronize_context();

struct DeviceMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};
/// Of the current context's device.
Result<DeviceMemory> device_memory();

/// Device memory, 256-byte aligned. Contents start undefined.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  ///< empty: data() is null
  /// Zero bytes give an empty buffer. Errors: invalid_argument (negative), out_of_memory (with what was free),
  /// context_lost.
  static Result<DeviceBuffer> allocate(std::int64_t bytes);

  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::int64_t bytes() const { return bytes_; }
  /// A device pointer: for kernel arguments, never to be dereferenced on the host.
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// Device pointer `offset` bytes in.
  void* at(std::int64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Page-locked host memory: copies to and from it are asynchronous and run at full link speed.
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

/// A non-blocking stream (it does not wait for the legacy default stream).
class Stream {
 public:
  static Result<Stream> create();
  CUstream_st* get() const { return stream_.get(); }
  Result<void> synchronize() const;

 private:
  std::unique_ptr<CUstream_st, gpu_detail::DestroyStream> stream_;
};

class Event {
 public:
  /// Without timing an event is cheaper, and elapsed_us() refuses it.
  static Result<Event> create(bool timing = true);
  CUevent_st* get() const { return event_.get(); }
  Result<void> record(CUstream_st* stream) const;
  Result<void> synchronize() const;
  /// True once everything before the record has run.
  Result<bool> query() const;

 private:
  std::unique_ptr<CUevent_st, gpu_detail::DestroyEvent> event_;
};

/// Microseconds between two recorded and completed events. Resolution about half a microsecond.
Result<double> elapsed_us(const Event& start, const Event& end);

/// An instantiated CUDA graph.
class Graph {
 public:
  /// Captures what `body` enqueues on `stream` (thread-local capture mode), then instantiates. The stream is left
  /// usable whether or not body fails; body's error is passed on. Errors: body's, launch_failed, context_lost.
  static Result<Graph> capture(const Stream& stream, const std::function<Result<void>(CUstream_st*)>& body);
  Result<void> launch(CUstream_st* stream) const;

 private:
  std::unique_ptr<CUgraphExec_st, gpu_detail::DestroyGraphExec> graph_;
};

/// Enqueue a copy or fill of `bytes`. Host memory must stay valid and unchanged until the stream has passed; only
/// pinned memory makes the copy truly asynchronous. Device pointers may point inside a buffer. Nothing
/// to copy is nothing done, whatever the pointers. Errors: internal (bad
/// pointer), context_lost.
Result<void> copy_to_device_async(void* device, const void* host, std::int64_t bytes, CUstream_st* stream);
Result<void> copy_to_host_async(void* host, const void* device, std::int64_t bytes, CUstream_st* stream);
Result<void> copy_on_device_async(void* to, const void* from, std::int64_t bytes, CUstream_st* stream);
Result<void> fill_bytes_async(void* device, std::uint8_t value, std::int64_t bytes, CUstream_st* stream);
/// device 2-byte (4-byte) aligned; `count` elements.
Result<void> fill_u16_async(void* device, std::uint16_t value, std::int64_t count, CUstream_st* stream);
Result<void> fill_u32_async(void* device, std::uint32_t value, std::int64_t count, CUstream_st* stream);

/// The same, done when they return.
Result<void> copy_to_device(void* device, const void* host, std::int64_t bytes, const Stream& stream);
Result<void> copy_to_host(void* host, const void* device, std::int64_t bytes, const Stream& stream);

/// Grid and CTA sizes of a launch.
struct LaunchDims {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;  ///< CTAs
  unsigned threads = 1;                         ///< per CTA
  unsigned shared_bytes = 0;                    ///< dynamic shared memory per CTA
};

/// The kernels of one compile_source() result, loaded into the current context.
class LoadedSource {
 public:
  /// Errors: no_driver, driver_too_old, load_failed, out_of_memory, context_lost.
  static Result<LoadedSource> load(const CompiledKernel& compiled);
  /// The kernel of this (extern "C") name, allowed max_shared_bytes of dynamic shared memory. Valid as long as this
  /// object. Errors: not_found, load_failed, context_lost.
  Result<CUfunc_st*> function(const std::string& name, int max_shared_bytes = 0) const;

 private:
  std::unique_ptr<CUlib_st, gpu_detail::UnloadLibrary> library_;
};

/// Enqueues one launch; params points at one pointer per kernel parameter, as for cuLaunchKernel. Errors:
/// launch_failed, context_lost.
Result<void> launch(CUfunc_st* function, const LaunchDims& dims, CUstream_st* stream, void** params);

/// CTAs of `function` that one SM holds with this CTA size. Errors: launch_failed, context_lost.
Result<int> occupancy(CUfunc_st* function, unsigned threads, unsigned shared_bytes);

/// launch() with the kernel's arguments by value; their types must match the kernel's parameters exactly.
template <class... Args>
Result<void> launch_with(CUfunc_st* function, const LaunchDims& dims, CUstream_st* stream, Args... args) {
  void* params[] = {static_cast<void*>(&args)..., nullptr};
  return launch(function, dims, stream, params);
}

}  // namespace v1
}  // namespace leanattn
