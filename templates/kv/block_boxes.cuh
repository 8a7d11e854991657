// kv/block_boxes.cuh -- the boxes of pages with scales of blocks: K, V, the scales of K and those of V. Where rows of
// consecutive tokens are adjacent, those of 16 tokens are one run of bytes. Otherwise boxes have a row for each token,
// and lanes copy the scales, because few bytes of a token have nothing that is a multiple of 16.

constexpr int kMaps = kContiguous ? 4 : 2, kGroupPitch = kBoxes.bytes;
constexpr int kBytesOfGroup = 16 * (kKRowBytes + kVRowBytes + (kContiguous ? 2 * kBlockScaleBytes : 0));
constexpr int kRowUnit = 8, kScaleUnit = 4;  // bytes in which maps of rows and of scales have columns

struct Boxes {
  static constexpr int kArrivals = kContiguous ? 1 : 33;  // all lanes arrive when their copies have
  int columns[kMaps];                                     // where boxes of the page's first token begin
  i64 v_scales_apart;                                     // bytes from a token's scales of K to those of V

  LEAN_DEVICE void init(const LeanDecodeArgs& args) { v_scales_apart = v_scales(args, 0) - k_scales(args, 0); }
  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, const KvCursor&) {
    columns[0] = (int)(s.kv_head * args.k_stride_head / kRowUnit);
    columns[1] = (int)(s.kv_head * args.v_stride_head / kRowUnit);
#pragma unroll
    for (int i = 2; i < kMaps; i++) columns[i] = (int)(s.kv_head * args.kv_scale_stride_head / kScaleUnit);
  }
  // What boxes do not bring of a step. To be called by all lanes.
  LEAN_DEVICE void copy_rest(const KvCursor& at, u32 stage, int tokens, u32 barrier, int lane) const {
    if constexpr (kContiguous) return;
    copy_block_scales(at, v_scales_apart, stage, tokens, lane);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  }
  LEAN_DEVICE static StageAddress stage_at(u32 base) { return base; }

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
