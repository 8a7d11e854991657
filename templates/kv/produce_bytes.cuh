// kv/produce_bytes.cuh -- the producer of load path "tensor" for K and V of one-byte elements. A warpgroup copies rows
// as they are, 16 bytes a thread, and makes operands of them where they lie (kv/byte_panels.cuh). Each warp has 16
// tokens of a step, of which it converts what it has copied; where they lie, its lanes hold for two steps. Rows of
// holes, and of tokens behind the last one, become zeros. A part of a step is converted when the same part of a later
// step has been requested, so that bytes of some steps are on their way meanwhile, and operands of others wait for
// their readers.

static_assert(kStageParts == 2, "K and V come one after the other");
constexpr int kStepsAhead = kStages / 2;  // requested and not converted
constexpr int kRowTurns = kWarpRows / 4;  // eight lanes copy a row, and each fourth one after it

// Waits until of the groups of copies that this thread has issued at most kPending are under way.
template <int kPending>
LEAN_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Converts a part of the step at `at`, behind which as many steps are requested as are on their way.
template <int kPart>
LEAN_DEVICE void convert_part(const KvRing& ring, const RingPosition& at) {
  const u32 stage = ring.stages + at.stage * kStageBytes;
  wait_copies<2 * kStepsAhead>();
  __syncwarp();  // those of all lanes are there
  if constexpr (kPart == 0)
    convert_bytes<kHeadDim>(stage, at.stage, gather_warp() * kWarpRows, 0);
  else
    convert_bytes<kValueDim>(stage + kVOffset, at.stage, gather_warp() * kWarpRows, 0);
  publish_rows();
  arrive_for_warp<kPart, kPart + 1>(full_barriers(ring, at));
}

// Requests the bytes of this warp's rows of a part of a step. place: as TokenPlaces::take says. first_lane: the one
// that has the place of the warp's first row. head: says where the KV head's columns begin in the first row of the
// cache that has a place. panel: where the rows of the step begin in shared memory.
template <int kColumns, class Head>
LEAN_DEVICE void request_bytes(const Head& head, i64 stride_batch, i64 stride_token, const Step& step, int place,
                               int first_lane, u32 panel) {
  const int lane = threadIdx.x % 32, piece = lane % 8, first_row = gather_warp() * kWarpRows;
  // A lane works out where the row lies whose place it has, for the eight that copy it.
  const int own = first_row + lane - first_lane;
  const bool own_there = place >= 0 && own < step.count;
  const u32 there = __ballot_sync(kFullMask, own_there) >> first_lane;
  const PoolRow from = own_there ? pool_row(place, step.token + own) : PoolRow{0, 0};
  const u64 address = (u64)(head(place) + from.page * stride_batch + from.token * stride_token);
#pragma unroll
  for (int turn = 0; turn < kRowTurns; turn++) {
    const int row = turn * 4 + lane / 8;
    const u64 bytes = __shfl_sync(kFullMask, address, first_lane + row) + (u64)(piece * 16);
    copy_bytes<kColumns>(panel + (u32)((first_row + row) * 128 + piece * 16), (const char*)bytes, there >> row & 1);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Requests and converts every step of this CTA's range as stages become free. To be called by the whole producer
// warpgroup.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap&, const LeanTensorMap&, const KvRing& ring,
                         Walk& walk) {
  RingWriter writer;
  RingPosition oldest;  // of the steps that are requested and not converted
  int requested = 0;    // how many these are
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    TokenPlaces places;
    places.start(args, s);
    int place = 0, turn_of_places = kStepsInHand;
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      if (turn_of_places == kStepsInHand) place = places.take(s, read), turn_of_places = 0;
      const Step step = step_at(s, read);
      const int first_lane = turn_of_places * kWarpRows;
      const bool full = requested == kStepsAhead;
      wait_for_tokens(s, step.token);
      writer.claim(args, ring, 0);
      if constexpr (kPageSize > 0) {
        const u32 holes = __ballot_sync(kFullMask, place < 0) >> first_lane;
        if (threadIdx.x % 32 == 0) note_holes(writer.at.stage, holes);  // published with K of the step
      }
      request_bytes<kHeadDim>([&](int at) { return k_cache(args, at) + s.kv_head * args.k_stride_head; },
                              args.k_stride_batch, args.k_stride_token, step, place, first_lane, writer.stage(ring));
      if (full) convert_part<0>(ring, oldest);
      writer.claim(args, ring, 1);
      request_bytes<kValueDim>([&](int at) { return v_cache(args, at) + s.kv_head * args.v_stride_head; },
                               args.v_stride_batch, args.v_stride_token, step, place, first_lane,
                               writer.stage(ring) + kVOffset);
      if (full) {
        convert_part<1>(ring, oldest);
        oldest.next();
      } else {
        requested++;
      }
      writer.next();
      turn_of_places++;
    }
  } while (next_segment(args, walk));
#pragma unroll 1
  for (; requested > 0; requested--, oldest.next()) {
    wait_copies<0>();
    convert_part<0>(ring, oldest), convert_part<1>(ring, oldest);
  }
  writer.finish(args, ring);
}
