// kv/row_boxes.cuh -- the boxes of rows that hold K, its scale, V and its scale: those of even and those of odd number
// of 16 tokens, because strides of two tokens are multiples of 16 bytes where rows are aligned to eight. A box begins
// up to eight bytes in front of the row.

constexpr int kMaps = 2, kGroupPitch = 16 * kRowPitch, kBytesOfGroup = kGroupPitch;

struct Boxes {
  static constexpr int kArrivals = 1;
  // Of a segment's first token and every other one after it, and of the tokens between them: where boxes begin in their
  // map, in units of eight bytes, and rows in boxes, in bytes.
  int columns[kMaps];
  u32 shift[kMaps];
  int first_odd;  // whether its first token has an odd number

  LEAN_DEVICE void init(const LeanDecodeArgs&) {}
  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, KvCursor& at) {
    // Steps of a segment begin an even number of tokens apart, and pages with an even token.
    first_odd = kPageSize > 0 ? 0 : at.place(0).token & 1;
    int head = (int)(s.kv_head * args.k_stride_head * kKvBytes / 8);
#if !defined(LEAN_PACKED_KV)
    if constexpr (kPageSize == 0) {
      // Requests that no stride of a map reaches lie in one dimension with the heads.
      const i64 apart = args.k_stride_batch * kKvBytes;
      if (apart % 16 != 0) head += (int)(s.request * apart / 8), at.request = 0;
    }
#endif
#pragma unroll
    for (int i = 0; i < kMaps; i++) {
      // A map begins at a multiple of 16 bytes.
      const u64 row = (u64)args.k + (u64)(map(i) * args.k_stride_token * kKvBytes);
      const int column = head + (int)(row / 8 % 2);
      columns[i] = column & ~1, shift[i] = (u32)(column & 1) * 8;
    }
  }

  LEAN_DEVICE void copy_rest(const KvCursor&, u32, int, u32, int) const {}
  LEAN_DEVICE StageAddress stage_at(u32 base) const { return {base, {shift[0], shift[1]}}; }

  LEAN_DEVICE static int offset(int i) { return i * 8 * kRowPitch; }  // of a box in what 16 tokens take of a stage
  LEAN_DEVICE int map(int i) const { return i ^ first_odd; }          // of tokens of even number, and of odd number
  LEAN_DEVICE int column(int i, const TokenPlace&) const { return columns[i]; }
  LEAN_DEVICE int row(int i, const TokenPlace& first) const { return (first.token + i) / 2; }  // a pair of tokens
};
