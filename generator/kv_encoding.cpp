// kv_encoding.cpp -- the table of encodings, and what goes with rows that have a format of their own.
#include "generator/kv_encoding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "generator/feature_table.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// What vLLM and SGLang store for models with selected tokens (kv_cache_dtype "fp8_ds_mla").
constexpr RowFormat kDsMla{.latent_columns = 512,
                           .group_columns = 128,
                           .value_columns = 512,
                           .latent_offset = 0,
                           .scales_offset = 512,
                           .rope_type = DType::bf16,
                           .rope_columns = 64,
                           .rope_offset = 528,
                           .bytes = 656};

// What vLLM stores for DeepSeek V4: 584 bytes a token, with scales behind the rows of a page.
constexpr RowFormat kDsV4{.latent_columns = 448,
                          .group_columns = 64,
                          .value_columns = 512,
                          .latent_offset = 0,
                          .scales_offset = 0,
                          .rope_type = DType::bf16,
                          .rope_columns = 64,
                          .rope_offset = 448,
                          .bytes = 576,
                          .plane_bytes = 8};

constexpr std::uint8_t kNaN = 0xff;
constexpr std::array kEncodings{
    KvEncoding{KvFormat::same, KvElement::of_q, 16, KvScales::none, kNaN},
    KvEncoding{KvFormat::fp8_e4m3, KvElement::fp8_e4m3, 8, KvScales::beside, kNaN},
    KvEncoding{KvFormat::fp8_e5m2, KvElement::fp8_e5m2, 8, KvScales::beside, kNaN},
    KvEncoding{KvFormat::int8, KvElement::int8, 8, KvScales::beside, 0x80},
    KvEncoding{KvFormat::fp8_ds_mla, KvElement::fp8_e4m3, 8, KvScales::in_row, kNaN, &kDsMla},
    // All bytes are valid, and scales tell.
    KvEncoding{KvFormat::int4, KvElement::int4, 4, KvScales::beside, kNaN, nullptr, KvScale::in_row},
    // Likewise.
    KvEncoding{KvFormat::nvfp4, KvElement::fp4_e2m1, 4, KvScales::beside, kNaN, nullptr, KvScale::tensor, 16},
    KvEncoding{KvFormat::fp8_ds_v4, KvElement::fp8_e4m3, 8, KvScales::in_row, kNaN, &kDsV4},
};

/// What templates/kv/produce_rows.cuh takes for granted.
constexpr bool has_a_loader(const KvEncoding& encoding) {
  if (encoding.row == nullptr) return true;
  const RowFormat& row = *encoding.row;
  const bool in_plane = row.plane_bytes == 8 && row.latent_columns / row.group_columns <= row.plane_bytes,
             in_row = row.plane_bytes == 0 && row.scales_offset % 16 == 0 && scale_bytes(row) % 16 == 0;
  return row.latent_columns % 64 == 0 && row.rope_columns % 64 == 0 && 128 % row.group_columns == 0 &&
         row.latent_columns % row.group_columns == 0 && row.group_columns % 16 == 0 && row.latent_offset % 16 == 0 &&
         row.rope_offset % 16 == 0 && row.bytes % 16 == 0 && (in_plane || in_row) &&
         encoding.element == KvElement::fp8_e4m3 && row.rope_type == DType::bf16 &&
         row.rope_offset + 2 * row.rope_columns <= row.bytes;
}
static_assert(std::all_of(kEncodings.begin(), kEncodings.end(), has_a_loader));

constexpr bool in_order() {
  for (std::size_t i = 0; i < kEncodings.size(); ++i)
    if (kEncodings[i].format != static_cast<KvFormat>(i)) return false;
  return kEncodings.size() == std::size(Enumeration<KvFormat>::kAll);
}
static_assert(in_order(), "each KvFormat has its row");

}  // namespace

std::span<const KvEncoding> kv_encodings() { return kEncodings; }

const KvEncoding& kv_encoding(KvFormat format) { return kEncodings[static_cast<std::size_t>(format)]; }

Result<void> validate_row_format(const Features& f, int head_dim, DType dtype) {
  const RowFormat* const row = row_format(f);
  if (row == nullptr) return {};
  const std::string name = fmt::format("a cache of {}", to_string(f.kv_format));
  const auto refuse = [&](std::string what, std::string cure) {
    return fail(ErrorCode::unsupported, fmt::format("{} {}", name, what), std::move(cure));
  };
  if (!f.latent) return refuse("that is not latent", "Its rows hold K and V: set latent, and give no v.");
  const int values = f.v_head_dim > 0 ? f.v_head_dim : head_dim;
  if (head_dim != key_columns(*row) || values != row->value_columns)
    return refuse(
        fmt::format("with head_dim {} and v_head_dim {}", head_dim, values),
        fmt::format("Its rows have {} columns, of which the first {} are V.", key_columns(*row), row->value_columns));
  if (row->plane_bytes > 0 && (f.page_size == 0 || f.page_size % 2 != 0))
    return refuse(f.page_size == 0 ? "without pages" : fmt::format("with pages of {} tokens", f.page_size),
                  "Its scales lie behind the rows of a page: give an even page_size.");
  if (dtype != row->rope_type)
    return refuse(
        fmt::format("with {} queries", to_string(dtype)),
        fmt::format("Its rotated columns are {0}, and so must q be: give dtype {0}.", to_string(row->rope_type)));
  if (f.kv_scale != KvScale::tensor)
    return refuse(fmt::format("with a scale per {}", to_string(f.kv_scale)),
                  "Its rows hold the scales: leave kv_scale out.");
  if (has_part_of_context(f))
    return refuse(fmt::format("with context_parallel {}", ranks_of_context(f)),
                  "Kernels of a group do not have it yet: leave it out, or give one GPU the context.");
  return {};
}

Result<void> validate_nibbles(const Features& f, int head_dim) {
  if (!has_nibbles(f)) return {};
  const std::string name = fmt::format("a cache of {}", to_string(f.kv_format));
  const auto refuse = [&](std::string what, std::string cure) {
    return fail(ErrorCode::unsupported, fmt::format("{} {}", name, what), std::move(cure));
  };
  if (has_block_scales(f) == has_token_scales(f))
    return refuse(fmt::format("with a scale per {}", to_string(f.kv_scale)),
                  has_block_scales(f)
                      ? "Its blocks have scales, and so may the tensor or a KV head: leave kv_scale out, or set it to "
                        "head."
                      : "Its zero points are those of tokens: set kv_scale to in_row, or to token where rows are "
                        "multiples of 16 bytes.");
  if (f.latent) return refuse("that is latent", "Give K and V apart, or a latent cache of fp8.");
  // Eight elements are a word, and four lanes share a row of K.
  const int values = f.v_head_dim > 0 ? f.v_head_dim : head_dim;
  if (head_dim % 64 != 0 || values % 64 != 0)
    return refuse(fmt::format("with head_dim {} and v_head_dim {}", head_dim, values),
                  "Its rows have multiples of 64.");
  if (has_block_scales(f) && head_dim != values)
    return refuse(fmt::format("with head_dim {} and v_head_dim {}", head_dim, values),
                  "The scales of K and V have the same strides: give both as many columns.");
  if (has_block_scales(f) && f.packed_kv)
    return refuse("with packed_kv", "Packed K and V are no cache: give one, or leave it out.");
  return {};
}

}  // namespace v1
}  // namespace leanattn
