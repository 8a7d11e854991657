// kv_ldg.cuh -- load path "ldg": 16-byte loads straight into the matrix fragments, no shared memory and no barrier. One
// step is in registers ahead of its use: K of the next step is requested as soon as K of this one was multiplied, V
// likewise.

constexpr int kRingBytes = 0;  // nothing in shared memory
static_assert(kKParts == 1, "a step is in registers as a whole");

struct KvPipe {
  KvCursor at;  // the next step to fetch; its V follows its K
  int lane;
  KBlock k_block[kBlocks];
  VBlock v_block[kBlocks][kVGroups];

  LEAN_DEVICE void init(u32, int, int lane_index, const LeanDecodeArgs& args) {
    lane = lane_index;
    at.init(args, lane_index);
  }

  // Words of a row; those past the context are not touched and read as zero.
  template <int kWords>
  LEAN_DEVICE static void load_words(u32* out, const char* p, bool valid) {
    if constexpr (kWords >= 4) {
      uint4 r = make_uint4(0, 0, 0, 0);
      load_stream_16_if(valid, r, p);
#pragma unroll
      for (int w = 0; w < 4; w++) out[w] = word(r, w);
      load_words<kWords - 4>(out + 4, p + 16, valid);
    } else if constexpr (kWords >= 2) {
      uint2 r = make_uint2(0, 0);
      load_stream_8_if(valid, r, p);
      out[0] = r.x, out[1] = r.y;
      load_words<kWords - 2>(out + 2, p + 8, valid);
    } else if constexpr (kWords == 1) {
      out[0] = 0;
      load_stream_4_if(valid, out[0], p);
    }
  }

  LEAN_DEVICE void fetch_k() {
    if (at.done()) return;
    const int g = lane / 4, c = lane % 4, tokens = at.tokens();
#pragma unroll
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int token = k_token(block, half, g);
        const char* row = at.k_row(token);
        u32(&out)[kPartWords] = k_block[block].row[half];
#pragma unroll
        for (int j = 0; j < kKChunks; j++) load_words<4>(out + 4 * j, row + 64 * j + 16 * c, token < tokens);
        load_tail(out + 4 * kKChunks, row + 64 * kKChunks + c * 4 * kKTail, token < tokens);
      }
  }
  // A share of three words is aligned to one.
  LEAN_DEVICE static void load_tail(u32* out, const char* p, bool valid) {
    if constexpr (kKTail == 3) {
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
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int token = c * kQuarter + block * 4 + r;
        const char* row = at.v_row(token) + g * kVBytes;
#pragma unroll
        for (int group = 0; group < kVGroups; group++) {
          u32(&out)[kVRaw] = v_block[block][group].row[r];
          if constexpr (kVBytes >= 4) {
            load_words<kVRaw>(out, row + group * 8 * kVBytes, token < tokens);
          } else {
            out[0] = 0;
            load_stream_2_if(token < tokens, out[0], row + group * 8 * kVBytes);
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
  LEAN_DEVICE void read_k_block(int block, int, KBlock& out) { out = k_block[block]; }
  LEAN_DEVICE void k_done() { fetch_k(); }
  LEAN_DEVICE void read_v_block(int block, int group, VBlock& out) { out = v_block[block][group]; }
  LEAN_DEVICE void release() { fetch_v(); }
};
