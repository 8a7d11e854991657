// streams.hpp -- Stream: the CUDA stream of a call. Functions that take Python objects are called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

struct CUstream_st;

namespace leanattn::python {

/// A CUDA stream; null is the legacy default stream.
struct Stream {
  CUstream_st* handle = nullptr;
  bool synchronise = false;  ///< the call must wait for its work, because the framework cannot
};

/// The stream `given`, which is an integer or an object with __cuda_stream__, cuda_stream or ptr. For None, the current
/// stream of the framework of `tensor` on its GPU.
Stream find_stream(nanobind::handle given, nanobind::handle tensor);

/// A new tensor of the framework of `like` on its GPU, with its element type or fp32.
nanobind::object empty(nanobind::handle like, nanobind::handle shape, bool fp32);

}  // namespace leanattn::python
