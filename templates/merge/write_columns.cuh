// merge/write_columns.cuh -- a finished column is written to the output. In kernels of a group merge/send_columns.cuh
// takes this module's place.

LEAN_DEVICE Output target_of(const LeanDecodeArgs& a, const Segment& s, int column) { return output_of(a, s, column); }
LEAN_DEVICE void deliver(const LeanDecodeArgs& a, Output to, RowState r, const float4& o) { write_output(a, to, r, o); }
