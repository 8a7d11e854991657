// no_rope.cuh -- q as it is.

LEAN_DEVICE u32 rotated_pair(const LeanDecodeArgs&, const char* row, int dim, int) {
  return load_query_4(row + 2 * dim);
}
LEAN_DEVICE uint4 rotated_16(const LeanDecodeArgs&, const char* row, int dim, int) {
  return load_query_16(row + 2 * dim);
}
