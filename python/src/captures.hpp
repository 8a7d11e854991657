// captures.hpp -- stream captures: which one a stream is in, and how long its graph lives. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "leanattn/error.hpp"

struct CUstream_st;
struct CUgraph_st;

namespace leanattn::python {

struct Capture {
  std::uint64_t id = 0;  ///< unique in the process; 0: the stream is not being captured
  CUgraph_st* graph = nullptr;
};

/// Errors: no_driver, driver_too_old, launch_failed (the capture was invalidated by an earlier error), context_lost.
Result<Capture> capture_of(CUstream_st* stream);

/// `ended` becomes true when the graph and everything instantiated from it is gone. Errors: as above.
Result<void> tell_end(const Capture& capture, std::shared_ptr<std::atomic<bool>> ended);

/// While it lives, this thread may allocate and free although a stream is being captured.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;
  ~RelaxedCaptureMode();

 private:
  int before_;
};

}  // namespace leanattn::python
