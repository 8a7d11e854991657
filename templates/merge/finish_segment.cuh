// merge/finish_segment.cuh -- the end of a segment: a whole output tile is written, a shared one goes to the fix-up.

LEAN_DEVICE void finish_segment(const LeanDecodeArgs& args, const Walk& here, bool whole, FixUp& fix,
                                const MergeBuffer& buffer) {
  if (!whole) return finish_fix_up(args, here, fix, buffer);
  for_each_column([&](int column) {
    float4 o;
    const RowState state = merge_states(buffer, column, args.scale_log2, o);
    write_output(args, output_of(args, here.segment, column), state, o);
  });
}
