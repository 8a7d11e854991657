// workspaces.hpp -- Workspaces: the memory that launches of an engine need beside their tensors, one workspace and one
// scratch memory for each stream, and for each stream of every graph that was captured, as long as the graph lives.
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/stream_identity.hpp"
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
  /// graph may run beside anything else. What is enqueued with it is followed by enqueued(). Errors: out_of_memory,
  /// launch_failed (an error has ended the capture), context_lost.
  Result<void*> get(const leanattn_plan* plan, CUstream_st* stream);

  /// Memory of any contents for what one launch on a stream leaves to the next. While it lives, no other thread gets
  /// any, whose launches could come between the two.
  struct Scratch {
    std::unique_lock<std::mutex> alone;
    void* data = nullptr;
  };
  /// As get(). The scratch memory of a stream, too, is the same for all launches until more is needed.
  Result<Scratch> scratch(std::int64_t bytes, CUstream_st* stream);

  /// Says that this thread has enqueued all that uses what it got for `stream`, or that it could not.
  void enqueued(CUstream_st* stream);

  /// Whether the stream is being captured. Errors: launch_failed (an error has ended the capture), context_lost.
  Result<bool> capturing(CUstream_st* stream) const;

  /// A zeroed workspace of `bytes` that is the caller's. Streams may be captured meanwhile. Errors: out_of_memory,
  /// context_lost.
  Result<DeviceBuffer> make(std::int64_t bytes);
  /// Frees such a workspace. No launch that uses it may be running.
  void free(DeviceBuffer buffer);

  /// Waits for everything in the context. Errors: launch_failed (a stream is being captured), context_lost.
  Result<void> wait();
  /// Waits for everything on a stream of the context. Errors: context_lost.
  Result<void> wait(CUstream_st* stream);

  /// Zeroes all workspaces, also those of make() and of graphs, after everything in the context has ended. Errors:
  /// launch_failed (a stream is being captured), context_lost.
  Result<void> reset();

  /// Bytes of all memory of streams and captured graphs.
  std::int64_t bytes() const;

 private:
  enum Kind : std::uint8_t { workspace_kind, scratch_kind, kinds };
  using Memory = std::array<DeviceBuffer, kinds>;
  /// The memory of a stream that is CU_STREAM_PER_THREAD. Threads come and go, and nobody says when. So one that has
  /// none takes that of another thread of which all launches have ended.
  struct OfThread {
    StreamIdentity stream;
    bool enqueuing = false;  ///< from the time when it is handed out until enqueued()
    Event end;               ///< of its launches
    Memory memory;
  };
  /// Memory of a graph. `ended` becomes true when the graph is gone.
  struct Lent {
    DeviceBuffer buffer;
    std::shared_ptr<std::atomic<bool>> ended;
  };
  using OfCapture = std::tuple<std::uint64_t, StreamIdentity, Kind>;  // the capture's id

  Result<DeviceBuffer> allocate(std::int64_t bytes);
  Result<void> zero(void* data, std::int64_t bytes);
  /// `plan` is that of a workspace, else null.
  Result<void*> find(Kind kind, const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream);
  Result<Memory*> of_stream(CUstream_st* stream);
  Result<void*> grow(DeviceBuffer& buffer, const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream);
  Result<void*> of_capture(Kind kind, std::int64_t bytes, CUstream_st* stream, const StreamCapture& capture);
  void take_back_ended();
  /// Calls `function` with every buffer that a stream or a graph has.
  template <class Function>
  void for_each_in_use(Function function) const;

  Context context_;
  std::mutex scratch_mutex_;  // locked before mutex_
  mutable std::mutex mutex_;  // guards what follows
  std::map<CUstream_st*, Memory> streams_;
  std::list<OfThread> threads_;
  std::map<OfCapture, std::vector<Lent>> captures_;
  std::vector<DeviceBuffer> spare_;     // of graphs that are gone
  std::map<void*, std::int64_t> made_;  // by make(): their bytes
  std::vector<DeviceBuffer> outgrown_;  // kept, because launches that use them may be running
};

}  // namespace leanattn::python
