// kv/token_holes.cuh -- which tokens of a step nobody sees, where rows are gathered one by one. The producer leaves a
// bit for each token of a step with the step's stage.

struct Holes {
  u64 tokens;
};
static_assert(sizeof(Holes) == 8, "each warp that copies rows writes its bytes");
LEAN_DEVICE bool any_hole(const Holes& holes) { return holes.tokens != 0; }
LEAN_DEVICE bool in_hole(const Holes& holes, int offset) { return (holes.tokens >> offset & 1) != 0; }
