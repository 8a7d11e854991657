// given_line.cuh -- the line as line.cuh has it, but a walk goes on with the segments that a test gives it.
#define next_segment next_segment_of_line
#include "tests/device/line.cuh"
#undef next_segment

/// A segment that reads [first, end) of what its request reads, which is all of the context but for the first `shift`
/// tokens. Segments begin with LeanTiles, and end with one or with the context. context_length: of a list in entries.
inline Segment segment_of(int request, int kv_head, int context_length, int first, int end, int shift = 0) {
  const int tokens = kSelectionBlock > 0 ? context_length * kSelectionBlock : context_length - shift;
  const u32 tiles = lean_tiles_of(tokens, kTile);
  Segment s{};
  s.request = request, s.kv_head = kv_head, s.context_length = context_length, s.tiles = tiles;
  s.tile_begin = static_cast<u32>(first / kTile);
  s.tile_end = end == tokens ? tiles : static_cast<u32>(end / kTile);
  s.query = {request * kQLen, kQLen};
  s.visible = {tiles, 0, shift};
  EXPECT_EQ(first_read(s), first);
  EXPECT_EQ(end_read(s), end);
  return s;
}

inline thread_local const std::vector<Segment>* t_segments;
inline thread_local std::size_t t_segment;

/// The walk of this thread along these segments.
inline Walk walk_along(const std::vector<Segment>& segments) {
  t_segments = &segments, t_segment = 0;
  Walk walk{};
  walk.segment = segments.front();
  return walk;
}
inline bool next_segment(const LeanDecodeArgs&, Walk& walk) {
  if (++t_segment == t_segments->size()) return false;
  walk.segment = (*t_segments)[t_segment];
  return true;
}
