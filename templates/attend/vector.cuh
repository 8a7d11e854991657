// attend/vector.cuh -- the vector family: no matrix instructions, and no KV in shared memory. Neighbouring lanes share
// a row of K or V, 16 bytes each, straight from global memory. Scores and weights are fp32. This is for one or two
// query rows per KV head, which would leave most columns of a matrix instruction empty.
//
// A load instruction reads kRowsAtOnce rows: the lanes are kRowsAtOnce sets of kRowLanes, and each set takes a row. A
// step takes kLaneRows such loads of K for each chunk, and as many of V. One step is in registers ahead of its use: K
// of the next step is requested as soon as K of this one was multiplied, and V likewise.

constexpr int kRingBytes = 0;  // nothing in shared memory
// The lanes that share a row: the largest power of two that divides its number of 16-byte chunks.
constexpr int kRowLanes = kHeadDim % 256 == 0 ? 32 : kHeadDim % 128 == 0 ? 16 : kHeadDim % 64 == 0 ? 8 : 4;
constexpr int kLaneChunks = kHeadDim / 8 / kRowLanes;  // 16-byte chunks of a row per lane
constexpr int kRowsAtOnce = 32 / kRowLanes;            // rows a warp reads at once
constexpr int kLaneRows = kStepTokens / kRowsAtOnce;   // rows a lane holds a chunk of
constexpr int kRowTiles = 1;                           // the merge buffer has room for eight query rows
constexpr int kStates = kWarps;                        // softmax states of a CTA, one a warp
static_assert(kRowLanes * kLaneChunks * 8 == kHeadDim && kRowLanes <= 32, "rows are shared evenly");
static_assert(kStepTokens <= 32 && kLaneRows * kRowsAtOnce == kStepTokens, "a lane takes one score per query row");
constexpr int kQueryBytes = 0;  // and neither is q
static_assert(kRows <= 2, "more query rows belong on the matrix units");

// O stays in dim order.
constexpr int kSecondPair = 2;
LEAN_DEVICE int first_dim(int position) { return position; }

struct KvPipe {
  KvCursor at;  // the next step to fetch; its V follows its K
  int lane;
  uint4 k_row[kLaneRows][kLaneChunks];
  uint4 v_row[kLaneRows][kLaneChunks];

  LEAN_DEVICE void init(u32, int, int lane_index, const LeanDecodeArgs& args) {
    lane = lane_index;
    at.init(args, lane_index);
  }

  // Rows past the context are not touched, and their registers keep what they held. In a dense cache the cursor already
  // points at the lane's own chunk.
  template <bool kWhole, class RowOf>
  LEAN_DEVICE void fetch(uint4 (&row)[kLaneRows][kLaneChunks], RowOf row_of) {
    const int set = lane / kRowLanes, left = at.tokens() - set;
#pragma unroll
    for (int i = 0; i < kLaneRows; i++) {
      const char* from =
          kPageSize == 0 ? row_of(i * kRowsAtOnce) : row_of(i * kRowsAtOnce + set) + lane % kRowLanes * 16;
#pragma unroll
      for (int c = 0; c < kLaneChunks; c++) {
        if constexpr (kWhole) row[i][c] = make_uint4(0, 0, 0, 0);
        load_kv_if(kWhole || i * kRowsAtOnce < left, row[i][c], from + c * kRowLanes * 16);
      }
    }
  }
  template <bool kWhole>
  LEAN_DEVICE void fetch_k() {
    fetch<kWhole>(k_row, [&](int token) { return at.k_row(token); });
  }
  template <bool kWhole>
  LEAN_DEVICE void fetch_v() {  // to be called after fetch_k of the same step
    fetch<kWhole>(v_row, [&](int token) { return at.v_row(token); });
    at.next();
  }

  // A whole step overwrites all registers, which are thus free between segments. Before any other step they become
  // zero.
  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    if constexpr (kPageSize == 0) {
      at.k += lane / kRowLanes * at.k_stride + lane % kRowLanes * 16;
      at.v += lane / kRowLanes * at.v_stride + lane % kRowLanes * 16;
    }
    if (at.tokens() >= kStepTokens) {
      fetch_k<true>();
      fetch_v<true>();
    } else {
#pragma unroll
      for (int i = 0; i < kLaneRows; i++)
#pragma unroll
        for (int c = 0; c < kLaneChunks; c++) k_row[i][c] = v_row[i][c] = make_uint4(0, 0, 0, 0);
      fetch_k<false>();
      fetch_v<false>();
    }
  }

  // V rows past the context become zeros, because a masked token's weight of 0 does not silence a NaN. The instruction
  // is volatile, so that full steps branch over it.
  LEAN_DEVICE void zero_v_rows(int tokens) {
#pragma unroll
    for (int i = 0; i < kLaneRows; i++)
#pragma unroll
      for (int c = 0; c < kLaneChunks; c++) {
        uint4& r = v_row[i][c];
        asm volatile(
            "{ .reg .pred p; setp.ge.s32 p, %4, %5; @p mov.u32 %0, 0; @p mov.u32 %1, 0; @p mov.u32 %2, 0; @p mov.u32 "
            "%3, 0; }"
            : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w)
            : "r"(i * kRowsAtOnce), "r"(tokens - lane / kRowLanes));
      }
  }
};

// V rows of the step in hand that lie in holes of the page table become zeros.
LEAN_DEVICE void zero_v_holes(KvPipe& kv, const Holes& holes) {
#pragma unroll
  for (int i = 0; i < kLaneRows; i++) {
    if (!in_hole(holes, i * kRowsAtOnce + kv.lane / kRowLanes)) continue;
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++) kv.v_row[i][c] = make_uint4(0, 0, 0, 0);
  }
}

// The lane's chunks of the query rows of a segment.
struct Query {
  uint4 row[kRows][kLaneChunks];
};

// The softmax state of a warp. Maxima are in raw score units and the true running ones. The sets of lanes hold parts of
// O, which store_state adds up.
struct Attention {
  float max[kRows];
  float sum[kRows];                  // of this lane's tokens only, until reduce_sums
  float out[kRows][kLaneChunks][8];  // of the tokens of this lane's set
};

LEAN_DEVICE void place_query(Query&, unsigned char*, int) {}

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, int lane, Query& q) {
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const Row row = row_of(s.query, s.row_block, i);
    const char* from = query_row(args, s, row);
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++) q.row[i][c] = make_uint4(0, 0, 0, 0);
    if (!row.valid) continue;
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++)
      q.row[i][c] = rotated_16(args, from, (c * kRowLanes + lane % kRowLanes) * 8, query_index(s, row));
  }
}

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    a.max[row] = kNegInf, a.sum[row] = 0.0f;
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++)
#pragma unroll
      for (int i = 0; i < 8; i++) a.out[row][c][i] = 0.0f;
  }
}

// The largest of a warp's values. The bits of floats, as integers, order positive ones as they should and negative ones
// the other way round. Flipping the magnitude of the negative ones orders all.
LEAN_DEVICE float warp_max(float x) {
  const auto flip = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flip(__reduce_max_sync(kFullMask, flip(__float_as_int(x)))));
}

// Adds up kCount values over the two lanes that differ in the bit `distance`, and shares the sums out: x[0 .. kCount /
// 2) is then the lower half of them in the lane without that bit, and the upper half in the lane with it.
template <int kCount>
LEAN_DEVICE void add_and_share(float* x, int lane, int distance) {
  const bool upper = lane & distance;
#pragma unroll
  for (int i = 0; i < kCount / 2; i++) {
    const float keep = upper ? x[i + kCount / 2] : x[i], give = upper ? x[i] : x[i + kCount / 2];
    x[i] = keep + __shfl_xor_sync(kFullMask, give, distance);
  }
}

// Adds up each x[i] over the lanes of a row. Lane l returns the sum of x[l % kCount].
template <int kCount>
LEAN_DEVICE float sum_of_row(float* x, int lane) {
  if constexpr (kCount > 1) {
    add_and_share<kCount>(x, lane, kCount / 2);
    return sum_of_row<kCount / 2>(x, lane);
  } else {
#pragma unroll
    for (int distance = kLaneRows; distance < kRowLanes; distance *= 2)
      x[0] += __shfl_xor_sync(kFullMask, x[0], distance);
    return x[0];
  }
}

// Raises the maxima to the largest scores of the step and rescales what was accumulated under the old ones.
LEAN_DEVICE void raise_max(Attention& a, const float (&score)[kRows], float scale_log2) {
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    const float m = warp_max(fmaxf(score[row], a.max[row])),
                factor = exp2_approx((a.max[row] - reference_of(m)) * scale_log2);
    a.max[row] = m;
    a.sum[row] *= factor;
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++)
#pragma unroll
      for (int i = 0; i < 8; i++) a.out[row][c][i] *= factor;
  }
}

// One step.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, const Step& step, KvPipe& kv, const Query& q,
                        Attention& a, int lane) {
  const float scale_log2 = args.scale_log2;
  float product[kRows][kLaneRows] = {};
#pragma unroll
  for (int i = 0; i < kLaneRows; i++)
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const float2 k = Element::unpack(word(kv.k_row[i][c], w));
#pragma unroll
        for (int row = 0; row < kRows; row++) {
          const float2 query = Element::unpack(word(q.row[row][c], w));
          product[row][i] = fmaf(k.y, query.y, fmaf(k.x, query.x, product[row][i]));
        }
      }
  kv.fetch_k<false>();

  // The token whose score is this lane's. Where a step has 16 tokens, pairs of lanes have the same one.
  const int token = lane % kLaneRows * kRowsAtOnce + lane / kRowLanes;
  Holes holes = {};
  if constexpr (kPageSize > 0) {
    if (kv.at.holes) holes = holes_of(args, s, step);
  }
  const bool hole = in_hole(holes, token);
  float score[kRows];
  bool raise = false;
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    float x = sum_of_row<kLaneRows>(product[row], lane);
    if constexpr (kChangesScores)
      x = change_score(args, x, score_row(args, s, row_of(s.query, s.row_block, row)), step.token + token);
    if constexpr (kRowsSeeAlike) {
      score[row] = token < step.count && !hole ? x : kNegInf;
    } else {
      score[row] = !hole && sees(args, s, step, token, row_of(s.query, s.row_block, row)) ? x : kNegInf;
    }
    raise |= score[row] > a.max[row];
  }
  if (__any_sync(kFullMask, raise)) raise_max(a, score, scale_log2);

  float weight[kRows];
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    // Subtracting before scaling keeps differences near the maximum exact, however large the scores are.
    weight[row] = exp2_approx((score[row] - reference_of(a.max[row])) * scale_log2);
    a.sum[row] += weight[row];
  }

  if (step.count < kStepTokens) kv.zero_v_rows(step.count);
  if constexpr (kPageSize > 0) {
    if (any_hole(holes)) zero_v_holes(kv, holes);
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; i++) {
    float p[kRows];
#pragma unroll
    for (int row = 0; row < kRows; row++) p[row] = __shfl_sync(kFullMask, weight[row], i, kRowLanes);
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const float2 v = Element::unpack(word(kv.v_row[i][c], w));
#pragma unroll
        for (int row = 0; row < kRows; row++) {
          float* out = &a.out[row][c][2 * w];
          out[0] = fmaf(v.x, p[row], out[0]), out[1] = fmaf(v.y, p[row], out[1]);
        }
      }
  }
  kv.fetch_v<false>();
}

// Adds up the lanes' shares of the row sums. Lanes that differ in the bits from kLaneRows to kRowLanes have the same
// token and are not added.
LEAN_DEVICE void reduce_sums(Attention& a) {
#pragma unroll
  for (int row = 0; row < kRows; row++)
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      if (distance < kLaneRows || distance >= kRowLanes) a.sum[row] += __shfl_xor_sync(kFullMask, a.sum[row], distance);
}

// Adds up the sets of lanes. A lane then has 8 / kRowsAtOnce dims of each chunk. Returns which of the eight comes
// first.
template <int kCount>
LEAN_DEVICE int sum_of_sets(float* x, int lane) {
  if constexpr (kCount * kRowsAtOnce > 8) {
    const int distance = kRowLanes * 8 / kCount;
    add_and_share<kCount>(x, lane, distance);
    return (lane & distance ? kCount / 2 : 0) + sum_of_sets<kCount / 2>(x, lane);
  } else {
    return 0;
  }
}

// Hands the warp's state to the merge buffer.
template <class Buffer>
LEAN_DEVICE void store_state(Buffer& buffer, int warp, int lane, const Attention& a) {
#pragma unroll
  for (int row = 0; row < kRows; row++) {
    if (lane == 0) buffer.max[warp][row] = a.max[row], buffer.sum[warp][row] = a.sum[row];
#pragma unroll
    for (int c = 0; c < kLaneChunks; c++) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = a.out[row][c][i];
      float* out = &buffer.out[warp][row][(c * kRowLanes + lane % kRowLanes) * 8 + sum_of_sets<8>(x, lane)];
#pragma unroll
      for (int i = 0; i < 8 / kRowsAtOnce; i++) out[i] = x[i];
    }
  }
}
