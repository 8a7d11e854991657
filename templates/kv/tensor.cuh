// kv/tensor.cuh -- load path "tensor": one producer warp moves whole steps by tensor copies (PTX ISA,
// "cp.async.bulk.tensor") into a ring that all warpgroups share. A stage holds K, then V, as 128-byte swizzled panels
// of [kStepTokens][64 dims]. The producer walks the line by itself, so that the stream does not pause between segments.
// ---
// Where rows are gathered, several warps copy them to the same places. With kLatent V is the first panels of K. A stage
// may have two parts, each with barriers of its own: K and V, or with kLatent the panels of the first half of V and all
// others. Both tensor maps have five dimensions: 64 dims, tokens, panels, KV heads and requests; of a paged cache the
// tokens of a page, and pages in place of requests. Tokens past the capacity arrive as zeros, those between context and
// capacity as whatever memory holds.

static_assert(kKvBytes == 2, "the matrix unit reads K and V as they lie");
constexpr int kKPanels = kHeadDim / 64;
constexpr int kVPanels = kValueDim / 64;
constexpr int kPanelBytes = kStepTokens * 128;
constexpr int kKStageBytes = kKPanels * kPanelBytes;
constexpr int kVOffset = kLatent ? 0 : kKStageBytes;  // where V of a stage begins
constexpr int kStageColumns = kLatent ? kHeadDim : kHeadDim + kValueDim;
#if defined(LEAN_WEIGHTS_BESIDE)
constexpr int kStageBytes = lean_warpgroup_stage_bytes(kStepTokens, kStageColumns + 64);  // attend/wgmma_roles.cuh
static_assert(kStageBytes == kKStageBytes + kPanelBytes, "a stage is made of panels");
#else
constexpr int kStageBytes = lean_warpgroup_stage_bytes(kStepTokens, kStageColumns);
static_assert(kStageBytes == kKStageBytes + (kLatent ? 0 : kVPanels * kPanelBytes), "a stage is made of panels");
#endif

// The panel of K with which a part of a stage begins. V, where K does not hold it, is in the last part.
LEAN_DEVICE constexpr int first_panel(int part) {
  return part == 0 ? 0 : part < kStageParts && kLatent ? kVPanels / 2 : kKPanels;
}
LEAN_DEVICE constexpr int k_panels(int part) { return first_panel(part + 1) - first_panel(part); }
LEAN_DEVICE constexpr int v_panels(int part) { return !kLatent && part + 1 == kStageParts ? kVPanels : 0; }
LEAN_DEVICE constexpr int part_bytes(int part) { return (k_panels(part) + v_panels(part)) * kPanelBytes; }

// Where rows are gathered, a part of a stage has arrived once the copies of all lanes have, and the word of each of
// their warps about holes.
constexpr int kGatherArrivals = kGatherWarps * 33;
static_assert(!kGathers || kStepTokens % 64 == 0, "holes are bits of 64-bit words");

struct alignas(64) LeanTensorMap {
  unsigned char opaque[128];
};  // CUtensorMap

struct KvRing {
  u32 stages;  // shared memory, 1024-byte aligned
  u32 full;    // mbarriers, one for each part of each stage: its bytes have arrived
  u32 empty;   // and one for each: its readers are done
};

// A stage of the ring, and the parity that its barriers complete with.
struct RingPosition {
  u32 stage = 0, parity = 0;
  LEAN_DEVICE void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

LEAN_DEVICE KvRing kv_ring(u32 stages) {
  __shared__ __align__(8) u64 barriers[2 * kStageParts * kStages];
  return {stages, shared_address(barriers), shared_address(barriers + kStageParts * kStages)};
}

// With a selection, or where rows are gathered: what of each stage nobody sees, which the producer leaves there before
// the stage is full, and the address of the first stage.
struct SelectedHoles {
  Holes of_stage[kStages];
  u32 stages;
};
LEAN_DEVICE SelectedHoles& selected_holes() {
  __shared__ SelectedHoles holes;
  return holes;
}

// Whether the CTA's range has had a hole of the page table. The producer notes one before its steps arrive, and readers
// of a step ask after it has.
LEAN_DEVICE u32 hole_note() {
  __shared__ u32 note;
  return shared_address(&note);
}
LEAN_DEVICE bool has_note() { return load_shared_4(hole_note()) != 0; }
LEAN_DEVICE void note_hole() { asm volatile("st.shared.u32 [%0], %1;" ::"r"(hole_note()), "r"(1) : "memory"); }
// Whether the step in `stage` may have holes, as far as that is known without the page table.
LEAN_DEVICE bool may_have_holes(u32 stage) {
  if constexpr (kPageSize == 0) return false;
  if constexpr (kSelectionBlock > 0 || kGathers)
    return any_hole(selected_holes().of_stage[(stage - selected_holes().stages) / kStageBytes]);
  return has_note();
}
LEAN_DEVICE Holes step_holes(const LeanDecodeArgs& args, const Segment& s, const Step& step, u32 stage) {
  if constexpr (kPageSize == 0) return Holes{};
  if constexpr (kSelectionBlock > 0 || kGathers)
    return selected_holes().of_stage[(stage - selected_holes().stages) / kStageBytes];
  // The vote is for lanes that read the word before and after a note for a later step.
  return __any_sync(kFullMask, has_note()) ? holes_of(args, s, step) : Holes{};
}

// The barriers of a stage's first part. Those of the other part follow them.
LEAN_DEVICE u32 full_barriers(const KvRing& ring, const RingPosition& at) {
  return ring.full + at.stage * (kStageParts * 8);
}
LEAN_DEVICE u32 empty_barriers(const KvRing& ring, const RingPosition& at) {
  return ring.empty + at.stage * (kStageParts * 8);
}

// Says that a warp has read a part of a stage, whose barrier `empty` is given: to the producer, and to that of the CTA
// that converts rows with it, because both fill the stages of both.
LEAN_DEVICE void release(u32 empty) {
  arrive(empty);
  if constexpr (kConvertingCtas > 1) arrive_at_peer(empty);
}

// To be called by one thread.
LEAN_DEVICE void init_ring(const KvRing& ring) {
#pragma unroll
  for (int i = 0; i < kStageParts * kStages; i++) {
    init_barrier(ring.full + (u32)(i * 8), kGathers ? kGatherArrivals : 1);
    init_barrier(ring.empty + (u32)(i * 8), kStageReaders * kConvertingCtas);  // the warps that read it
  }
  if constexpr (kPageSize > 0 && (kSelectionBlock > 0 || kGathers)) selected_holes().stages = ring.stages;
  if constexpr (kPageSize > 0 && kSelectionBlock == 0 && !kGathers)
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(hole_note()), "r"(0) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits for a phase of one of the ring's barriers, within the bound. The producer reads the context lengths for itself.
// If these change under way, it and its readers may wait for steps that the other side does not have.
LEAN_DEVICE void wait_ring(const LeanDecodeArgs& args, u32 barrier, u32 parity) {
  if constexpr (kPdl) {
    if (!is_complete(barrier, parity)) wait_for_previous_kernel();  // as the readers do, for as long as it takes
  }
  u32 waited = 0;
  while (!is_complete(barrier, parity) && goes_on_waiting(args, waited)) continue;
}

LEAN_DEVICE void prefetch_map(const LeanTensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Where requests have their own numbers of query tokens, some have one row block, which alone reads their KV, and
// others many, for which KV should stay in L2 meanwhile. The latter travels without a hint: that of the normal priority
// makes copies slower.
constexpr bool kSomeReadOnce = kRaggedQ && kRowBlocks > 1 && !kLatent;

// Copies from `token` and `panel` on. How many tokens and panels travel is in the map. outer: the request, or the page.
LEAN_DEVICE void copy_box(u32 destination, const LeanTensorMap& map, int token, int panel, const Segment& s, int outer,
                          u32 barrier) {
  if constexpr (kKvReadOnce) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
        "{%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(destination),
        "l"(&map), "r"(0), "r"(token), "r"(panel), "r"(s.kv_head), "r"(outer), "r"(barrier), "l"(evict_first())
        : "memory");
  } else if constexpr (kSomeReadOnce) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %9, 0;\n"
        "@p cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
        "{%2, %3, %4, %5, %6}], [%7], %8;\n"
        "@!p cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5, %6}], [%7]; }" ::"r"(destination),
        "l"(&map), "r"(0), "r"(token), "r"(panel), "r"(s.kv_head), "r"(outer), "r"(barrier), "l"(evict_first()),
        "r"((u32)(s.query.count * kGroup <= kRows))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], [%7];" ::"r"(destination),
        "l"(&map), "r"(0), "r"(token), "r"(panel), "r"(s.kv_head), "r"(outer), "r"(barrier)
        : "memory");
  }
}

// Where warpgroups have roles there is room for two stages, and a stage becomes free only half a step before its next
// rows are needed. Where row blocks walk in step, the producer asks L2 for them a step earlier. They share the asking.
constexpr bool kPrefetches = kHasRoles && kRowBlocksInStep > 1;

// Asks L2 for what copy_box would copy (PTX ISA, "cp.async.bulk.prefetch.tensor").
LEAN_DEVICE void prefetch_box(const LeanTensorMap& map, int token, int panel, int kv_head, int outer) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map), "r"(0),
               "r"(token), "r"(panel), "r"(kv_head), "r"(outer)
               : "memory");
}
// Asks for the part of a step that is this row block's to ask for. Of more than two row blocks, two ask.
LEAN_DEVICE void prefetch_part(const Segment& s, const LeanTensorMap& k_map, const LeanTensorMap& v_map, int token,
                               int outer) {
  const int number = number_in_step(s.row_block);
  if (number < kStageParts) prefetch_box(number == 0 ? k_map : v_map, token, first_panel(number), s.kv_head, outer);
}

// Asks L2 for the row of this lane, line by line, if it has one and the row is this row block's to ask for (PTX ISA,
// "prefetch"). Row blocks in step share the asking: each CTA asks for one in kRowBlocksInStep of its rows. A bulk
// prefetch would take its address from a uniform register, lane after lane.
template <int kBytes>
LEAN_DEVICE void prefetch_row(const char* row, bool exists) {
  if (exists && (threadIdx.x + blockIdx.x) % kRowBlocksInStep == 0) {
#pragma unroll
    for (int byte = 0; byte < kBytes; byte += 128)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + byte) : "memory");
  }
}

// Waits until the step that begins with `token` may be read: its newest tokens may come from the previous kernel,
// unless their rows are given.
LEAN_DEVICE void wait_for_tokens(const Segment& s, int token) {
#if !defined(LEAN_APPENDS_TO_STAGE)
  if constexpr (kPdl) {
    if (token + kStepTokens > s.context_length - s.query.count) wait_for_previous_kernel();
  }
#endif
}

// The producer's side of the ring.
struct RingWriter {
  RingPosition at;
  u32 filled = 0;  // stages, up to all

  LEAN_DEVICE u32 stage(const KvRing& ring) const { return ring.stages + at.stage * kStageBytes; }
  // Waits until a part of the stage is free. Parts are claimed in their order. The wait for the part's last copy comes
  // first: readers that gave up may have freed the stage before that copy came, and a second arrival in one phase of
  // `full` is an error.
  LEAN_DEVICE void claim(const LeanDecodeArgs& args, const KvRing& ring, int part) {
    if (filled < kStages) return;  // nobody has used it yet
    wait_ring(args, full_barriers(ring, at) + part * 8, at.parity ^ 1);
    wait_ring(args, empty_barriers(ring, at) + part * 8, at.parity ^ 1);
  }
  // Goes on to the next stage.
  LEAN_DEVICE void next() {
    at.next();
    if (filled < kStages) filled++;
  }
  // Waits until all that was requested has arrived. A CTA must not end before. Its readers wait for the same copies,
  // unless lengths change under way; then they may be gone.
  LEAN_DEVICE void finish(const LeanDecodeArgs& args, const KvRing& ring) {
#pragma unroll 1
    for (u32 left = kStages; left > 0; left--, at.next())  // from the oldest stage on
      for (int part = 0; part < kStageParts && left <= filled; part++)
        wait_ring(args, full_barriers(ring, at) + part * 8, at.parity ^ 1);
  }
};

// Where parts have producer warps of their own, whether a part is the calling warp's.
LEAN_DEVICE bool produces_part(int part) { return (int)threadIdx.x / 32 == kWarps + part; }

// A barrier of the producer's warps, behind which the ring is initialised.
LEAN_DEVICE void sync_producers() {
  constexpr int kWarpsHere = kGathers ? kGatherWarps : kPartProducers + (kMostPasses > 1 ? 1 : 0);
  asm volatile("bar.sync %0, %1;" ::"n"(kFirstBarrier + 7), "n"(kWarpsHere * 32) : "memory");
}

// Waits until all of the stage at hand is free.
LEAN_DEVICE void claim_all(const LeanDecodeArgs& args, const KvRing& ring, RingWriter& writer) {
#pragma unroll
  for (int part = 0; part < kStageParts; part++) writer.claim(args, ring, part);
}

// V rows past the context become zeros, because a masked token's weight of 0 does not silence a NaN in memory. To be
// called by a whole warpgroup.
LEAN_DEVICE void zero_v_rows(u32 v, int tokens) {
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < (kStepTokens - tokens) * 8 * kVPanels; i += 128) {
    const int token = tokens + i / (8 * kVPanels);
    store_shared_zero_16(v + (u32)(i / 8 % kVPanels * kPanelBytes + token * 128 + i % 8 * 16));
  }
}

// So do V rows of a selection's holes. To be called by a whole warpgroup.
LEAN_DEVICE void zero_v_holes(u32 v, const Holes& holes) {
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < kStepTokens * 8 * kVPanels; i += 128) {
    const int token = i / (8 * kVPanels);
    if (in_hole(holes, token))
      store_shared_zero_16(v + (u32)(i / 8 % kVPanels * kPanelBytes + token * 128 + i % 8 * 16));
  }
}
