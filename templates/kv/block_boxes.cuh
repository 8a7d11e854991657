// kv/block_boxes.cuh -- the boxes of pages with scales of blocks: K, V, the scales of K and those of V. Where rows of
// consecutive tokens are adjacent, those of 16 tokens are one run of bytes. Otherwise a box of scales begins up to
// 12 bytes in front of a KV head's.

constexpr int kMaps = 4, kGroupPitch = kBoxes.bytes;
constexpr int kBytesOfGroup = 16 * (kKRowBytes + kVRowBytes + 2 * kBoxes.scale_pitch);
constexpr int kRowUnit = 8, kScaleUnit = 4;  // bytes in which maps of rows and of scales have columns

struct Boxes {
  int columns[kMaps];  // where boxes of the page's first token begin
  u32 shift[2];        // and the KV head's scales in their boxes, in bytes

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, const KvCursor&) {
    columns[0] = (int)(s.kv_head * args.k_stride_head / kRowUnit);
    columns[1] = (int)(s.kv_head * args.v_stride_head / kRowUnit);
    const i64 scales = s.kv_head * args.kv_scale_stride_head;
    shift[0] = shift[1] = kContiguous ? 0 : (u32)(scales % 16);
    columns[2] = columns[3] = (int)((scales - shift[0]) / kScaleUnit);
  }

  // Of a box in what 16 tokens take of a stage.
  LEAN_DEVICE static int offset(int i) {
    return i == 0 ? 0 : i == 1 ? kBoxes.v_offset : i == 2 ? kBoxes.k_scales_offset : kBoxes.v_scales_offset;
  }
  LEAN_DEVICE static int map(int i) { return i; }
  LEAN_DEVICE int column(int i, const TokenPlace& first) const {
    constexpr int kK = kKRowBytes / kRowUnit, kV = kVRowBytes / kRowUnit, kScales = kBlockScaleBytes / kScaleUnit;
    return columns[i] + (kContiguous ? first.token * (i == 0 ? kK : i == 1 ? kV : kScales) : 0);
  }
  LEAN_DEVICE static int row(int, const TokenPlace& first) { return kContiguous ? 0 : first.token; }
};
