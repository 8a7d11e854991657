// workspaces.hpp -- an engine's device memory for partial results: one workspace a stream, and one a stream of every
// captured graph, which lives as long as the graph. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "captures.hpp"
#include "leanattn/leanattn.hpp"
#include "runtime/gpu.hpp"

namespace leanattn::python {

class Workspaces {
 public:
  /// `context` is current whenever memory is allocated or freed.
  explicit Workspaces(Context context) : context_(std::move(context)) {}
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;
  /// No launch may be running, and no graph with one may run again.
  ~Workspaces();

  /// Zeroed memory of at least the plan's size for a launch on `stream`: always the same for one stream until a plan
  /// needs more. While the stream is being captured it is the graph's own, so that the graph may run beside anything
  /// else. Errors: out_of_memory, launch_failed (a capture that an error has ended), context_lost.
  Result<void*> get(const leanattn_plan* plan, CUstream_st* stream);

  /// Bytes held, for all streams and graphs.
  std::int64_t bytes() const;

 private:
  /// Memory of a captured graph. `ended` is set when the graph is gone.
  struct Lent {
    DeviceBuffer buffer;
    std::shared_ptr<std::atomic<bool>> ended;
  };

  Result<DeviceBuffer> allocate(std::int64_t bytes);
  Result<void*> of_stream(const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream);
  Result<void*> of_capture(std::int64_t bytes, CUstream_st* stream, const Capture& capture);
  void take_back_ended();

  Context context_;
  mutable std::mutex mutex_;
  std::map<CUstream_st*, DeviceBuffer> streams_;
  std::map<std::pair<std::uint64_t, CUstream_st*>, std::vector<Lent>> captures_;  // by capture id and stream
  std::vector<DeviceBuffer> spare_;     // of graphs that are gone; all zero, as completed launches leave them
  std::vector<DeviceBuffer> outgrown_;  // kept, because a launch that uses it may be running
};

}  // namespace leanattn::python
