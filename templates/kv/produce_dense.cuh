// kv/produce_dense.cuh -- the producer of load path "tensor" for a dense cache: one lane copies K and V of a
// step, or with kLatent each part of a stage.

// Requests every step of this CTA's range as stages become free. To be called by the whole producer warp.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                         const KvRing& ring, Walk& walk) {
  const bool leader = threadIdx.x % 32 == 0;
  if (!leader) return;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      const int token = step_at(s, read).token;
      const u32 full = full_barriers(ring, writer.at), stage = writer.stage(ring);
      wait_for_tokens(s, token);
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        if (kPartProducers > 1 && !produces_part(part)) continue;
        writer.claim(args, ring, part);
        expect_bytes(full + part * 8, part_bytes(part));
#if defined(LEAN_PACKED_KV)
        const int row = s.kv_first + token;
        if (k_panels(part) > 0) copy_box(stage, k_map, row, 0, s, 0, full + part * 8);
        if (v_panels(part) > 0) copy_box(stage + kKStageBytes, v_map, row, 0, s, 0, full + part * 8);
#else
        if (k_panels(part) > 0)
          copy_box(stage + first_panel(part) * kPanelBytes, part == 0 ? k_map : v_map, token, first_panel(part), s,
                   s.request, full + part * 8);
        if (v_panels(part) > 0) copy_box(stage + kKStageBytes, v_map, token, 0, s, s.request, full + part * 8);
#endif
      }
      if constexpr (kPrefetches) {
        if (leader && read + kStepTokens < end)
          prefetch_part(s, k_map, v_map, step_at(s, read + kStepTokens).token, s.request);
      }
      writer.next();
    }
  } while (next_segment(args, walk));
  writer.finish(args, ring);
}
