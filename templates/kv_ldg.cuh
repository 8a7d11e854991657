// kv_ldg.cuh -- load path "ldg": 16-byte loads straight into the matrix fragments, no shared memory and no barrier. One
// step is in registers ahead of its use: K of the next step is requested as soon as K of this one was multiplied, V
// likewise.

constexpr int kRingBytes = 0;  // nothing in shared memory

struct KvPipe {
  int lane;
  i64 k_stride, v_stride;
  const char* k;  // the lane's own address in the next step to fetch
  const char* v;
  int k_left, v_left;  // tokens of that step, counted to the end of the segment
  int k_to_fetch, v_to_fetch;
  KBlock k_block[kBlocks];
  VBlock v_block[kBlocks][kVGroups];

  LEAN_DEVICE void init(u32, int, int lane_index, const LeanDecodeArgs& args) {
    lane = lane_index;
    k_stride = k_row_stride(args), v_stride = v_row_stride(args);
  }

  // Rows past the context are not touched and read as zero.
  LEAN_DEVICE static uint4 load_or_zero(const char* p, bool valid) {
    uint4 r = make_uint4(0, 0, 0, 0);
    load_stream_16_if(valid, r, p);
    return r;
  }

  LEAN_DEVICE void fetch_k() {
    if (k_to_fetch == 0) return;
    const int g = lane / 4;
#pragma unroll
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < kKChunks; j++)
          k_block[block].row[half][j] =
              load_or_zero(k + (block * 4 + half * 2) * k_stride + j * 64, k_token(block, half, g) < k_left);
    k += (i64)(kWarps * kWarpTokens) * k_stride;
    k_left -= kWarps * kWarpTokens;
    k_to_fetch--;
  }

  LEAN_DEVICE void fetch_v() {
    if (v_to_fetch == 0) return;
    const int c = lane % 4;
#pragma unroll
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int group = 0; group < kVGroups; group++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const char* p = v + (block * 4 + r) * v_stride + group * 8 * kVWords * 4;
          const bool valid = c * kQuarter + block * 4 + r < v_left;
          u32(&out)[kVWords] = v_block[block][group].row[r];
          if constexpr (kVWords == 4) {
            const uint4 x = load_or_zero(p, valid);
            out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
          } else {
            uint2 x = make_uint2(0, 0);
            load_stream_8_if(valid, x, p);
            out[0] = x.x, out[1] = x.y;
          }
        }
    v += (i64)(kWarps * kWarpTokens) * v_stride;
    v_left -= kWarps * kWarpTokens;
    v_to_fetch--;
  }

  LEAN_DEVICE void start(const WarpTokens& tokens) {
    const int g = lane / 4, c = lane % 4;
    k = tokens.k + ((g >> 1) * kQuarter + (g & 1)) * k_stride + c * 16;
    v = tokens.v + (c * kQuarter) * v_stride + g * kVWords * 4;
    k_left = v_left = tokens.left;
    k_to_fetch = v_to_fetch = tokens.steps;
    fetch_k();
    fetch_v();
  }

  LEAN_DEVICE void acquire(int) {}
  LEAN_DEVICE void read_k_block(int block, KBlock& out) { out = k_block[block]; }
  LEAN_DEVICE void k_done() { fetch_k(); }
  LEAN_DEVICE void read_v_block(int block, int group, VBlock& out) { out = v_block[block][group]; }
  LEAN_DEVICE void release() { fetch_v(); }
};
