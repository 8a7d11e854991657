// merge/write_columns.cuh -- a finished column is written to the output. In kernels of a group merge/send_columns.cuh
// takes this module's place.

typedef Output Destination;

LEAN_DEVICE Destination destination_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  return output_of(args, s, column);
}
LEAN_DEVICE void deliver(const LeanDecodeArgs& args, const Destination& to, const RowState& state, const float4& o) {
  write_output(args, to, state, o);
}
