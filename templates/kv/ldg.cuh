// kv/ldg.cuh -- load path "ldg": 16-byte loads straight into the matrix fragments, without shared memory or barriers.
// One step is in registers ahead of its use: K of the next step is requested as soon as K of this one was multiplied,
// and V likewise.

constexpr int kRingBytes = 0;  // nothing in shared memory
static_assert(kKParts == 1, "a step is in registers as a whole");

struct KvPipe {
  KvCursor at;  // the next step to fetch; its V follows its K
  int lane;
  KFragment k_fragment[kTokenBlocks];
  VFragment v_fragment[kTokenBlocks][kVGroups];

  LEAN_DEVICE void init(u32, int, int lane_index, const LeanDecodeArgs& args) {
    lane = lane_index;
    at.init(args, lane_index);
  }

  // Loads kWords words of a row. Rows past the context are not touched and read as zero.
  template <int kWords>
  LEAN_DEVICE static void load_words(u32* out, const char* p, bool valid) {
    if constexpr (kWords >= 4) {
      uint4 r = make_uint4(0, 0, 0, 0);
      load_kv_if(valid, r, p);
#pragma unroll
      for (int w = 0; w < 4; w++) out[w] = word(r, w);
      load_words<kWords - 4>(out + 4, p + 16, valid);
    } else if constexpr (kWords >= 2) {
      uint2 r = make_uint2(0, 0);
      load_kv_if(valid, r, p);
      out[0] = r.x, out[1] = r.y;
      load_words<kWords - 2>(out + 2, p + 8, valid);
    } else if constexpr (kWords == 1) {
      out[0] = 0;
      load_kv_if(valid, out[0], p);
    }
  }

  LEAN_DEVICE void fetch_k() {
    if (at.done()) return;
    const int g = lane / 4, c = lane % 4, tokens = at.tokens();
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int token = k_token(block, half, g);
        const char* row = at.k_row(token);
        u32(&out)[kPartWords] = k_fragment[block].row[half];
#pragma unroll
        for (int j = 0; j < kKChunks; j++) load_words<4>(out + 4 * j, row + 64 * j + 16 * c, token < tokens);
        if constexpr (kKTail > 0) load_tail(out + 4 * kKChunks, row + 64 * kKChunks + c * 4 * kKTail, token < tokens);
      }
  }
  LEAN_DEVICE static void load_tail(u32* out, const char* p, bool valid) {
    if constexpr (kKTail == 3) {  // three words are aligned to one
#pragma unroll
      for (int w = 0; w < 3; w++) load_words<1>(out + w, p + 4 * w, valid);
    } else {
      load_words<kKTail>(out, p, valid);
    }
  }

  LEAN_DEVICE void fetch_v() {
    if (at.done()) return;
    const int g = lane / 4, c = lane % 4, tokens = at.tokens();
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int token = c * kQuarter + block * 4 + r;
        const char* row = at.v_row(token) + g * kVBytes;
#pragma unroll
        for (int group = 0; group < kVGroups; group++) {
          u32(&out)[kVRaw] = v_fragment[block][group].row[r];
          if constexpr (kVBytes >= 4) {
            load_words<kVRaw>(out, row + group * 8 * kVBytes, token < tokens);
          } else {
            unsigned short pair = 0;  // of one-byte elements
            load_kv_if(token < tokens, pair, row + group * 8 * kVBytes);
            out[0] = pair;
          }
        }
      }
    at.next();
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    fetch_k();
    fetch_v();
  }

  LEAN_DEVICE void acquire(int) {}
  LEAN_DEVICE void read_k_fragment(int block, int, KFragment& k) { k = k_fragment[block]; }
  LEAN_DEVICE void k_done() { fetch_k(); }
  LEAN_DEVICE void read_v_fragment(int block, int group, VFragment& v) { v = v_fragment[block][group]; }
  LEAN_DEVICE void release() { fetch_v(); }
};

// V rows of the step in hand that lie in holes of the page table become zeros.
LEAN_DEVICE void zero_v_holes(KvPipe& kv, const Holes& holes) {
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (!in_hole(holes, kv.lane % 4 * kQuarter + block * 4 + r)) continue;
#pragma unroll
      for (int group = 0; group < kVGroups; group++)
#pragma unroll
        for (int w = 0; w < kVRaw; w++) kv.v_fragment[block][group].row[r][w] = 0;
    }
}
