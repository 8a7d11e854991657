// line/shared_walk.cuh -- one walk for all workers of a CTA. Matrix instructions need all warps of a warpgroup, and
// barriers all workers. So these must take the same segments, even if what the walk reads from memory changes while
// they run, which it must not. One thread says which segment it has found, and all take that.
//
// Kernels with roles do so for every segment. The others do so for the first one, before which nobody has read the
// lengths of the batch. Each of their warps finds the segments behind it for itself, because the registers that taking
// them costs make many short requests 3 % slower.

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
