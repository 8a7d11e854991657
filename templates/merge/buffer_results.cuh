// merge/buffer_results.cuh -- the results of a segment are in the merge buffer. Every thread takes columns of their
// sum.

typedef MergeBuffer Results;

// To be called by all workers, and then results_of.
template <class State>
LEAN_DEVICE void share_state(MergeBuffer& buffer, const State& state) {
  sync_workers();  // the last readers of the buffer are done
  store_state(buffer, state);
}
template <class State>
LEAN_DEVICE const Results& results_of(MergeBuffer& buffer, const State&, bool) {
  sync_workers();
  return buffer;
}

// Writes the rows of a whole output tile.
LEAN_DEVICE void write_results(const LeanDecodeArgs& args, const Segment& segment, const Results& results) {
  for_each_column([&](int column) {
    float4 o;
    const RowState state = merge_states(results, column, args.scale_log2, o);
    write_output(args, destination_of(args, segment, column), state, o);
  });
}

// Stores this CTA's merged state as its partial.
LEAN_DEVICE void store_own_partial(const LeanDecodeArgs& args, const Contributors& c, const Results& results) {
  float* mine = own_partial(args, c);
  for_each_column([&](int column) {
    float4 o;
    const RowState state = merge_states(results, column, args.scale_log2, o);
    store_partial(mine, column, state, o);
  });
}
