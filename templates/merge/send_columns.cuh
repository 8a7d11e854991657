// merge/send_columns.cuh -- a finished column of this rank, which every rank has one of, goes to the rank that writes
// the output. Of a request and KV head a slot has the columns of all query rows, row by row, however the kernel divides
// the rows into output tiles.

struct Sending {
  u32 column;  // of the slot
  u32 owner;   // the rank that writes it
  bool valid;  // whether the row exists
};

LEAN_DEVICE Sending sending_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  const int row_of_tile = column_row(column);
  const Row row = row_of(s.query, s.row_block, row_of_tile);
  const u32 owner = owner_of_head(args, s.kv_head * kGroup + row.head), kv_heads = kv_heads_of_rank(args),
            kv_head = (u32)s.kv_head - first_kv_head_of(args, owner);
  const u32 row_index = (u32)(s.row_block * kRows + row_of_tile);
  return {((s.request * kv_heads + kv_head) * kQueryRows + row_index) * kRowColumns + (u32)column_in_row(column), owner,
          row.valid};
}

LEAN_DEVICE void write_output(const LeanDecodeArgs& args, const Sending& to, const RowState& state, const float4& o) {
  if (!to.valid) return;
  const Exchange& e = exchange();
  if constexpr (kReplicateOutput) {
#pragma unroll 1
    for (u32 rank = 0; rank < kRanks; rank++)
      send_column(e, slot_of(e, rank, (u32)args.group_rank), to.column, state, o);
  } else {
    send_column(e, slot_of(e, to.owner, (u32)args.group_rank), to.column, state, o);
  }
}
