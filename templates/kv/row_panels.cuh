// kv/row_panels.cuh -- rows of a latent cache of bytes, with a format of their own (generator/kv_encoding.hpp) or with
// elements of one byte, become panels in the stages (kv/byte_panels.cuh). Each warp that copies rows has its own tokens
// of a step and needs none of the others. Host and device compile this file.
//
// Columns that are 16-bit in memory lie where they belong from the start. Scales have shared memory of their own. Rows
// of holes, and of tokens behind the last one, are zeros.
//
// Where an even number of row blocks go in step and columns have scales, two CTAs that need the same rows are a cluster
// and share the work (kConvertingCtas). Each converts half of a warp's rows, and stores their values in the stages of
// both.

constexpr int kBytePanels = kRowByteColumns / 64;  // of columns of one byte
constexpr bool kOddPanel = kBytePanels % 2 != 0;   // whether one is no part of a pair
constexpr int kRowScaleBytes = kRowGroup > 0 ? kScalesOfRow*(int)sizeof(StoredScale) : 0;
static_assert(kLatent && kValueDim % 128 == 0, "V is the first pairs of panels");
static_assert(kRowByteColumns % 64 == 0, "there are whole panels");
static_assert(kRowGroup == 0 || (128 % kScaleColumns == 0 && kRowGroup % 8 == 0), "eight columns have one scale");
static_assert(kRowScaleBytes % 16 == 0 || kRowScaleBytes == 8, "scales are copied by 16 bytes, or 8");
static_assert(kRowBytes % 16 == 0, "a row is copied by 16 bytes");

static_assert(kConvertingCtas == 1 || (kValueDim == kRowByteColumns && kValueDim % 256 == 0),
              "what is shared is V, and both panels of a pair are in one part of the stage");

// Requests this warp's rows of the step that is to lie in `stage`, the at_stage-th of the ring. row: where that of each
// lane lies, in bytes from k_head, or below 0, and to_scales: how many bytes behind it its scales do in a plane
// (RowPlaces). turn: which of the steps in `row` it is.
LEAN_DEVICE void request_rows(const char* k_head, i64 row, int to_scales, int turn, u32 stage, u32 at_stage) {
  const int lane = threadIdx.x % 32, first = gather_warp() * kWarpRows;
  const u32 exists = __ballot_sync(kFullMask, row >= 0) >> turn * kWarpRows;  // of each of the warp's rows, a bit
  const i64 own = (i64)(k_head + (row < 0 ? 0 : row));
  const auto row_at = [&](int i) { return (const char*)__shfl_sync(kFullMask, own, turn * kWarpRows + i); };
  // Eight lanes copy a row, and then the fourth row after it: together 128 columns of one byte, or 64 of two. A loop,
  // because each warp comes by once a step, and straight code would wait for its instructions.
  const int piece = lane % 8;
#pragma unroll 1
  for (int i = lane / 8; i < kWarpRows; i += 4) {
    const char* const bytes = row_at(i) + kRowFirstByte + piece * 16;
    const bool there = (exists >> i & 1) != 0;
    const u32 to = stage + (u32)((first + i) * 128 + piece * 16);
    copy_bytes<kRowByteColumns>(to, bytes, there, kConvertingCtas == 1 || i / kOwnRows == (int)cta_of_cluster());
#pragma unroll
    for (int panel = kBytePanels; panel < kKPanels; panel++)
      copy_async_16(stage + (u32)(panel * kPanelBytes + (first + i) * 128 + (piece ^ (first + i) % 8) * 16),
                    bytes + (kRowRope - kRowFirstByte) + (panel - kBytePanels) * 128, there);
  }
  if constexpr (kRowGroup > 0) {
    const bool there = (exists >> lane & 1) != 0;
    const char* from = row_at(lane % kWarpRows) + kRowScales;
    if constexpr (kRowPlane > 0) {
      const int behind = __shfl_sync(kFullMask, to_scales, turn * kWarpRows + lane % kWarpRows);
      from += there ? behind : 0;
    }
    if (lane < kWarpRows) {
      const u32 to = shared_address(&row_buffers().scales[at_stage][first + lane][0]);
      if constexpr (kRowScaleBytes == 8) {
        copy_async_8(to, from, there);
      } else {
#pragma unroll
        for (int i = 0; i < kRowScaleBytes; i += 16) copy_async_16(to + (u32)i, from + i, there);
      }
    }
  }
  arrive_with_copies(arrived_barrier(at_stage));
}

// Expects what the other CTA's warp of this number stores in each part of the stage.
LEAN_DEVICE void expect_rows_of_peer(u32 full) {
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int part = 0; part < kStageParts; part++)
      expect_from_peer(full + (u32)(part * 8),
                       (u32)((min(first_panel(part + 1), kVPanels) - first_panel(part)) * kOwnRows * 128));
  }
}

// Converts this warp's rows of the step in `stage`, whose bytes are there, and says so at the barriers of the stage's
// parts, all together: a fence for each part would take longer than readers gain by an earlier first part.
LEAN_DEVICE void convert_rows(u32 stage, u32 at_stage, u32 full) {
  convert_bytes<kRowByteColumns>(stage, at_stage, gather_warp() * kWarpRows + first_own_row(), full);
  publish_rows();
  if constexpr (kConvertingCtas > 1) expect_rows_of_peer(full);
  arrive_for_warp<0, kStageParts>(full);
}
