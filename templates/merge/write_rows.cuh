// merge/write_rows.cuh -- the warps write a whole output tile row by row. A warp's results lie apart in its lanes'
// registers, two elements of a row here and two there. So they go to shared memory first, to the place of q, which
// nobody reads any more, and from there a row at a time, as neighbouring pieces of 16 bytes. This takes far fewer
// instructions and requests than a thread that writes what it holds.

constexpr int kHeldRowBytes = kHeldTiles * 16;  // of a row, what a warp holds
static_assert(kHeldTiles % 8 == 0, "pieces are swizzled in groups of eight");
static_assert(4 * kRowsOfWarp * kHeldRowBytes <= kHeldBytes, "the warps have the place of q");

// Where this warp's rows lie in shared memory. Of row r, piece p lies at p ^ r % 8, which keeps banks apart.
LEAN_DEVICE u32 held_rows() {
  return shared_address(walk_shared()) + threadIdx.x / 128 * kHeldBytes +
         threadIdx.x / 32 % 4 * kRowsOfWarp * kHeldRowBytes;
}

// To be called by all workers, when no matrix instruction is under way.
LEAN_DEVICE void write_results(const LeanDecodeArgs& args, const Segment& s, const Results& results) {
  const int lane = threadIdx.x % 32, first = first_row_of_warp(), dim = first_dim_of_warp();
  float factor[kRowsOfWarp / 8];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp / 8; i++) {
    const Output output = output_of(args, s, column_at(first + i * 8 + lane / 4, dim / 4));
    factor[i] = output.valid ? finish_row(args, output, {results.max[i], results.sum[i]}) : 0.0f;
  }
  const u32 rows = held_rows();
  // A lane names one piece of one row: of 16 rows by two pieces.
  const u32 row = rows + (u32)(lane % 16 * kHeldRowBytes), swizzle = (u32)((lane / 16 ^ lane % 8) * 16);
#pragma unroll
  for (int sixteen = 0; sixteen < kRowsOfWarp / 16; sixteen++)
#pragma unroll
    for (int tile = 0; tile < kHeldTiles; tile += 2) {
      u32 piece[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float(&x)[4] = results.out[sixteen * kHeldTiles + tile + i / 2];
        const int half = i % 2, of_lane = 2 * sixteen + half;
        piece[i] = Element::pack(x[2 * half] * factor[of_lane], x[2 * half + 1] * factor[of_lane]);
      }
      store_matrices(row + (u32)(sixteen * 16 * kHeldRowBytes + tile / 8 * 128) + (swizzle ^ (u32)(tile % 8 * 16)),
                     piece[0], piece[1], piece[2], piece[3]);
    }
  __syncwarp();
  constexpr int kPieces = kHeldRowBytes / 16;  // of a row
#pragma unroll 4
  for (int i = 0; i < kPieces * kRowsOfWarp / 32; i++) {
    const int r = (i * 32 + lane) / kPieces, at = (i * 32 + lane) % kPieces;
    const Output output = output_of(args, s, column_at(first + r, dim / 4));
    if (output.valid)
      *(uint4*)(output.o + at * 16) = load_shared_16(rows + (u32)(r * kHeldRowBytes + (at ^ r % 8) * 16));
  }
  sync_held();  // others write q there
}
