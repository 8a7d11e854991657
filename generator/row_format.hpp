// row_format.hpp -- RowFormat: how a row of a latent cache lies in memory, where it is not an array of elements of one
// type. A format is an entry of one table, from which kernels, byte counts, argument checks, the oracle and test data
// follow. Plain data; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// A row: latent columns of one byte each, in groups that have a scale, then the rotated columns of q's type. Value =
/// byte * scale of its group. V is the latent columns, and K all of them. Offsets count bytes from the row's start.
struct RowFormat {
  KvFormat format;       ///< under which a problem asks for it
  KvFormat latent_type;  ///< of the latent columns
  int latent_columns;    ///< a multiple of 128
  int group_columns;     ///< that share a scale; divides 128
  int latent_offset;
  int scales_offset;  ///< of the groups' scales in fp32, which follow each other
  DType rope_type;    ///< of the rotated columns, and so of q and o
  int rope_columns;   ///< a multiple of 64
  int rope_offset;
  int bytes;  ///< of a row
};

/// All of them. Offsets and sizes are multiples of 16 bytes, and so are strides and bases of such a cache.
std::span<const RowFormat> row_formats();
/// The entry of a format; null where elements are of one type.
const RowFormat* row_format(KvFormat format);
inline const RowFormat* row_format(const Features& features) { return row_format(features.kv_format); }

/// Columns of K.
constexpr int key_columns(const RowFormat& row) { return row.latent_columns + row.rope_columns; }
/// Bytes of a row's scales.
constexpr int scale_bytes(const RowFormat& row) { return row.latent_columns / row.group_columns * 4; }

/// Elements, in which strides count, from one row of K or V to the next where rows are adjacent: columns, or bytes of a
/// row that has a format of its own.
int row_elements(const Features& features, int columns);

/// Whether a problem can have such rows. Errors: unsupported, naming what does not go with them and what to do.
Result<void> validate_row_format(const Features& features, int head_dim, DType dtype);

}  // namespace v1
}  // namespace leanattn
