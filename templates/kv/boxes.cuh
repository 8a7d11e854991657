// kv/boxes.cuh -- load path "tensor" of warps: the copy engine brings 16 tokens of a KV head in kMaps boxes, each by a
// tensor map of its own (PTX ISA, "Tensors"). Boxes says which: kv/row_boxes.cuh or kv/block_boxes.cuh. A box begins at
// a multiple of 16 bytes, and strides of a map are such multiples.

constexpr int kBoxTokens = 16, kBoxGroups = kStepTokens / kBoxTokens;
static_assert(kPageSize == 0 || kPageRun % kBoxTokens == 0, "a box is of one page");

struct alignas(64) LeanTensorMap {
  unsigned char opaque[128];
};  // CUtensorMap
struct LeanTensorMaps {
  LeanTensorMap of[kMaps];
};

struct KvPipe : CopiedStages<KvPipe> {
  static constexpr int kArrivals = Boxes::kArrivals;
  const LeanTensorMaps* maps;
  Boxes boxes;

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args,
                        const LeanTensorMaps& tensor_maps) {
    init_stages(shared_base, warp, lane_index, args);
    maps = &tensor_maps;
    boxes.init(args);
  }

  // One lane of the warp. Of another choice the compiler does not know that copies have one, and makes loops over lanes
  // (PTX ISA, "elect.sync").
  LEAN_DEVICE static bool elected() {
    u32 r;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(r));
    return r != 0;
  }
  LEAN_DEVICE static void copy(u32 destination, const LeanTensorMap* map, int column, int row, int outer, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(destination),
        "l"(map), "r"(column), "r"(row), "r"(outer), "r"(barrier)
        : "memory");
  }

  LEAN_DEVICE void fetch() {
    if (at.done()) return;
    const int tokens = at.tokens(), groups = min((tokens + kBoxTokens - 1) / kBoxTokens, kBoxGroups);
    const u32 base = fetch_base(), barrier = fetch_barrier();
    const bool leads = elected();
    if (leads) expect_bytes(barrier, (u32)(groups * kBytesOfGroup));
    __syncwarp();
#pragma unroll
    for (int group = 0; group < kBoxGroups; group++) {
      const TokenPlace first = at.place(group * kBoxTokens);
      if (leads && group < groups) {
#pragma unroll
        for (int i = 0; i < kMaps; i++)
          copy(base + (u32)(group * kGroupPitch + Boxes::offset(i)), &maps->of[boxes.map(i)], boxes.column(i, first),
               boxes.row(i, first), first.outer, barrier);
      }
    }
    boxes.copy_rest(at, base, tokens, barrier, lane);
    fetched();
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    boxes.start(args, s, at);
    fetch_all();
  }

  LEAN_DEVICE StageAddress base() const { return boxes.stage_at(ring + (u32)(stage * kStage.bytes)); }
#if defined(LEAN_TOKEN_SCALES)
  LEAN_DEVICE float k_scale(int block, int half) const { return read_k_scale(base(), block, half, lane); }
  LEAN_DEVICE float v_scale(int block, int half) const { return read_v_scale(base(), block, half, lane); }
#endif
};
