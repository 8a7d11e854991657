// tensor_map.hpp -- how the copy engine of load path `tensor` sees a KV cache (PTX ISA, "Tensors"). Values only; any
// thread.
#pragma once

#include <cuda.h>

#include "runtime/kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// The two kernel parameters that follow LeanDecodeArgs in a kernel of load path `tensor`.
struct KvTensorMaps {
  CUtensorMap k, v;
};

/// The maps for the K and V that `args` points to: five dimensions (64 dims, tokens up to the capacity, panels of 64
/// dims, KV heads, requests), boxes of one step, 128-byte swizzle. Paged: tokens of a page, and pages instead of
/// requests; a box is a run of tokens of one panel, or a step of all panels where pages hold whole steps. Never follows
/// a pointer.
/// Errors: unsupported (a stride of 2^40 bytes or more), driver errors as launch_failed.
Result<KvTensorMaps> encode_tensor_maps(const KernelSpec& spec, const LeanDecodeArgs& args);

}  // namespace v1
}  // namespace leanattn
