// kv/row_scales.cuh -- the scales of a row's groups of columns as they are in memory: fp32 in the row, or bytes in a
// plane that lies behind all rows of a page, kRowPlane for each. A byte is the exponent of a power of two plus 127, or
// NaN (OCP Microscaling Formats, "E8M0"). Host and device compile this file.

constexpr int kScaleColumns = kRowGroup > 0 ? kRowGroup : 1;  // that share a scale, if columns have scales at all

template <bool kInPlane>
struct RowScale {
  typedef float Stored;
};
template <>
struct RowScale<true> {
  typedef unsigned char Stored;
};
typedef RowScale<(kRowPlane > 0)>::Stored StoredScale;
// Of a row, with what fills its part of the plane up.
constexpr int kScalesOfRow = kRowPlane > 0 ? kRowPlane : kRowGroup > 0 ? kRowByteColumns / kScaleColumns : 1;

LEAN_DEVICE float scale_of(float stored) { return stored; }
LEAN_DEVICE float scale_of(unsigned char stored) {
  const u32 special = stored == 0 || stored == 255 ? 0x400000u : 0u;  // 2^-127 is no normal number
  return __uint_as_float((u32)stored << 23 | special);
}

// Bytes from the row of a page's token to its scales in the plane.
LEAN_DEVICE int bytes_to_plane(int token_of_page) {
  return (kPageSize - token_of_page) * kRowBytes + token_of_page * kRowPlane;
}
