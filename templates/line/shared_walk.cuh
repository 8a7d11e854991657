// line/shared_walk.cuh -- one walk for all workers of a CTA. Matrix instructions and barriers need them all, so they
// must take the same segments, even where a caller changes lengths under way: one thread says which it has found.
// ---
// Kernels with roles share every segment. The others share the first one alone. Their warps find it at different times,
// from lengths that are not in L1 yet; later reads usually hit L1. Sharing later segments, too, costs registers, which
// made many short requests 2 to 3 % slower.

struct FoundSegment {
  Walk walk;
  bool any;  // false when the range is done
};

// Neighbouring segments have a place each. So between taking segment `number` and finding segment number + 2 there must
// be a barrier, as there is one between finding and taking.
LEAN_DEVICE FoundSegment& found_segment(int number) {
  __shared__ FoundSegment found[2];
  return found[number % 2];
}

LEAN_DEVICE bool take_segment(int number, Walk& walk) {
  walk = found_segment(number).walk;
  return found_segment(number).any;
}
