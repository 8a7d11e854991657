// workspaces.hpp -- Workspaces: the workspaces of an engine, one for each stream, and one for each stream of every
// graph that was captured, which lives as long as the graph. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "runtime/cuda/gpu.hpp"
#include "stream_capture.hpp"

namespace leanattn::python {

class Workspaces {
 public:
  /// Memory is allocated and freed with `context` current.
  explicit Workspaces(Context context) : context_(std::move(context)) {}
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;
  /// No launch may be running, and no graph that has one may run again.
  ~Workspaces();

  /// A zeroed workspace that is large enough for a launch of the plan on `stream`. It is the same for all launches on a
  /// stream until a plan needs a larger one. While the stream is being captured it belongs to the graph, so that the
  /// graph may run beside anything else. Errors: out_of_memory, launch_failed (an error has ended the capture),
  /// context_lost.
  Result<void*> get(const leanattn_plan* plan, CUstream_st* stream);

  /// A zeroed workspace of `bytes` that is the caller's. Streams may be captured meanwhile. Errors: out_of_memory,
  /// context_lost.
  Result<DeviceBuffer> make(std::int64_t bytes);
  /// Frees such a workspace. No launch that uses it may be running.
  void free(DeviceBuffer buffer);

  /// Waits for everything in the context. Errors: launch_failed (a stream is being captured), context_lost.
  Result<void> wait();

  /// Zeroes all workspaces, also those of make() and of graphs, after everything in the context has ended. Errors:
  /// launch_failed (a stream is being captured), context_lost.
  Result<void> reset();

  /// Bytes of all workspaces of streams and captured graphs.
  std::int64_t bytes() const;

 private:
  /// A workspace of a graph. `ended` becomes true when the graph is gone.
  struct Lent {
    DeviceBuffer buffer;
    std::shared_ptr<std::atomic<bool>> ended;
  };

  Result<DeviceBuffer> allocate(std::int64_t bytes);
  Result<void> zero(void* data, std::int64_t bytes);
  Result<void*> of_stream(const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream);
  Result<void*> of_capture(std::int64_t bytes, CUstream_st* stream, const StreamCapture& capture);
  void take_back_ended();

  Context context_;
  mutable std::mutex mutex_;
  std::map<CUstream_st*, DeviceBuffer> streams_;
  std::map<std::pair<std::uint64_t, CUstream_st*>, std::vector<Lent>> captures_;  // by capture id and stream
  std::vector<DeviceBuffer> spare_;                                               // of graphs that are gone
  std::map<void*, std::int64_t> made_;                                            // by make(): their bytes
  std::vector<DeviceBuffer> outgrown_;  // kept, because launches that use them may be running
};

}  // namespace leanattn::python
