// merge/shared_tiles.cuh -- what a CTA keeps until the end of its range, where contributors wait for each other: the
// output tiles of which it still has to reduce a share (merge/wait.cuh, merge/wait_counted.cuh).

struct FixUp {
  Contributors c;
};

struct SharedTile {
  Contributors c;
  Segment segment;
};

LEAN_DEVICE SharedTile* shared_tiles() {
  __shared__ SharedTile tiles[2];  // [which partial of the slot]; of one with a count of 0 nothing is left to reduce
  return tiles;
}

LEAN_DEVICE void init_fix_up() {
  if (threadIdx.x < 2) shared_tiles()[threadIdx.x].c.count = 0;  // visible after the first barrier of the main loop
}
LEAN_DEVICE void begin_fix_up(const LeanDecodeArgs&, const Walk&, FixUp&) {}
