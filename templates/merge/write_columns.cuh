// merge/write_columns.cuh -- each thread writes the columns of a whole output tile that it holds.

LEAN_DEVICE void write_results(const LeanDecodeArgs& args, const Segment& segment, const Results& results) {
  const int row = first_held_row(), first = first_held_column(row);
  for_each_held(results, row, [&](int offset, const RowState& state, const float4& o) {
    write_output(args, destination_of(args, segment, first + offset), state, o);
  });
}
