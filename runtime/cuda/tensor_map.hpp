// tensor_map.hpp -- KvTensorMaps: how the copy engine of load path `tensor` sees a KV cache (PTX ISA, "Tensors"). Plain
// data; any thread.
#pragma once

#include <cuda.h>

#include <array>

#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// The kernel parameters that follow LeanDecodeArgs in a kernel of load path `tensor`: those of its walk or, where a
/// CTA has two (KernelFamily::halves), of both. Boxes of warps (templates/kv/boxes.cuh) have as many as they need in
/// one parameter.
struct KvTensorMaps {
  struct OfWalk {
    CUtensorMap k, v;
  };
  std::array<OfWalk, 2> walks;
};

/// The maps for the K and V of `args`, whose memory is not read. They have five dimensions (64 dims, tokens up to the
/// capacity, panels of 64 dims, KV heads, requests), boxes of one step, and a swizzle of 128 bytes. A paged cache has
/// the tokens of a page, and pages instead of requests; its box is a run of tokens of one panel, or a step of all
/// panels where pages hold whole steps. Those of boxes of 16 tokens have bytes in three dimensions. l2_promotion:
/// Config::l2_promotion. Errors: unsupported (a stride of 2^40 bytes or more), launch_failed (the driver refuses them).
Result<KvTensorMaps> encode_tensor_maps(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion);

}  // namespace v1
}  // namespace leanattn
