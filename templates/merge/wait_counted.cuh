// merge/wait_counted.cuh -- fix-up "wait" (merge/wait.cuh) of large partials, which are counted. An output tile with
// two contributors is a pair, which the first contributor merges alone. The output tile is the last of its range, so
// its results are still in registers. It is the first of the second contributor's range, which has usually stored its
// partial by then; with two CTAs for each output tile both end together. So half as many bytes travel as where both
// store partials.

LEAN_DEVICE void plan_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f) {
  f.c = contributors_of(args, walk);
}

// Adds a partial to what this thread holds, and puts the zeros of its columns back. Whether a row exists is asked again
// and again, as in for_each_held.
LEAN_DEVICE void absorb_partial(const LeanDecodeArgs& args, float* partial, Attention& a) {
  constexpr int kTogether = kOutTiles % 16 == 0 ? 8 : 4;  // columns that are loaded before any is used
  const int row = first_held_row();
  float* columns = partial_column(partial, first_held_column(row));
  asm volatile("" : "+l"(columns));  // lest addresses be worked out anew for each column
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const RowState other = load_state(row_state(partial, min(row + 8 * i, kRows - 1)));
    const float max = fmaxf(a.max[i], other.max), reference = reference_of(max),
                keep = exp2_approx((a.max[i] - reference) * args.scale_log2),
                weight = exp2_approx((other.max - reference) * args.scale_log2);
    a.max[i] = max, a.sum[i] = fmaf(other.sum, weight, a.sum[i] * keep);
#pragma unroll
    for (int begin = 0; begin < kOutTiles / 2; begin += kTogether) {
      if (row + 8 * i >= kRows) continue;
      float* const from = columns + (8 * i * kRowColumns + begin * kFourFurther) * 4;
      float4 o[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; n++) o[n] = load_column(from + n * kFourFurther * 4);
#pragma unroll
      for (int n = 0; n < kTogether; n++) {
        float(&x)[4] = a.out[2 * (begin + n)], (&y)[4] = a.out[2 * (begin + n) + 1];
        x[2 * i] = fmaf(o[n].x, weight, x[2 * i] * keep), x[2 * i + 1] = fmaf(o[n].y, weight, x[2 * i + 1] * keep);
        y[2 * i] = fmaf(o[n].z, weight, y[2 * i] * keep), y[2 * i + 1] = fmaf(o[n].w, weight, y[2 * i + 1] * keep);
        clear_column(from + n * kFourFurther * 4);
      }
    }
  }
}

// Whether this CTA is the first of a pair. Then the other one's partial is added to its results, and the
// output tile is whole. To be called by all workers.
LEAN_DEVICE bool completes_pair(const LeanDecodeArgs& args, const FixUp& f, Attention& a) {
  if constexpr (!kMerges) return false;
  if (f.c.count != 2 || f.c.mine != 0) return false;
  await_partials(args, f.c, 1);
  float* const other = partial_at(args, f.c.first_slot + 1, 0);
  absorb_partial(args, other, a);
  if (count_news().missing) a.sum[0] = a.sum[1] = __uint_as_float(0x7fffffffu);
  sync_workers();  // all have read the states
  if ((int)threadIdx.x < kRows) clear_state(row_state(other, (int)threadIdx.x));
  if (threadIdx.x == 0) *tile_count(args, f.c) = 0;
  return true;
}

LEAN_DEVICE void finish_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f, const Results& results) {
  store_row_partial(args, f.c, results);
  if constexpr (kMerges) count_partial(args, f.c);  // a count that nobody waits for would stay
  if (threadIdx.x == 0 && f.c.count != 2) shared_tiles()[f.c.mine == 0 ? 1 : 0] = {f.c, walk.segment};
}

LEAN_DEVICE void end_fix_up(const LeanDecodeArgs& args) {
  if constexpr (!kMerges) return;
  sync_workers();
#pragma unroll 1
  for (int which = 0; which < 2; which++) {
    const Contributors c = shared_tiles()[which].c;
    if (c.count == 0) continue;
    await_partials(args, c, c.count);
    reduce_share(args, c, shared_tiles()[which].segment, 0);
    leave_partials(args, c);
  }
}
