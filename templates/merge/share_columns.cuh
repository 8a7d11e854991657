// merge/share_columns.cuh -- a contributor reduces its share column by column (merge/slice.cuh).

LEAN_DEVICE void reduce_share(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32 turn) {
  reduce_columns(args, c, segment, turn);
}
