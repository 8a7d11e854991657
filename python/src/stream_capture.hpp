// stream_capture.hpp -- StreamCapture: the CUDA stream capture that a stream is in, and how long its graph lives. Any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "leanattn/error.hpp"

struct CUstream_st;
struct CUgraph_st;

namespace leanattn::python {

/// The capture of a stream into a graph.
struct StreamCapture {
  std::uint64_t id = 0;  ///< unique in the process; 0: the stream is not being captured
  CUgraph_st* graph = nullptr;
};

/// The capture that `stream` is in; id 0 for none. Errors: no_driver, driver_too_old, launch_failed (an earlier error
/// has ended the capture), context_lost.
Result<StreamCapture> stream_capture_of(CUstream_st* stream);

/// Has `ended` set to true when the graph, and all that was instantiated from it, is gone. Errors: as above.
Result<void> tell_end(const StreamCapture& capture, std::shared_ptr<std::atomic<bool>> ended);

}  // namespace leanattn::python
