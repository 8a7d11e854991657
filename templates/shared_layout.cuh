// shared_layout.cuh -- how many bytes parts of shared memory and partials take. The host launches with what this file
// says, and the kernel's own types are checked against it.
// ---
// Host and device compile it. A CTA's dynamic shared memory:
//
//   mma and vector families: | merge buffer | a ring of KV stages per warp | the queries of each warp, of wide heads |
//   wgmma family:            | merge buffer | operands of each warpgroup | one ring of KV stages | rows | alignment |
//   with roles:              | operands of all warpgroups | one ring of KV stages | alignment |
//
// Two warpgroups of the wgmma family that split O's columns share one set of operands.
// There is no merge buffer where results stay in registers (merge/held_results.cuh), and rows wait beside the ring only
// in kv/row_buffer.cuh.
#if !defined(LEAN_HD)
#define LEAN_HD inline  // the device's is in schedule.cuh
#endif

LEAN_HD constexpr int lean_round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// The merge buffer: `states` softmax states of `rows` query rows, each with a maximum and a sum. Rows of O are padded
// by four floats.
LEAN_HD constexpr int lean_merge_bytes(int states, int rows, int value_dim) {
  return 4 * states * (2 * lean_round_up(rows, 8) + rows * (value_dim + 4));
}

// A partial result in the workspace, in floats: `values` of O, in columns of four, and a maximum and a sum for each
// `share` columns.
LEAN_HD constexpr int lean_partial_floats(int values, int share) { return values + values / (2 * share); }

// One stage of a warp's ring: `tokens` rows of K back to back, then four quarters of V. A skew of 32 bytes between the
// quarters keeps reads of V free of bank conflicts.
struct LeanStage {
  int v_offset;       // where V begins
  int quarter_bytes;  // a quarter of V and its skew
  int bytes;
};
LEAN_HD constexpr LeanStage lean_warp_stage(int tokens, int k_row_bytes, int v_row_bytes) {
  const int v_offset = lean_round_up(tokens * k_row_bytes, 16);
  const int quarter_bytes = lean_round_up(tokens / 4 * v_row_bytes, 128) + 32;
  return {v_offset, quarter_bytes, lean_round_up(v_offset + 4 * quarter_bytes, 128)};
}

// Where scales of tokens travel with their rows, a stage has a word for each token of K behind its rows, then one for
// each of V.
LEAN_HD constexpr int lean_stage_scale_bytes(int tokens) { return 2 * 4 * tokens; }

// A row that holds K, its scale, V and its scale.
LEAN_HD constexpr int lean_shared_row_bytes(int k_row_bytes, int v_row_bytes) { return k_row_bytes + v_row_bytes + 8; }

// Where blocks of columns have scales, a stage has four quarters of those of K behind its rows, then as many of V.
// Quarters have a skew of two rows, as that of V (kv/warp_ring.cuh).
LEAN_HD constexpr int lean_block_scale_bytes(int tokens, int row_bytes) {
  return lean_round_up(2 * (tokens + 4 * 2) * row_bytes, 128);
}

// Where boxes bring K and V apart from each other (kv/block_boxes.cuh), a stage has those of 16 tokens one after the
// other, and behind them the scales of their blocks, each array at a multiple of 128 bytes.
struct LeanBlockBoxes {
  int v_offset, k_scales_offset, v_scales_offset, bytes;
};
LEAN_HD constexpr LeanBlockBoxes lean_block_boxes(int k_row_bytes, int v_row_bytes, int scale_bytes) {
  const int rows = 16 * (k_row_bytes + v_row_bytes), scales = lean_round_up(16 * scale_bytes, 128);
  return {16 * k_row_bytes, rows, rows + scales, rows + 2 * scales};
}

// A warp's queries. They stand in shared memory only where they are too wide for registers.
constexpr int kLeanQueryDims = 256;
LEAN_HD constexpr int lean_query_bytes(int rows, int head_dim) {
  return head_dim > kLeanQueryDims ? lean_round_up(rows, 8) * head_dim * 2 : 0;
}

constexpr int kLeanAtomBytes = 1024;  // what the 128-byte swizzle repeats after, and so starts at multiples of

// A warpgroup's operands beside KV. With tokens on the 64 matrix rows: q, and, for each of the warpgroups that share
// it, the weights of a step and each of the four warps' maxima and sums. With query rows on them: 64 rows of q.
LEAN_HD constexpr int lean_token_operand_bytes(int rows, int head_dim, int step_tokens, int sharers) {
  const int padded_rows = lean_round_up(rows, 8);
  return lean_round_up(padded_rows * (head_dim * 2 + sharers * (step_tokens * 2 + 4 * 8)), kLeanAtomBytes);
}
LEAN_HD constexpr int lean_row_operand_bytes(int head_dim) { return 64 * head_dim * 2; }

// Where warpgroups have roles: 64 rows of q, and for each stage the rows' maxima, sums and factors. The weights take
// the place of the stage's last columns of K.
LEAN_HD constexpr int lean_role_operand_bytes(int head_dim, int stages) {
  return lean_round_up(64 * head_dim * 2 + stages * 3 * 64 * 4, kLeanAtomBytes);
}

// One stage of the CTA's ring: rows of K, then of V, which together have so many columns.
LEAN_HD constexpr int lean_warpgroup_stage_bytes(int tokens, int columns) { return tokens * columns * 2; }

// A step's rows as they are in memory, of `row_bytes` each.
LEAN_HD constexpr int lean_row_buffer_bytes(int tokens, int row_bytes) {
  return lean_round_up(tokens * row_bytes, kLeanAtomBytes);
}

// All of it but for such rows. stage_bytes: of a warp's ring, or of the CTA's one. operands: how many of them there
// are.
LEAN_HD constexpr int lean_warp_shared_bytes(int merge_bytes, int warps, int stages, int stage_bytes, int query_bytes) {
  return lean_round_up(merge_bytes, 128) + warps * (stages * stage_bytes + query_bytes);
}
LEAN_HD constexpr int lean_warpgroup_shared_bytes(int merge_bytes, int operands, int operand_bytes, int stages,
                                                  int stage_bytes) {
  return lean_round_up(merge_bytes, kLeanAtomBytes) + operands * operand_bytes + stages * stage_bytes + kLeanAtomBytes;
}
