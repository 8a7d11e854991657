// merge/destination.cuh -- where write_output takes a finished column of a segment.
// ---
// That is its place in O or, in a group, the rank that writes it.

LEAN_DEVICE auto destination_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  if constexpr (kRanks > 1) {
    return sending_of(args, s, column);
  } else {
    return output_of(args, s, column);
  }
}
