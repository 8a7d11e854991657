// attend/mma_prefill.cuh -- one step with many query rows: S = Q K^T, online softmax, O += P V. Query rows sit on the
// 16 matrix rows, and tokens, then dims, on the eight columns. Each warp has kRowsOfWarp rows of its own, and all warps
// take every step, so that KV is read once for all of these rows. The softmax needs no other warp, and P stays in
// registers (FlashAttention-2, section 3.3). With 32 rows, what a warp reads of K and V serves two matrix instructions.

static_assert(kRows <= kWarps * kRowsOfWarp, "the warps have all rows of an output tile");

// A warp's query rows are in shared memory, and where registers are left for them, in these too.
constexpr bool kQueryInRegisters = kRowTilesOfWarp * kHeadDim <= 128 && kRowTilesOfWarp * kStepTokens <= 64;
struct WarpQuery {
  unsigned char rows[kQueryPanels][kRowsOfWarp * 128];
};
static_assert(sizeof(WarpQuery) == kQueriesBytes / kWarps, "the ring lies behind them");
LEAN_DEVICE WarpQuery& warp_query() { return ((WarpQuery*)walk_shared())[threadIdx.x / 32]; }

// Where results wait to be written, in place of q: the bytes of four warps, and a barrier of those that share them.
// With V as wide as K, that is each warp with itself.
constexpr int kHeldBytes = 4 * sizeof(WarpQuery);
LEAN_DEVICE void sync_held() {
  if constexpr (kValueDim == kHeadDim) {
    __syncwarp();
  } else {
    sync_workers();
  }
}

// The first row that the calling four warps hold.
LEAN_DEVICE int first_row() { return (int)threadIdx.x / 128 * 4 * kRowsOfWarp; }

// Loads four 8 x 8 matrices of 16-bit elements from shared memory: lane (g, c) gets elements 2c and 2c + 1 of row g or,
// transposed, of column g. address: that of row lane % 8 of matrix lane / 8 (PTX ISA, "ldmatrix"). For a whole warp.
LEAN_DEVICE void load_matrices(u32 address, u32 (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
LEAN_DEVICE void load_transposed(u32 address, u32 (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Addresses in swizzled panels of 64 dims, whose rows begin at multiples of 128 bytes. Of a lane, the address of 8 dims
// of a row of the first 16 dims; that in other dims differs by bits alone.
LEAN_DEVICE u32 first_piece(u32 panel, int row, int eight) {
  return panel + (u32)(row * 128 + (eight ^ (int)threadIdx.x % 8) * 16);
}
template <int kBytes>
LEAN_DEVICE u32 in_dims(u32 first, int sixteen) {
  return (first ^ (u32)(sixteen % 4 * 32)) + (u32)(sixteen / 4 * kBytes);
}

struct Query {
  u32 first;                    // where this lane's piece of the warp's first row tile lies
  int first_token, last_token;  // query tokens of the warp's rows
  bool exists;                  // whether the warp has rows
  u32 part[kQueryInRegisters ? kRowTilesOfWarp : 1][kQueryInRegisters ? kHeadDim / 16 : 1][4];

  LEAN_DEVICE void load(int tile, int sixteen, u32 (&a)[4]) const {
    load_matrices(in_dims<kRowsOfWarp * 128>(first, sixteen) + (u32)(tile * 16 * 128), a);
  }
  LEAN_DEVICE void take(int tile, int sixteen, u32 (&a)[4]) const {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = part[tile][sixteen][i];
    } else {
      load(tile, sixteen, a);
    }
  }
};

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Query& q) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, of_block = warp * kRowsOfWarp,
            row = s.row_block * kRows + of_block;
  q.exists = of_block < kRows && row < s.query.count * kGroup;
  q.first_token = row / kGroup, q.last_token = min((row + kRowsOfWarp - 1) / kGroup, s.query.count - 1);
  if (!q.exists) return;
  copy_query_rows<kRowsOfWarp, 32>(args, s, of_block, lane, warp_query().rows);
  __syncwarp();
  q.first = first_piece(shared_address(warp_query().rows), lane % 16, lane / 16);
  if constexpr (kQueryInRegisters) {
#pragma unroll
    for (int tile = 0; tile < kRowTilesOfWarp; tile++)
#pragma unroll
      for (int sixteen = 0; sixteen < kHeadDim / 16; sixteen++) q.load(tile, sixteen, q.part[tile][sixteen]);
  }
}

// The step at read index `read` of a segment that ends at `end`. To be called by all warps.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, int read, int end, KvPipe& kv, const Query& q,
                        Attention& a) {
  kv.acquire(args, s, read, end);
  if (q.exists) {
    const int lane = threadIdx.x % 32;
    float score[kRowTilesOfWarp][kStepTokens / 8][4] = {};
    const u32 keys = first_piece(kv.stage, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; k++) {
      u32 rows[kRowTilesOfWarp][4];
#pragma unroll
      for (int tile = 0; tile < kRowTilesOfWarp; tile++) q.take(tile, k, rows[tile]);
#pragma unroll
      for (int t = 0; t < kStepTokens / 16; t++) {
        u32 b[4];
        load_matrices(in_dims<kPanelBytes>(keys, k) + (u32)(t * 16 * 128), b);
#pragma unroll
        for (int tile = 0; tile < kRowTilesOfWarp; tile++) {
          const u32(&x)[4] = rows[tile];
          mma(Operand(), score[tile][2 * t], x[0], x[1], x[2], x[3], b[0], b[1]);
          mma(Operand(), score[tile][2 * t + 1], x[0], x[1], x[2], x[3], b[2], b[3]);
        }
      }
    }
    const Step step = step_at(s, read);
    const Holes holes = step_holes(args, s, step);
    const bool masked = any_hole(holes) || has_masked(s, step, q.first_token, q.last_token);
    u32 weight[kRowTilesOfWarp][kStepTokens / 16][4];
#pragma unroll
    for (int tile = 0; tile < kRowTilesOfWarp; tile++) {
      finish_scores(args, s, step, holes, masked, first_row(), score[tile], tile);
      float factor[2];
      if (raise_maxima(args, score[tile], a.max + 2 * tile, a.sum + 2 * tile, factor)) rescale(a, factor, tile);
      weigh(args, score[tile], a.max + 2 * tile, a.sum + 2 * tile, weight[tile]);
    }
    const u32 values = first_piece(kv.stage + kVOffset, lane % 16, lane / 16);
#pragma unroll
    for (int t = 0; t < kStepTokens / 16; t++)
#pragma unroll
      for (int d = 0; d < kValueDim / 16; d++) {
        u32 b[4];
        load_transposed(in_dims<kPanelBytes>(values, d) + (u32)(t * 16 * 128), b);
#pragma unroll
        for (int tile = 0; tile < kRowTilesOfWarp; tile++) {
          const u32(&x)[4] = weight[tile][t];
          float(*const out)[4] = &a.out[tile * (kValueDim / 8) + 2 * d];
          mma(Operand(), out[0], x[0], x[1], x[2], x[3], b[0], b[1]);
          mma(Operand(), out[1], x[0], x[1], x[2], x[3], b[2], b[3]);
        }
      }
  }
  kv.release();
}
