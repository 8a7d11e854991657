// merge/share_strips.cuh -- a contributor's share of an output tile that has many columns: a strip of neighbouring
// ones. The lanes of a warp load neighbouring columns of the same partial, so that few requests go to L2, and up to
// kStripLoads columns each before they use any, so that few round trips follow each other. Where the strip is narrower
// than a warp, its lanes take several partials; where it leaves warps without columns, these take a part of the
// partials too, and the warps meet in shared memory. Sums are taken in a fixed order, so results repeat bit for bit.

// Strips are made of whole units of so many columns. Columns that share a state lie in one unit, because the warp that
// takes a state clears it. Counted partials have no such states; there a unit has a column for each lane.
constexpr u32 kStripUnit = kCountsPartials ? 32 : kStateColumns;
static_assert(kColumns % kStripUnit == 0, "strips are made of whole units");

// The first column of contributor `mine`'s strip; behind the last one, kColumns.
LEAN_DEVICE u32 strip_begin(const Contributors& c, u32 mine) {
  return mine == c.count ? (u32)kColumns : lean_quotient(mine * (kColumns / kStripUnit), c.count) * kStripUnit;
}

// log2, rounded up.
LEAN_DEVICE u32 bits_of(u32 n) { return n <= 1 ? 0 : 32 - __clz((int)n - 1); }

// A lane's part of a strip.
struct StripPart {
  u32 column, end;         // the lane's first column, and the end of the strip
  u32 further;             // how many columns further the lane's next one is
  u32 contributor, apart;  // its first contributor, and how many further the next one is
};

// What the partials of kTogether columns of a part add up to, kBatch partials of each at a time.
template <int kTogether, int kBatch>
LEAN_DEVICE void add_partials(const LeanDecodeArgs& args, const Contributors& c, const StripPart& part,
                              RowState (&state)[kTogether], float4 (&o)[kTogether]) {
#pragma unroll
  for (int n = 0; n < kTogether; n++) state[n] = {kNegInf, 0.0f}, o[n] = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (u32 begin = part.contributor; __any_sync(kFullMask, begin < c.count); begin += kBatch * part.apart) {
    const auto column_of = [&](int i) { return part.column + i / kBatch * part.further; };
    const auto contributor_of = [&](int i) { return begin + i % kBatch * part.apart; };
    const auto wanted = [&](int i) { return contributor_of(i) < c.count && column_of(i) < part.end; };
    const auto partial_of = [&](int i) {
      return partial_at(args, c.first_slot + contributor_of(i), contributor_of(i) == 0 ? 1 : 0);
    };
    RowState stat[kTogether * kBatch];
    float4 out[kTogether * kBatch];
    take_partials(args, partial_of, column_of, wanted, stat, out);
#pragma unroll
    for (int n = 0; n < kTogether; n++) {
      const float before = state[n].max;
#pragma unroll
      for (int i = n * kBatch; i < (n + 1) * kBatch; i++) state[n].max = fmaxf(state[n].max, stat[i].max);
      const float reference = reference_of(state[n].max), keep = exp2_approx((before - reference) * args.scale_log2);
      state[n].sum *= keep;
      o[n].x *= keep, o[n].y *= keep, o[n].z *= keep, o[n].w *= keep;
#pragma unroll
      for (int i = n * kBatch; i < (n + 1) * kBatch; i++) {
        const float weight = exp2_approx((stat[i].max - reference) * args.scale_log2);
        state[n].sum = fmaf(stat[i].sum, weight, state[n].sum);
        add_scaled(o[n], out[i], weight);
      }
    }
  }
}

// Rescales a state and its column to the maximum `max`.
LEAN_DEVICE void raise_to(float max, float scale_log2, RowState& state, float4& o) {
  const float weight = exp2_approx((state.max - reference_of(max)) * scale_log2);
  state = {max, state.sum * weight};
  o.x *= weight, o.y *= weight, o.z *= weight, o.w *= weight;
}

// Adds up what lanes `distance` apart, and multiples of it, have of the same column.
LEAN_DEVICE void add_members(u32 distance, float scale_log2, RowState& state, float4& o) {
  float max = state.max;
#pragma unroll 1
  for (u32 d = distance; d < 32; d *= 2) max = fmaxf(max, __shfl_xor_sync(kFullMask, max, d));
  raise_to(max, scale_log2, state, o);
#pragma unroll 1
  for (u32 d = distance; d < 32; d *= 2) {
    state.sum += __shfl_xor_sync(kFullMask, state.sum, d);
    o.x += __shfl_xor_sync(kFullMask, o.x, d), o.y += __shfl_xor_sync(kFullMask, o.y, d);
    o.z += __shfl_xor_sync(kFullMask, o.z, d), o.w += __shfl_xor_sync(kFullMask, o.w, d);
  }
}

// Where warps that share columns meet. It takes the place of what the CTA had in shared memory before its fix-up.
struct WarpMeeting {
  float4 o[kWarps][32];
  RowState state[kWarps][32];
};
static_assert(sizeof(WarpMeeting) <= kSharedBytes, "it takes the place of what was there");

// Takes a strip that is wide enough for every lane to have columns of its own, and writes what its partials add up to.
template <int kTogether, int kBatch>
LEAN_DEVICE void reduce_wide_strip(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32 first,
                                   u32 end) {
  StripPart part = {first + threadIdx.x, end, (u32)kThreads, 0, 1};
#pragma unroll 1
  for (; __any_sync(kFullMask, part.column < end); part.column += kTogether * kThreads) {
    RowState state[kTogether];
    float4 o[kTogether];
    add_partials<kTogether, kBatch>(args, c, part, state, o);
#pragma unroll
    for (int n = 0; n < kTogether; n++) {
      const u32 column = part.column + (u32)n * kThreads;
      if (column < end) write_output(args, destination_of(args, segment, (int)column), state[n], o[n]);
    }
  }
}

// To be called by all workers.
LEAN_DEVICE void reduce_share(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32) {
  extern __shared__ __align__(16) unsigned char strip_shared[];
  WarpMeeting& meeting = *(WarpMeeting*)strip_shared;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 first = strip_begin(c, c.mine), end = strip_begin(c, c.mine + 1);
  if (first == end) return;
  if (kStripLoads > 4 && end - first >= 2 * kThreads) {
    if (!kCountsPartials && c.count <= 2) return reduce_wide_strip<kStripLoads / 2, 2>(args, c, segment, first, end);
    return reduce_wide_strip<kStripLoads / 4, 4>(args, c, segment, first, end);
  }
  // `width` lanes have neighbouring columns. The strip has so many pieces of this width. A piece has a team of warps.
  const u32 width_bits = min(bits_of(end - first), 5u), width = 1u << width_bits;
  const u32 pieces = (end - first + width - 1) >> width_bits;
  constexpr u32 kWarpBits = kWarps >= 16 ? 4 : kWarps >= 8 ? 3 : kWarps >= 4 ? 2 : kWarps >= 2 ? 1 : 0;
  const u32 piece_bits = min(bits_of(pieces), kWarpBits), team = (u32)kWarps >> piece_bits, rank = warp >> piece_bits;
#pragma unroll 1
  for (u32 piece = warp & ((1u << piece_bits) - 1); piece < pieces && rank < team; piece += 1u << piece_bits) {
    const StripPart part = {first + piece * width + lane % width, end, 0,
                            (rank << (5 - width_bits)) + (lane >> width_bits), team << (5 - width_bits)};
    float4 sum[1];
    RowState states[1];
    if (kStripLoads > 4 && c.count > 4 * part.apart) {
      add_partials<1, kStripLoads>(args, c, part, states, sum);
    } else if (c.count > 2 * part.apart) {
      add_partials<1, 4>(args, c, part, states, sum);
    } else {
      add_partials<1, 2>(args, c, part, states, sum);
    }
    float4 o = sum[0];
    RowState state = states[0];
    add_members(width, args.scale_log2, state, o);
    if (team > 1) {
      meeting.o[warp][lane] = o, meeting.state[warp][lane] = state;
    } else if (lane < width && part.column < end) {
      write_output(args, destination_of(args, segment, (int)part.column), state, o);
    }
  }
  if (team == 1) return;
  sync_workers();
  const u32 column = first + warp * width + lane;  // warp: the piece, whose team's first warp this is
  if (warp < pieces && lane < width && column < end) {
    RowState state = meeting.state[warp][lane];
    float4 o = meeting.o[warp][lane];
#pragma unroll 1
    for (u32 other = warp + (1u << piece_bits); other < team << piece_bits; other += 1u << piece_bits) {
      RowState stat = meeting.state[other][lane];
      float4 out = meeting.o[other][lane];
      const float max = fmaxf(state.max, stat.max);
      raise_to(max, args.scale_log2, state, o);
      raise_to(max, args.scale_log2, stat, out);
      state.sum += stat.sum;
      add_scaled(o, out, 1.0f);
    }
    write_output(args, destination_of(args, segment, (int)column), state, o);
  }
  sync_workers();  // another share may follow
}

// The warps of a CTA begin with each share together.
LEAN_DEVICE u32 share_turns(const Contributors&) { return 0; }
