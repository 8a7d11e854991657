// line/steps.cuh -- a segment's tokens, in steps. A token index counts the tokens of a context; a read index counts
// those of them that are read. Without a window the two are the same. With a selection both count selected tokens.

// One step: its first token's index, and how many of its tokens count. A step behind the sink tokens may have none.
struct Step {
  int token, count;
};

LEAN_DEVICE int first_read(const Segment& s) { return (int)(s.tile_begin * (u32)kTile); }
LEAN_DEVICE int end_read(const Segment& s) {
  if constexpr (kSelectionBlock > 0)
    return s.tile_end == s.tiles ? s.context_length * kSelectionBlock : (int)(s.tile_end * (u32)kTile);
#if defined(LEAN_SPANS)
  return min((int)(s.tile_end * (u32)kTile), s.end - s.visible.shift);
#endif
  if constexpr (kOutputsEndApart)
    return min((int)(s.tile_end * (u32)kTile),
               end_of_output(s.context_length, s.query, s.row_block / kRowBlocksInStep) - s.visible.shift);
  return s.tile_end == s.tiles ? s.context_length - s.visible.shift : (int)(s.tile_end * (u32)kTile);
}
LEAN_DEVICE int sinks_end(const Segment& s) { return (int)(s.visible.sink_tiles * (u32)kTile); }

// The step that begins at read index `read`, of a segment that ends at `end`. Sink tokens end at `sinks`.
#if defined(LEAN_WINDOW_OF_PART)
// There are `sink_tokens` of them on this rank.
LEAN_DEVICE Step step_at(int read, int end, int sinks, int shift, int sink_tokens) {
  const bool sink = read < sinks;
  return {read + (sink ? 0 : shift), max(min(kStepTokens, (sink ? min(end, sink_tokens) : end) - read), 0)};
}
LEAN_DEVICE Step step_at(const Segment& s, int at) {
  return step_at(at, end_read(s), sinks_end(s), s.visible.shift, s.sink_tokens);
}
#else
LEAN_DEVICE Step step_at(int read, int end, int sinks, int shift) {
  if constexpr (kWindow == 0) return {read, min(kStepTokens, end - read)};
  const bool sink = read < sinks;
  return {read + (sink ? 0 : shift), max(min(kStepTokens, (sink ? min(end, kSinkTokens) : end) - read), 0)};
}
LEAN_DEVICE Step step_at(const Segment& s, int at) { return step_at(at, end_read(s), sinks_end(s), s.visible.shift); }
#endif

// Whether a segment reads the query tokens' own K and V, which with programmatic dependent launch the previous kernel
// may still be writing.
LEAN_DEVICE bool holds_newest(const Segment& s) {
  return end_read(s) + s.visible.shift > s.context_length - s.query.count;
}
