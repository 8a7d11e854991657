// kv/token_holes.cuh -- which tokens of a step nobody sees, where rows are gathered one by one: a bit for each token.

struct Holes {
  u64 tokens[(kStepTokens + 63) / 64];
};
LEAN_DEVICE bool any_hole(const Holes& holes) {
  u64 any = 0;
#pragma unroll
  for (int i = 0; i < (kStepTokens + 63) / 64; i++) any |= holes.tokens[i];
  return any != 0;
}
LEAN_DEVICE bool in_hole(const Holes& holes, int offset) { return (holes.tokens[offset / 64] >> offset % 64 & 1) != 0; }
