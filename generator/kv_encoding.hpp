// kv_encoding.hpp -- KvEncoding: how an element or a row of a KV cache becomes an operand. An encoding is a row of one
// table, from which kernels, byte counts, argument checks, the oracle and test data follow. Plain data; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// What the bits of an element mean. int8 is a whole number, and so is int4, 0 to 15, from which the zero point of its
/// token is taken. fp4_e2m1 is a float of four bits: 0, 0.5, 1, 1.5, 2, 3, 4 or 6, and a sign.
enum class KvElement : std::uint8_t { of_q, fp8_e4m3, fp8_e5m2, int8, int4, fp4_e2m1 };
/// Where the scales lie by which elements are multiplied: nowhere, beside the cache (with a KvScale), or in each row.
enum class KvScales : std::uint8_t { none, beside, in_row };

/// A row of a latent cache that is no array of elements of one type: latent columns, in groups that have a scale, then
/// the rotated columns of q's type. K is all columns. Offsets count bytes from the row's start. Offsets and sizes are
/// multiples of 16 bytes, and so are strides and bases of such a cache. Scales are in the row and fp32, or bytes in a
/// plane behind all rows of a page: powers of two (UE8M0), the exponent plus 127.
struct RowFormat {
  int latent_columns;  ///< a multiple of 64
  int group_columns;   ///< that share a scale; divides 128
  int value_columns;   ///< the first ones, which are V
  int latent_offset;
  int scales_offset;  ///< of the groups' scales, which follow each other; unused where they lie in a plane
  DType rope_type;    ///< of the rotated columns, and so of q and o
  int rope_columns;   ///< a multiple of 64
  int rope_offset;
  int bytes;            ///< of a row, without a part of a plane
  int plane_bytes = 0;  ///< of a token's scales in the plane; 0: they are in the row
};

/// Of a scale in a row, or of a token.
inline constexpr int kScaleBytes = 4;

struct KvEncoding {
  KvFormat format;    ///< under which a problem asks for it
  KvElement element;  ///< of all columns, or of the latent columns of a row with a format of its own
  int bits;           ///< of an element
  KvScales scales;
  /// A byte whose value no kernel may use: NaN, or what no test data have. Memory that must not be read is filled with
  /// it.
  std::uint8_t poison;
  const RowFormat* row = nullptr;  ///< of a row with a format of its own
  /// What has a scale where a problem does not say: a tensor, unless elements need something else.
  KvScale usual_scale = KvScale::tensor;
  /// Columns of a row that share a scale of e4m3, which lies in an array of its own. 0: none.
  int block_columns = 0;

  /// In which strides count. Of elements of four bits, two make a byte.
  constexpr int stride_bytes() const { return row != nullptr || bits < 8 ? 1 : bits / 8; }
  /// Of a row of so many columns, with what lies in a plane for it.
  constexpr int row_bytes(int columns) const {
    return row != nullptr ? row->bytes + row->plane_bytes : columns * bits / 8;
  }
  /// Of a row that holds K, its scale, V and its scale, with so many columns of each.
  constexpr int shared_row_bytes(int k_columns, int v_columns) const {
    return row_bytes(k_columns) + row_bytes(v_columns) + 2 * kScaleBytes;
  }
  /// Of the scales of its blocks.
  constexpr int block_scale_bytes(int columns) const { return block_columns > 0 ? columns / block_columns : 0; }
  /// By how much strides grow with a row, where rows are adjacent.
  constexpr int row_stride(int columns) const {
    return row != nullptr ? row->bytes : row_bytes(columns) / stride_bytes();
  }
};

/// The table, in the order of KvFormat.
std::span<const KvEncoding> kv_encodings();
const KvEncoding& kv_encoding(KvFormat format);
inline const KvEncoding& kv_encoding(const Features& features) { return kv_encoding(features.kv_format); }
/// What has a scale where a caller asks for these features: the format's usual choice where none is made.
inline KvScale asked_scale(const Features& features) {
  return features.kv_scale == KvScale::tensor ? kv_encoding(features).usual_scale : features.kv_scale;
}
/// Null where all elements of a row are of one type.
inline const RowFormat* row_format(const Features& features) { return kv_encoding(features).row; }
/// Bytes in which strides of K and V count.
inline int kv_element_bytes(const Features& features) { return kv_encoding(features).stride_bytes(); }
/// Whether elements of K and V have scales that a launch is given, as those of one byte or four bits have.
inline bool has_scales(const Features& features) { return kv_encoding(features).scales == KvScales::beside; }
/// Whether such elements are one byte, or four bits.
inline bool has_one_byte_elements(const Features& features) {
  return has_scales(features) && kv_encoding(features).bits == 8;
}
inline bool has_nibbles(const Features& features) { return kv_encoding(features).bits == 4; }
/// Whether each token has a scale that a launch is given.
inline bool has_token_scales(const Features& features) {
  return has_scales(features) && (features.kv_scale == KvScale::token || features.kv_scale == KvScale::in_row);
}
/// Whether a row of the cache holds K of a token and KV head, its scale, V and its scale.
inline bool has_scales_in_rows(const Features& features) {
  return has_scales(features) && features.kv_scale == KvScale::in_row && !features.latent;
}
/// What strides and the base of K are multiples of, in bytes.
inline int kv_alignment(const Features& features) {
  if (has_scales_in_rows(features)) return 8;
  return has_scales(features) && features.kv_scale == KvScale::in_row ? 4 : 16;
}
/// Bytes of one copy of a kernel that copies rows by lanes.
inline int kv_copy_bytes(const Features& features) {
  return has_scales(features) && features.kv_scale == KvScale::in_row ? 4 : 16;
}
/// Whether blocks of a row's columns have scales of their own, beside those of the tensor or of KV heads.
inline bool has_block_scales(const Features& features) { return kv_encoding(features).block_columns > 0; }
/// Bytes of one copy of the scales of a row's blocks by lanes, and what their base and strides are multiples of.
constexpr int block_scale_copy_bytes(int bytes_of_row) {
  return bytes_of_row % 16 == 0 ? 16 : bytes_of_row % 8 == 0 ? 8 : 4;
}
/// Whether kernels bring scales of tokens or of blocks with the rows, and so need all of them: where those of tokens
/// lie among the rows or hold zero points, and those of blocks always.
inline bool stages_scales(const Features& features) {
  return (has_token_scales(features) && (features.kv_scale == KvScale::in_row || has_nibbles(features))) ||
         has_block_scales(features);
}

/// Whether warps have kernels into whose rings boxes of 16 tokens bring rows and scales, and not lanes
/// (templates/kv/boxes.cuh); and whether such boxes bring all of a cache. Without pages, steps behind sink tokens may
/// begin an odd number of tokens behind others, and any steps where scales of blocks are no multiple of 16 bytes.
inline bool may_copy_boxes(const Features& features) {
  return has_scales_in_rows(features) || has_block_scales(features);
}
inline bool copies_boxes(const Features& features) {
  return may_copy_boxes(features) && features.page_size % 16 == 0 && features.selection_block == 0 &&
         (features.page_size > 0 || (has_scales_in_rows(features) && features.sink_tokens == 0));
}

/// Whether nothing of them is left to lanes: scales of blocks are where tokens are not adjacent.
inline bool boxes_bring_all(const Features& features, KvLayout layout) {
  return copies_boxes(features) && (!has_block_scales(features) || layout == KvLayout::contiguous);
}
/// What the base of scales of blocks and their strides are multiples of.
inline int block_scale_alignment(const Features& features, KvLayout layout, int bytes_of_row) {
  return boxes_bring_all(features, layout) ? 16 : block_scale_copy_bytes(bytes_of_row);
}

/// Columns of K.
constexpr int key_columns(const RowFormat& row) { return row.latent_columns + row.rope_columns; }
/// Bytes of a row's scales.
constexpr int scale_bytes(const RowFormat& row) {
  return row.plane_bytes > 0 ? row.plane_bytes : row.latent_columns / row.group_columns * kScaleBytes;
}
/// Bytes by which a plane makes a page of so many tokens longer.
inline std::int64_t plane_bytes(const Features& features, std::int64_t page_tokens) {
  const RowFormat* const row = row_format(features);
  return row != nullptr ? page_tokens * row->plane_bytes : 0;
}

/// Whether a problem can have rows with the format that it asks for. Errors: unsupported, naming what does not go with
/// them and what to do.
Result<void> validate_row_format(const Features& features, int head_dim, DType dtype);
/// Whether a cache of four-bit elements can be as a problem asks. Errors: unsupported, likewise.
Result<void> validate_nibbles(const Features& features, int head_dim);

}  // namespace v1
}  // namespace leanattn
