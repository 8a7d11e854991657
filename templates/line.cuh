// line.cuh -- this CTA's walk along the stream-K line, from the context lengths in device memory. Every warp computes it for itself.

constexpr int kLengthChunks = 128;   // batches above 32 requests: length sums kept in shared memory while searching

// One contiguous run of LeanTiles of one output tile.
struct Segment {
  int request;          // index into the batch
  int kv_head;
  int row_block;        // which kRows query rows of the group
  int context_length;   // tokens, clamped to [0, context_capacity]
  u32 tiles;            // LeanTiles of the output tile
  u32 tile_begin;       // this segment, within the output tile
  u32 tile_end;
};

LEAN_DEVICE bool is_whole(const Segment& s) { return s.tile_begin == 0 && s.tile_end == s.tiles; }

struct Walk {
  LeanSplit split;
  u32 position;         // next tile on the line
  u32 end;
  Segment segment;
};

LEAN_DEVICE int context_length_of(const LeanDecodeArgs& args, int request) {
  return min(max(args.context_lengths[request], 0), args.context_capacity);
}

LEAN_DEVICE u32 warp_inclusive_sum(u32 value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 lower = __shfl_up_sync(kFullMask, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

LEAN_DEVICE void set_segment_end(Walk& walk) {
  Segment& s = walk.segment;
  s.tile_end = min(s.tile_begin + (walk.end - walk.position), s.tiles);
}

// This CTA's range. False when it is empty.
LEAN_DEVICE bool take_range(Walk& walk, u32 total) {
  walk.split = lean_split(total, gridDim.x);
  walk.position = lean_first_tile(walk.split, blockIdx.x);
  walk.end = lean_first_tile(walk.split, blockIdx.x + 1);
  return walk.position != walk.end;
}

// Places the walk inside request `request`, whose first tile has line position `origin`.
LEAN_DEVICE void enter_request(Walk& walk, int request, int context_length, u32 origin) {
  Segment& s = walk.segment;
  s.request = request;
  s.context_length = context_length;
  s.tiles = lean_tiles_of(context_length, kTile);
  const u32 offset = walk.position - origin, output = offset / s.tiles;
  s.tile_begin = offset - output * s.tiles;
  s.kv_head = (int)(output / kRowBlocks);
  s.row_block = (int)(output % kRowBlocks);
  set_segment_end(walk);
}

// More than 32 requests: sums of `span` requests each, then a search over the sums, then over the requests of one span.
// `chunk_sums` is shared scratch [kLengthChunks].
LEAN_DEVICE bool start_walk_large(const LeanDecodeArgs& args, u32* chunk_sums, Walk& walk) {
  const int lane = threadIdx.x % 32;
  const u32 outputs = (u32)args.kv_heads * kRowBlocks;
  const int span = 32 * ((args.batch + 32 * kLengthChunks - 1) / (32 * kLengthChunks));
  const int chunks = (args.batch + span - 1) / span;
#pragma unroll 1
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += kWarps) {
    u32 sum = 0;
#pragma unroll 4
    for (int i = lane; i < span && chunk * span + i < args.batch; i += 32)
      sum += lean_tiles_of(context_length_of(args, chunk * span + i), kTile);
    sum = __reduce_add_sync(kFullMask, sum);
    if (lane == 0) chunk_sums[chunk] = sum;
  }
  __syncthreads();
  u32 total = 0;
#pragma unroll 1
  for (int i = 0; i < chunks; i += 32) total += __reduce_add_sync(kFullMask, i + lane < chunks ? chunk_sums[i + lane] : 0u);
  if (!take_range(walk, total * outputs)) return false;
  u32 before = 0;   // tiles of all requests before the one looked at, for one KV head and row block
  int first = 0;
#pragma unroll 1
  for (int i = 0; i < chunks; i += 32) {
    const u32 upto = warp_inclusive_sum(i + lane < chunks ? chunk_sums[i + lane] : 0u, lane);
    const int passed = __popc(__ballot_sync(kFullMask, (before + upto) * outputs <= walk.position));
    if (passed > 0) before += __shfl_sync(kFullMask, upto, passed - 1);
    first = (i + passed) * span;
    if (passed < 32) break;
  }
#pragma unroll 1
  for (;; first += 32) {
    const int length = first + lane < args.batch ? context_length_of(args, first + lane) : 0;
    const u32 upto = warp_inclusive_sum(first + lane < args.batch ? lean_tiles_of(length, kTile) : 0u, lane);
    const int passed = __popc(__ballot_sync(kFullMask, (before + upto) * outputs <= walk.position));
    if (passed > 0) before += __shfl_sync(kFullMask, upto, passed - 1);
    if (passed < 32) {
      enter_request(walk, first + passed, __shfl_sync(kFullMask, length, passed), before * outputs);
      return true;
    }
  }
}

// Splits the line and finds where this CTA starts. False when there is nothing for it.
LEAN_DEVICE bool start_walk(const LeanDecodeArgs& args, u32* chunk_sums, Walk& walk) {
  if (args.batch > 32) return start_walk_large(args, chunk_sums, walk);
  const int lane = threadIdx.x % 32;
  const u32 outputs = (u32)args.kv_heads * kRowBlocks;   // output tiles per request
  const int length = context_length_of(args, min(lane, args.batch - 1));
  u32 upto = lean_tiles_of(length, kTile);
  if (args.batch > 1) upto = warp_inclusive_sum(lane < args.batch ? upto : 0u, lane);
  if (!take_range(walk, __shfl_sync(kFullMask, upto, 31) * outputs)) return false;
  const int request = __popc(__ballot_sync(kFullMask, upto * outputs <= walk.position));
  const u32 before = __shfl_sync(kFullMask, upto, max(request - 1, 0));
  enter_request(walk, request, __shfl_sync(kFullMask, length, request), request == 0 ? 0 : before * outputs);
  return true;
}

// Moves past the current segment. False when the CTA's range is done.
LEAN_DEVICE bool next_segment(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  walk.position += s.tile_end - s.tile_begin;
  if (walk.position == walk.end) return false;
  s.tile_begin = 0;
  if (++s.row_block == kRowBlocks) {
    s.row_block = 0;
    if (++s.kv_head == args.kv_heads) {
      s.kv_head = 0;
      s.context_length = context_length_of(args, ++s.request);
      s.tiles = lean_tiles_of(s.context_length, kTile);
    }
  }
  set_segment_end(walk);
  return true;
}
