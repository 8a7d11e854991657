// line/find_start.cuh -- in which request a CTA's range begins, for batches of more than 32 requests. Each lane of a
// warp adds up the tile positions of some neighbouring requests, a scan over the lanes says at which position they
// begin, and a vote finds the lane whose requests hold the position. Each warp does this by itself for up to 256
// requests. Of a larger batch the CTA's warps first add up 32 parts together, and then find the part in the same way.
// ---
// Both searches are calls and not inlined, because small batches would have to jump over them on the way to their
// first KV request. They are short rather than clever: code that runs once takes several cycles an instruction.

constexpr int kMostAlone = 256;     // requests of a batch that a warp searches by itself
constexpr int kParts = 32;          // of a larger batch
constexpr int kPartRequests = 128;  // a part is a multiple of this: what a warp searches at once

LEAN_DEVICE u32 warp_inclusive_sum(u32 value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 lower = __shfl_up_sync(kFullMask, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

// The arguments that decide who begins where. They are copied because a call cannot take the argument block itself.
struct Batch {
  const int* context_lengths;
  const int* q_offsets;
  int size, context_capacity;
  u32 segment_cost, outputs, grid_reciprocal;  // outputs: those of a request that the line counts alike
#if defined(LEAN_WINDOW_OF_PART)
  const int* full_lengths;
  const int* context_starts;
#if defined(LEAN_CONTEXT_RANKS)
  int context_rank;
#else
  int group_rank;
#endif
#endif
#if defined(LEAN_SPANS)
  const LeanSpan* spans;
#endif
#if defined(LEAN_HEADS_IN_STEP)
  u32 in_step;
#endif
#if defined(LEAN_SECOND_CACHE)
  const int* second_lengths;
  int second_capacity;
#endif

  // The length of a request; with a second cache that of a query token's list and of the blocks behind it.
  LEAN_DEVICE int context_length_of(int request) const {
#if defined(LEAN_PACKED_KV)
    return packed_length(context_lengths, min(request, size - 1), context_capacity);
#endif
    if constexpr (kSecondCache)
      return min(max(context_lengths[min(request, size - 1)], 0), context_capacity) +
             second_blocks(second_lengths[min(request, size - 1)], second_capacity);
    return min(max(context_lengths[min(request, size - 1)], 0), context_capacity);
  }
  // Tile positions of a request, as positions_of; none behind the last one.
  LEAN_DEVICE u32 positions_within(int request, int context_length) const {
#if defined(LEAN_SPANS)
    const u32 positions = positions_of(*this, min(request, size - 1), context_length);  // which all lanes call
    return request < size ? positions : 0u;
#else
    return request < size ? positions_of(*this, request, context_length) : 0u;
#endif
  }
  // The first tile position of this CTA's range, on a line of `line` positions.
  LEAN_DEVICE u32 begin_of_range(u32 line) const {
#if defined(LEAN_HEADS_IN_STEP)
    return lean_range_begin(lean_split(line, ranges(in_step), grid_reciprocal), own_range(in_step), line);
#else
    return lean_range_begin(lean_split<kTilePositions>(line, ranges(), grid_reciprocal), own_range(), line);
#endif
  }
};

// What a search finds: the length of the line, the request, and where it begins on the line as the sum of the
// positions that one output tile of each earlier request takes.
struct Start {
  u32 line, request, before;
  int context_length;
};

// Requests first, first + 1, ..., kEach a lane.
template <int kEach>
struct Requests {
  int first;
  int length[kEach];
  u32 positions[kEach];
  u32 sum, upto;  // of this lane's requests, and of those of all lanes up to it

  LEAN_DEVICE Requests(const Batch& batch, int first_request) {
    const int lane = threadIdx.x % 32;
    first = first_request, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) length[i] = batch.context_length_of(first + lane * kEach + i);
#pragma unroll
    for (int i = 0; i < kEach; i++) sum += positions[i] = batch.positions_within(first + lane * kEach + i, length[i]);
    upto = warp_inclusive_sum(sum, lane);
  }

  LEAN_DEVICE u32 all() const { return __shfl_sync(kFullMask, upto, 31); }

  // The one of them that holds tile position `position`. `before`: the sum of the requests before these.
  LEAN_DEVICE Start holder(const Batch& batch, u32 line, u32 before, u32 position) const {
    const int owner = min(__popc(__ballot_sync(kFullMask, (before + upto) * batch.outputs <= position)), 31);
    before += __shfl_sync(kFullMask, upto - sum, owner);
    Start start = {line, (u32)(first + owner * kEach), before, __shfl_sync(kFullMask, length[0], owner)};
#pragma unroll
    for (int i = 1; i < kEach; i++) {
      before += __shfl_sync(kFullMask, positions[i - 1], owner);
      const int next = __shfl_sync(kFullMask, length[i], owner);
      if (before * batch.outputs <= position) start.before = before, start.request++, start.context_length = next;
    }
    return start;
  }
};

template <int kEach>
__device__ __noinline__ Start find_start_alone(const Batch batch) {
  const Requests<kEach> requests(batch, 0);
  const u32 line = requests.all() * batch.outputs;
  return requests.holder(batch, line, 0, batch.begin_of_range(line));
}

// part_sums: shared memory, [kParts].
__device__ __noinline__ Start find_start_together(const Batch batch, u32* part_sums) {
  constexpr int kCtaWarps = kWarps + kProducerWarps, kAtOnce = 2;  // parts of a warp, whose lengths travel together
  const int lane = threadIdx.x % 32;
  const int units = (batch.size + kParts * kPartRequests - 1) / (kParts * kPartRequests),
            part_size = units * kPartRequests, parts = (batch.size + part_size - 1) / part_size;
#pragma unroll 1
  for (int part = threadIdx.x / 32; part < parts; part += kAtOnce * kCtaWarps) {
    u32 sum[kAtOnce] = {};
#pragma unroll 1
    for (int first = part * part_size; first < (part + 1) * part_size; first += kPartRequests)
#pragma unroll
      for (int row = 0; row < kPartRequests; row += 32)
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
          const int request = first + i * kCtaWarps * part_size + row + lane;
          sum[i] += batch.positions_within(request, batch.context_length_of(request));
        }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const u32 all = __reduce_add_sync(kFullMask, sum[i]);
      if (lane == 0 && part + i * kCtaWarps < parts) part_sums[part + i * kCtaWarps] = all;
    }
  }
  sync_walkers();
  const u32 mine = lane < parts ? part_sums[lane] : 0u, upto = warp_inclusive_sum(mine, lane),
            line = __shfl_sync(kFullMask, upto, 31) * batch.outputs, position = batch.begin_of_range(line);
  const int part = min(__popc(__ballot_sync(kFullMask, upto * batch.outputs <= position)), parts - 1);
  u32 before = __shfl_sync(kFullMask, upto - mine, part);
#pragma unroll 1
  for (int first = part * part_size;; first += kPartRequests) {
    const Requests<kPartRequests / 32> requests(batch, first);
    const u32 all = requests.all();
    if (first + kPartRequests >= batch.size || (before + all) * batch.outputs > position)
      return requests.holder(batch, line, before, position);
    before += all;
  }
}
