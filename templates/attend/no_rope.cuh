// attend/no_rope.cuh -- rows of q as they are: two neighbouring dims, or eight, from `dim` on.

constexpr bool kRotates = false;
LEAN_DEVICE u32 rotated_pair(const LeanDecodeArgs&, const char* row, int dim, int) {
  return load_cached<u32>(row + 2 * dim);
}
LEAN_DEVICE uint4 rotated_16(const LeanDecodeArgs&, const char* row, int dim, int) {
  return load_cached<uint4>(row + 2 * dim);
}
