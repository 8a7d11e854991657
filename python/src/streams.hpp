// streams.hpp -- the stream that a call runs on, and what is known of it. GIL held where a Python object is asked.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "leanattn/error.hpp"

struct CUstream_st;

namespace leanattn::python {

struct Stream {
  CUstream_st* handle = nullptr;
  bool synchronise = false;  ///< the framework cannot wait for work on it, so that calls must
};

/// `given` when it is not None: an integer, or an object with __cuda_stream__, cuda_stream or ptr. Else the current
/// stream of the framework that `tensor` is of, on its device.
Stream find_stream(nanobind::handle given, nanobind::handle tensor);

/// A new tensor of the framework that `like` is of, on its device: of its element type, or of fp32.
nanobind::object empty(nanobind::handle like, nanobind::handle shape, bool fp32);

/// Waits for all work on a stream. Errors: context_lost.
Result<void> synchronise(CUstream_st* stream);

}  // namespace leanattn::python
