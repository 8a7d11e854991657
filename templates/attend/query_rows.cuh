// attend/query_rows.cuh -- 64 query rows in shared memory, as the rows of a matrix operand.

constexpr int kQueryPanels = kHeadDim / 64;

// Loads the output tile's rows from `first_row` on to [panel][row][64 dims], 128-byte swizzled. Rows that do not exist
// become zeros. To be called by a warpgroup. The threads meet before anything is overwritten, and once all is there.
LEAN_DEVICE void load_query_rows(const LeanDecodeArgs& args, const Segment& s, int first_row, int warpgroup,
                                 unsigned char (&to)[kQueryPanels][64 * 128]) {
  constexpr int kColumnChunks = kHeadDim / 8, kChunksPerThread = 64 * kColumnChunks / 128;
  sync_warpgroup(warpgroup);
#pragma unroll(kChunksPerThread % 4 == 0 ? 4 : 1)
  for (int i = 0; i < kChunksPerThread; i++) {
    const int at = i * 128 + (int)threadIdx.x % 128, index = at / kColumnChunks, column = at % kColumnChunks;
    const Row row = row_of(s.query, s.row_block, first_row + index);
    unsigned char* const chunk = &to[column / 8][index * 128 + ((column ^ index) % 8) * 16];
    if constexpr (kRotates || kHasScales) {
      *(uint4*)chunk = row.valid ? query_16(rotated_16(args, query_row(args, s, row), column * 8, query_index(s, row)))
                                 : make_uint4(0, 0, 0, 0);
    } else {
      // An address must be valid even if none of its bytes are copied.
      const char* const from = row.valid ? query_row(args, s, row) + column * 16 : (const char*)args.q;
      copy_async_16(shared_address(chunk), from, row.valid);
    }
  }
  if constexpr (!kRotates && !kHasScales) asm volatile("cp.async.wait_all;" ::: "memory");
  fence_async_proxy();
  sync_warpgroup(warpgroup);
}
