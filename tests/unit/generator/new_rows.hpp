// new_rows.hpp -- what the tests of modules for new rows share: segments by their read indices, and loads of 16 bytes,
// in place of those that the modules before give.
#pragma once

#include <cstring>

#include "tests/unit/generator/warp_lanes.hpp"

namespace leanattn::new_rows {

using warp_lanes::u32;

struct uint4 {
  u32 x, y, z, w;
};
template <class T>
T load_cached(const void* p) {
  T r;
  std::memcpy(&r, p, sizeof(T));
  return r;
}

struct QueryTokens {
  int first, count;
};
struct LeanVisibleShift {
  int shift;
};
struct Segment {
  int request, kv_head, context_length, first, end;  // first, end: read indices
  QueryTokens query;
  LeanVisibleShift visible;
};
inline int first_read(const Segment& s) { return s.first; }
inline int end_read(const Segment& s) { return s.end; }
inline bool holds_newest(const Segment& s) { return s.end + s.visible.shift > s.context_length - s.query.count; }

}  // namespace leanattn::new_rows
