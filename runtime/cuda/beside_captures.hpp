// beside_captures.hpp -- BesideCaptures: calls of the driver while other threads capture streams. Used by one thread.
#pragma once

#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {

/// Allows this thread, while it lives, what a stream that is captured in global mode forbids to all threads (CUDA
/// driver API, cuThreadExchangeStreamCaptureMode). Without a driver it does nothing.
class BesideCaptures {
 public:
  BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() { exchange(); }

 private:
  void exchange() {
    if (const auto api = driver()) (*api)->cuThreadExchangeStreamCaptureMode(&mode_);
  }
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace v1
}  // namespace leanattn
