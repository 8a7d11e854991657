// attend/query_rows.cuh -- query rows in shared memory, as the rows of a matrix operand: [panel][row][64 dims],
// 128-byte swizzled.

constexpr int kQueryPanels = (kHeadDim + 63) / 64;

// Copies kCount of the output tile's rows, from `first_row` on. Rows that do not exist become zeros. To be called by
// kSharers threads, of which `thread` is the calling one; each waits for what it has copied itself.
template <int kCount, int kSharers>
LEAN_DEVICE void copy_query_rows(const LeanDecodeArgs& args, const Segment& s, int first_row, int thread,
                                 unsigned char (&to)[kQueryPanels][kCount * 128]) {
  constexpr int kColumnChunks = kHeadDim / 8, kChunksPerThread = kCount * kColumnChunks / kSharers;
#pragma unroll(kChunksPerThread % 4 == 0 ? 4 : 1)
  for (int i = 0; i < kChunksPerThread; i++) {
    const int at = i * kSharers + thread, index = at / kColumnChunks, column = at % kColumnChunks;
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
}

// Loads the output tile's 64 rows from `first_row` on for the matrix unit of a warpgroup, which calls this. The threads
// meet before anything is overwritten, and once all is there.
LEAN_DEVICE void load_query_rows(const LeanDecodeArgs& args, const Segment& s, int first_row, int warpgroup,
                                 unsigned char (&to)[kQueryPanels][64 * 128]) {
  sync_warpgroup(warpgroup);
  copy_query_rows<64, 128>(args, s, first_row, (int)threadIdx.x % 128, to);
  fence_async_proxy();
  sync_warpgroup(warpgroup);
}
