// kv/append_to_stage.cuh -- new rows where load path "tensor" brings elements as they lie. The warpgroup that takes a
// step with new rows has them from where they are given. It stores them in the stage, over what was copied to their
// places, and in the cache. So no copy waits for rows on their way to the cache, and nothing depends on what the copies
// read there. A thread has its first 16 bytes from the start of the segment on, when q is loaded.

constexpr int kKRowChunks = kHeadDim / 8, kNewRowChunks = kKRowChunks + (kLatent ? 0 : kValueDim / 8);  // of 16 bytes

// A chunk of a segment's new rows, as number `i` says. token: below 0 if there is none.
struct NewPlace {
  int query, column, token;
};
LEAN_DEVICE NewPlace new_place(const Segment& s, int i) {
  const int query = first_new(s, step_at(s, first_read(s)).token) + i / kNewRowChunks;
  return {query, i % kNewRowChunks, query < s.query.count ? new_token(s, query) : -1};
}

// What is in it, and in which page of the cache or, in a dense one, whose.
struct NewChunk {
  uint4 x;
  int outer;
};
LEAN_DEVICE NewChunk load_new_chunk(const LeanDecodeArgs& args, const Segment& s, int i) {
  const NewPlace place = new_place(s, i);
  if (place.token < 0 || place.token - s.visible.shift >= end_read(s)) return {};
  const NewRows given = given_rows(args, s, place.query);
  const uint4 x = place.column < kKRowChunks ? rotated_16(args, given.k, place.column * 8, index_of_new(s, place.token))
                                             : load_cached<uint4>(given.v + (place.column - kKRowChunks) * 16);
  return {x, outer_of(args, s, place.token)};
}

// Stores a chunk in the cache, if `to_cache`. Answers where in a stage it belongs, or kNowhere if the step does not
// have it.
constexpr u32 kNowhere = 0xffffffffu;
LEAN_DEVICE u32 place_new_chunk(const LeanDecodeArgs& args, const Segment& s, const Step& step, int i,
                                const NewChunk& chunk, bool to_cache) {
  const NewPlace place = new_place(s, i);
  const int row = place.token - step.token;
  if (place.token < 0 || row < 0 || row >= step.count || is_nowhere(args, chunk.outer)) return kNowhere;
  const bool of_v = place.column >= kKRowChunks;
  const int column = of_v ? place.column - kKRowChunks : place.column;
  char* const cache_row =
      of_v ? v_cache_row(args, s, chunk.outer, place.token) : k_cache_row(args, s, chunk.outer, place.token);
  if (to_cache) *(uint4*)(cache_row + column * 16) = chunk.x;
  return (u32)((of_v ? kKStageBytes : 0) + column / 8 * kPanelBytes + row * 128 + (column ^ row) % 8 * 16);
}

// Stores the new rows of the step in stage `at`, if it has any; for those of the stage it waits until the step has
// arrived. first: the thread's first chunk of the segment. To be called by a warpgroup that takes the step. Where
// several do, each needs the rows in the stage before it goes on, and one of them writes the cache.
LEAN_DEVICE void append_to_stage(const LeanDecodeArgs& args, const Segment& s, const Step& step, const KvRing& ring,
                                 const RingPosition& at, const NewChunk& first, int warpgroup) {
  if (step.token + step.count <= s.context_length - s.query.count) return;
  const bool to_cache = !kAllTakeSteps || warpgroup == 0;
  const int thread = threadIdx.x % 128;
  const u32 stage = ring.stages + at.stage * kStageBytes;
  const u32 place = place_new_chunk(args, s, step, thread, first, to_cache);
#pragma unroll
  for (int part = 0; part < kStageParts; part++) wait_ring(args, full_barriers(ring, at) + (u32)(part * 8), at.parity);
  if (place != kNowhere) store_shared_16(stage + place, first.x);
#pragma unroll 1
  for (int i = thread + 128; i < s.query.count * kNewRowChunks; i += 128) {
    const NewChunk chunk = load_new_chunk(args, s, i);
    const u32 its_place = place_new_chunk(args, s, step, i, chunk, to_cache);
    if (its_place != kNowhere) store_shared_16(stage + its_place, chunk.x);
  }
  fence_async_proxy();
  sync_warpgroup(warpgroup);
}
