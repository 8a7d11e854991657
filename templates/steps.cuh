// steps.cuh -- the tokens of a segment, one step after the other. A place is a token's position among those that are
// read; a token is its position in the context.

// One step: its first token, and how many of it count. None of a step do when it lies behind the sink tokens.
struct Step {
  int token, count;
};

LEAN_DEVICE int first_place(const Segment& s) { return (int)(s.tile_begin * (u32)kTile); }
LEAN_DEVICE int end_place(const Segment& s) {
  return s.tile_end == s.tiles ? s.context_length - s.visible.shift : (int)(s.tile_end * (u32)kTile);
}
LEAN_DEVICE int sink_places(const Segment& s) { return (int)(s.visible.sink_tiles * (u32)kTile); }

// The step at `place`, of a segment that ends at `end` and has `sinks` places for sink tokens.
LEAN_DEVICE Step step_at(int place, int end, int sinks, int shift) {
  if constexpr (kWindow == 0) return {place, min(kStepTokens, end - place)};
  const bool sink = place < sinks;
  return {place + (sink ? 0 : shift), max(min(kStepTokens, (sink ? min(end, kSinkTokens) : end) - place), 0)};
}
LEAN_DEVICE Step step_at(const Segment& s, int place) {
  return step_at(place, end_place(s), sink_places(s), s.visible.shift);
}

// With programmatic dependent launch the previous kernel may still be writing the query tokens' own K and V.
LEAN_DEVICE bool holds_newest(const Segment& s) { return end_place(s) + s.visible.shift > s.context_length - kQLen; }
