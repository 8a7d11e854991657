// row_format.cpp -- the table of row formats, and what goes with them.
#include "generator/row_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::array kRowFormats{
    // What vLLM and SGLang store for models with selected tokens (kv_cache_dtype "fp8_ds_mla").
    RowFormat{.format = KvFormat::fp8_ds_mla,
              .latent_type = KvFormat::fp8_e4m3,
              .latent_columns = 512,
              .group_columns = 128,
              .latent_offset = 0,
              .scales_offset = 512,
              .rope_type = DType::bf16,
              .rope_columns = 64,
              .rope_offset = 528,
              .bytes = 656},
};

/// What templates/kv/produce_rows.cuh takes for granted.
constexpr bool has_a_loader(const RowFormat& row) {
  return row.latent_columns % 128 == 0 && row.rope_columns % 64 == 0 && 128 % row.group_columns == 0 &&
         row.group_columns % 16 == 0 && row.latent_offset % 16 == 0 && row.scales_offset % 16 == 0 &&
         row.rope_offset % 16 == 0 && row.bytes % 16 == 0 && scale_bytes(row) % 16 == 0 &&
         row.latent_type == KvFormat::fp8_e4m3 && row.rope_type == DType::bf16 &&
         row.rope_offset + 2 * row.rope_columns <= row.bytes;
}
static_assert(std::all_of(kRowFormats.begin(), kRowFormats.end(), has_a_loader));

}  // namespace

std::span<const RowFormat> row_formats() { return kRowFormats; }

const RowFormat* row_format(KvFormat format) {
  const auto found = std::find_if(kRowFormats.begin(), kRowFormats.end(),
                                  [format](const RowFormat& row) { return row.format == format; });
  return found != kRowFormats.end() ? &*found : nullptr;
}

int row_elements(const Features& features, int columns) {
  const RowFormat* const row = row_format(features);
  return row != nullptr ? row->bytes : columns;
}

Result<void> validate_row_format(const Features& f, int head_dim, DType dtype) {
  const RowFormat* const row = row_format(f);
  if (row == nullptr) return {};
  const std::string name = fmt::format("a cache of {}", to_string(row->format));
  const auto refuse = [&](std::string what, std::string cure) {
    return fail(ErrorCode::unsupported, fmt::format("{} {}", name, what), std::move(cure));
  };
  if (!f.latent) return refuse("that is not latent", "Its rows hold K and V: set latent, and give no v.");
  const int values = f.v_head_dim > 0 ? f.v_head_dim : head_dim;
  if (head_dim != key_columns(*row) || values != row->latent_columns)
    return refuse(
        fmt::format("with head_dim {} and v_head_dim {}", head_dim, values),
        fmt::format("Its rows have {} columns, of which the first {} are V.", key_columns(*row), row->latent_columns));
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

}  // namespace v1
}  // namespace leanattn
