// line.cuh -- this CTA's walk along the stream-K line, from the context lengths in device memory. Every warp walks for
// itself; only the search for the start in a batch of more than 32 requests is shared.

constexpr int kChunks =
    32;  // batches above 32 requests: sums over so many equal parts of the batch, in shared memory, while searching
constexpr int kChunkBatch = 8;  // of those, how many a warp takes at a time

// One contiguous run of LeanTiles of one output tile.
struct Segment {
  int request;  // index into the batch
  int kv_head;
  int row_block;       // which kRows of the query rows
  int context_length;  // tokens, clamped to [0, context_capacity]
  u32 tiles;           // LeanTiles of the output tile
  u32 tile_begin;      // this segment, within the output tile
  u32 tile_end;
  QueryTokens query;
  Visible visible;
};

LEAN_DEVICE const char* query_row(const LeanDecodeArgs& args, const Segment& s, const Row& row) {
  return (const char*)args.q + 2 * row_offset(s.request, s.query, s.kv_head, row, args.q_stride_batch,
                                              args.q_stride_token, args.q_stride_head);
}

LEAN_DEVICE int query_position(const Segment& s, const Row& row) {
  return s.context_length - s.query.count + row.token;
}

LEAN_DEVICE bool is_whole(const Segment& s) { return s.tile_begin == 0 && s.tile_end == s.tiles; }

struct Walk {
  LeanSplit split;
  u32 position;  // next place on the line
  u32 end;
  u32 origin;  // place of the segment's output tile: segment_cost empty ones, then its LeanTiles
  Segment segment;
};

LEAN_DEVICE int clamp_length(const LeanDecodeArgs& args, int length) {
  return min(max(length, 0), args.context_capacity);
}
LEAN_DEVICE int context_length_of(const LeanDecodeArgs& args, int request) {
  return clamp_length(args, args.context_lengths[request]);
}

// Places one output tile of a request takes on the line.
LEAN_DEVICE u32 places_of(const LeanDecodeArgs& args, int context_length, int request) {
  return args.segment_cost + visible_of(context_length, args.q_offsets, request).tiles;
}

LEAN_DEVICE void set_request(const LeanDecodeArgs& args, Segment& s, int request, int context_length) {
  s.request = request;
  s.context_length = context_length;
  s.query = query_tokens(args.q_offsets, request);
  s.visible = visible_of(context_length, args.q_offsets, request);
  s.tiles = s.visible.tiles;
}

LEAN_DEVICE u32 warp_inclusive_sum(u32 value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 lower = __shfl_up_sync(kFullMask, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

// The LeanTiles between walk.position and walk.end that belong to the output tile at walk.origin; of a batch-invariant
// schedule (segment_cost 0) the first of them. False when there are none, which can only be at the end of the range.
LEAN_DEVICE bool set_segment_tiles(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  const u32 begin = walk.position - walk.origin,
            end = kBatchInvariant ? begin + 1 : min(begin + (walk.end - walk.position), args.segment_cost + s.tiles);
  s.tile_begin = max(begin, args.segment_cost) - args.segment_cost;
  s.tile_end = max(end, args.segment_cost) - args.segment_cost;
  return s.tile_end != s.tile_begin;
}

// This CTA's range. False when it is empty.
LEAN_DEVICE bool take_range(const LeanDecodeArgs& args, Walk& walk, u32 places) {
  walk.split = lean_split(places, gridDim.x, args.grid_reciprocal);
  walk.position = lean_first_tile(walk.split, blockIdx.x);
  walk.end = lean_first_tile(walk.split, blockIdx.x + 1);
  return walk.position != walk.end;
}

// Places the walk inside request `request`, whose first place on the line is `origin`.
LEAN_DEVICE bool enter_request(const LeanDecodeArgs& args, Walk& walk, int request, int context_length, u32 origin) {
  Segment& s = walk.segment;
  set_request(args, s, request, context_length);
  const u32 places = args.segment_cost + s.tiles, output = lean_quotient(walk.position - origin, places);
  walk.origin = origin + output * places;
  s.kv_head = (int)(output / kRowBlocks);
  s.row_block = (int)(output % kRowBlocks);
  return set_segment_tiles(args, walk);
}

// The lengths of a batch of more than 32 requests, read 16 bytes at a time. Quad i holds requests 4 i - shift .. 4 i -
// shift + 3, where shift is how far the array starts behind a multiple of 16 bytes.
struct Lengths {
  const int* lengths;
  const int* q_offsets;
  int batch, capacity, shift;
  u32 segment_cost;

  LEAN_DEVICE int request_of(int quad) const { return 4 * quad - shift; }
  LEAN_DEVICE bool whole(int quad) const { return request_of(quad) >= 0 && request_of(quad) + 3 < batch; }

  // A whole quad's lengths; zeros for another. The condition is inside the instruction, so that several are on their
  // way together.
  LEAN_DEVICE int4 read_if_whole(int quad) const {
    int4 x = make_int4(0, 0, 0, 0);
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(lengths + request_of(quad)), "r"((u32)whole(quad)));
    return x;
  }
  LEAN_DEVICE u32 places(int length, int request) const {
    return segment_cost + visible_of(min(max(length, 0), capacity), q_offsets, request).tiles;
  }
  LEAN_DEVICE uint4 places(const int4& length, int request) const {
    return make_uint4(places(length.x, request), places(length.y, request + 1), places(length.z, request + 2),
                      places(length.w, request + 3));
  }
  LEAN_DEVICE u32 places_at(int request) const {
    return request >= 0 && request < batch ? places(lengths[request], request) : 0u;
  }
  LEAN_DEVICE uint4 places_of(int quad) const {
    const int request = request_of(quad);
    if (!whole(quad))
      return make_uint4(places_at(request), places_at(request + 1), places_at(request + 2), places_at(request + 3));
    return places(read_if_whole(quad), request);
  }
};

LEAN_DEVICE u32 sum_of(const uint4& x) { return x.x + x.y + x.z + x.w; }

// Where a CTA starts in a batch of more than 32 requests, and the line's length. `before`: places of all requests
// before, per output tile.
struct Start {
  u32 places, request, before;
};

// Sums over kChunks parts of the batch, then a search over the sums, then inside one part. A call, not inlined: it
// would stand between a small batch and its first KV request. `chunk_sums` is shared scratch [kChunks].
__device__ __noinline__ Start find_start(const int* context_lengths, const int* q_offsets, int batch, int capacity,
                                         u32 segment_cost, u32 outputs, u32 reciprocal, u32* chunk_sums) {
  constexpr int kCtaWarps = kWarps + kProducerWarps;
  const Lengths lengths = {context_lengths, q_offsets, batch, capacity, (int)((u64)context_lengths / 4 % 4),
                           segment_cost};
  const int lane = threadIdx.x % 32, quads = (batch + lengths.shift + 3) / 4;
  const int span = (quads + 32 * kChunks - 1) / (32 * kChunks) * 32;  // quads per chunk
  const auto split_quad = [&](int quad, int chunk) {
    return !lengths.whole(quad) && quad / span == chunk ? sum_of(lengths.places_of(quad)) : 0u;
  };
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < kChunks; first += kChunkBatch * kCtaWarps) {
    u32 sum[kChunkBatch] = {};
#pragma unroll 1
    for (int i = lane; i < span; i += 32) {
      int4 x[kChunkBatch];  // all on their way before the first is looked at
#pragma unroll
      for (int j = 0; j < kChunkBatch; j++) x[j] = lengths.read_if_whole((first + j * kCtaWarps) * span + i);
#pragma unroll
      for (int j = 0; j < kChunkBatch; j++) {
        const int quad = (first + j * kCtaWarps) * span + i;
        if (lengths.whole(quad)) sum[j] += sum_of(lengths.places(x[j], lengths.request_of(quad)));
      }
    }
#pragma unroll
    for (int j = 0; j < kChunkBatch; j++) {
      const u32 total = __reduce_add_sync(kFullMask, sum[j]);
      const int chunk = first + j * kCtaWarps;
      if (lane == 0 && chunk < kChunks) chunk_sums[chunk] = total;
    }
  }
  __syncthreads();
  // What the first and the last quad hold of the batch, if they are not whole.
  const u32 edges = split_quad(0, lane) + (quads > 1 ? split_quad(quads - 1, lane) : 0u);
  const u32 upto_chunk = warp_inclusive_sum(chunk_sums[lane] + edges, lane);
  const u32 total = __shfl_sync(kFullMask, upto_chunk, 31) * outputs;
  const u32 position = lean_first_tile(lean_split(total, gridDim.x, reciprocal), blockIdx.x);
  const int chunk = __popc(__ballot_sync(kFullMask, upto_chunk * outputs <= position));
  u32 before = __shfl_sync(kFullMask, upto_chunk, max(chunk - 1, 0));
  if (chunk == 0) before = 0;
#pragma unroll 1
  for (int first = chunk * span; first < quads; first += 32) {
    const uint4 x = lengths.places_of(first + lane);
    const u32 upto = warp_inclusive_sum(sum_of(x), lane);
    const int passed = __popc(__ballot_sync(kFullMask, (before + upto) * outputs <= position));
    if (passed < 32) {
      if (passed > 0) before += __shfl_sync(kFullMask, upto, passed - 1);
      int request = 4 * (first + passed) - lengths.shift;
      const u32 each[3] = {__shfl_sync(kFullMask, x.x, passed), __shfl_sync(kFullMask, x.y, passed),
                           __shfl_sync(kFullMask, x.z, passed)};
#pragma unroll
      for (int i = 0; i < 3; i++) {
        const bool pass = (before + each[i]) * outputs <= position;  // once false it stays so: what follows only adds
        before += pass ? each[i] : 0;
        request += pass ? 1 : 0;
        if (!pass) break;
      }
      return {total, (u32)request, before};
    }
    before += __shfl_sync(kFullMask, upto, 31);
  }
  return {total, (u32)batch - 1, before};  // a CTA with an empty range
}

// The length that start_walk needs first. Asked for before anything else: all that follows waits for it.
LEAN_DEVICE int first_length(const LeanDecodeArgs& args) {
  return args.context_lengths[args.batch > 32 ? 0 : min((int)threadIdx.x % 32, args.batch - 1)];
}

// Splits the line and finds where this CTA starts. False when there is nothing for it. Every warp computes it for
// itself.
LEAN_DEVICE bool start_walk(const LeanDecodeArgs& args, int first_length, u32* chunk_sums, Walk& walk) {
  const int lane = threadIdx.x % 32;
  const u32 outputs = (u32)args.kv_heads * kRowBlocks;  // output tiles per request
  int request = 0, length = clamp_length(args, first_length);
  const u32 places = places_of(args, length, min(lane, args.batch - 1));
  u32 total = places * outputs, origin = 0;
  if (args.batch > 1) {
    if (args.batch > 32) {
      const Start start = find_start(args.context_lengths, args.q_offsets, args.batch, args.context_capacity,
                                     args.segment_cost, outputs, args.grid_reciprocal, chunk_sums);
      request = (int)start.request;
      length = context_length_of(args, request);
      total = start.places, origin = start.before * outputs;
      if (!take_range(args, walk, total)) return false;
    } else {
      const u32 upto = warp_inclusive_sum(lane < args.batch ? places : 0u, lane);
      if (!take_range(args, walk, __shfl_sync(kFullMask, upto, 31) * outputs)) return false;
      request = __popc(__ballot_sync(kFullMask, upto * outputs <= walk.position));
      const u32 before = __shfl_sync(kFullMask, upto, max(request - 1, 0));
      origin = request == 0 ? 0 : before * outputs;
      length = __shfl_sync(kFullMask, length, request);
    }
  } else if (!take_range(args, walk, total)) {
    return false;
  }
  return enter_request(args, walk, request, length, origin);
}

// Moves past the current segment. False when the CTA's range is done.
LEAN_DEVICE bool next_segment(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  if (kBatchInvariant && s.tile_end != s.tiles) return ++walk.position < walk.end && set_segment_tiles(args, walk);
  walk.position = walk.origin = walk.origin + args.segment_cost + s.tiles;
  if (s.tile_end != s.tiles || walk.position >= walk.end) return false;
  if (++s.row_block == kRowBlocks) {
    s.row_block = 0;
    if (++s.kv_head == args.kv_heads) {
      s.kv_head = 0;
      set_request(args, s, s.request + 1, context_length_of(args, s.request + 1));
    }
  }
  return set_segment_tiles(args, walk);
}
