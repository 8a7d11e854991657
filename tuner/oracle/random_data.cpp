// random_data.cpp -- includes templates/check/data.cuh, so that the host has the device's functions.
#include "tuner/oracle/random_data.hpp"

#include <algorithm>
#include <cmath>

#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include "templates/check/data.cuh"
#pragma GCC diagnostic pop

int format_of(DType dtype) { return dtype == DType::bf16 ? kCheckBf16 : kCheckFp16; }
}  // namespace

static_assert(static_cast<int>(DataKind::uniform) == kCheckUniform &&
              static_cast<int>(DataKind::peaked) == kCheckPeaked &&
              static_cast<int>(DataKind::extreme) == kCheckExtreme &&
              static_cast<int>(DataKind::coverage) == kCheckCoverage &&
              static_cast<int>(DataKind::ones) == kCheckOnes && static_cast<int>(DataKind::written) == kCheckWritten);
static_assert(static_cast<int>(DataTensor::q) == kCheckQ && static_cast<int>(DataTensor::k) == kCheckK &&
              static_cast<int>(DataTensor::v) == kCheckV && static_cast<int>(DataTensor::latent) == kCheckLatent);
static_assert(static_cast<int>(KvElement::of_q) == kCheckSame && static_cast<int>(KvElement::fp8_e4m3) == kCheckE4m3 &&
              static_cast<int>(KvElement::fp8_e5m2) == kCheckE5m2 && static_cast<int>(KvElement::int8) == kCheckInt8 &&
              static_cast<int>(KvElement::int4) == kCheckInt4 && static_cast<int>(KvElement::fp4_e2m1) == kCheckFp4);
static_assert(static_cast<int>(KvScale::tensor) == kCheckScaleTensor &&
              static_cast<int>(KvScale::head) == kCheckScaleHead &&
              static_cast<int>(KvScale::token) == kCheckScaleToken);
static_assert(static_cast<int>(QueryMask::causal) == kCheckCausal && static_cast<int>(QueryMask::tree) == kCheckTree &&
              static_cast<int>(QueryMask::full) == kCheckFull);

std::string_view to_string(DataKind kind) {
  switch (kind) {
    case DataKind::uniform: return "uniform";
    case DataKind::peaked: return "peaked";
    case DataKind::extreme: return "extreme";
    case DataKind::coverage: return "coverage";
    case DataKind::ones: return "ones";
    case DataKind::written: return "written";
  }
  return "unknown";
}

std::uint16_t data_bits(DataKind kind, std::uint64_t seed, DataTensor tensor, DType dtype, int request, int head,
                        std::int64_t token, int column, int head_dim) {
  return check_element(static_cast<int>(kind), seed, static_cast<int>(tensor), format_of(dtype), request, head, token,
                       column, head_dim);
}

std::uint8_t data_byte(DataKind kind, std::uint64_t seed, DataTensor tensor, KvElement element, int request, int head,
                       std::int64_t token, int column, int head_dim) {
  return check_byte(static_cast<int>(kind), seed, static_cast<int>(tensor), static_cast<int>(element), request, head,
                    token, column, head_dim);
}

float data_kv_scale(DataKind kind, std::uint64_t seed, DataTensor tensor, const Features& features, int request,
                    int head, std::int64_t token) {
  if (!has_scales(features)) return 1;
  return check_kv_scale(
      static_cast<int>(kind), seed, static_cast<int>(tensor), static_cast<int>(kv_encoding(features).element),
      has_token_scales(features) ? kCheckScaleToken : static_cast<int>(features.kv_scale), request, head, token);
}

double data_block_scale(DataKind kind, std::uint64_t seed, DataTensor tensor, const Features& features, int request,
                        int head, std::int64_t token, int column) {
  const int columns = kv_encoding(features).block_columns;
  if (columns == 0) return 1;
  return byte_value(KvElement::fp8_e4m3, check_block_scale(static_cast<int>(kind), seed, static_cast<int>(tensor),
                                                           request, head, token, column / columns));
}

std::uint16_t data_query_bits(DataKind kind, std::uint64_t seed, const Features& features, DType dtype, int request,
                              int head, std::int64_t token, int column, int head_dim) {
  const RowFormat* const row = row_format(features);
  return check_query_element(static_cast<int>(kind), seed, format_of(dtype), request, head, token, column, head_dim,
                             row != nullptr ? row->group_columns : 0, row != nullptr ? row->latent_columns : 0);
}

float data_group_scale(DataKind kind, std::uint64_t seed, const RowFormat& row, int request, int head,
                       std::int64_t token, int group) {
  return check_group_scale(static_cast<int>(kind), seed, request, head, token, group, row.plane_bytes > 0);
}

std::uint8_t data_row_byte(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                           std::int64_t token, int column, int head_dim) {
  const RowFormat& row = *row_format(features);
  return check_row_byte(static_cast<int>(kind), seed, static_cast<int>(kv_encoding(features).element), request, head,
                        token, column, head_dim, row.group_columns);
}

std::uint16_t data_new_latent(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                              std::int64_t token, int column, int head_dim) {
  const RowFormat& row = *row_format(features);
  return check_new_latent(static_cast<int>(kv_encoding(features).element), seed,
                          data_row_byte(kind, seed, features, request, head, token, column, head_dim),
                          data_group_scale(kind, seed, row, request, head, token, column / row.group_columns), request,
                          head, token, column, head_dim);
}

double data_row_value(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                      std::int64_t token, int column, int head_dim) {
  const RowFormat& row = *row_format(features);
  if (column >= row.latent_columns)
    return value_of(row.rope_type,
                    data_bits(kind, seed, DataTensor::latent, row.rope_type, request, head, token, column, head_dim));
  const std::uint8_t byte = data_row_byte(kind, seed, features, request, head, token, column, head_dim);
  return byte_value(kv_encoding(features).element, byte) *
         static_cast<double>(data_group_scale(kind, seed, row, request, head, token, column / row.group_columns));
}

float data_alibi_slope(std::uint64_t seed, int head) { return check_alibi_slope(seed, head); }
float data_sink_logit(std::uint64_t seed, int head) { return check_sink_logit(seed, head); }
std::uint32_t data_tree_word(std::uint64_t seed, int request, int query_token) {
  return check_tree_word(seed, request, query_token);
}

LeanSpan data_span(std::uint64_t seed, int request, std::int64_t position) {
  const CheckSpan span = check_span(seed, request, position);
  return {.first = span.first, .end = span.end};
}

bool data_is_hole(std::uint64_t seed, int request, std::int64_t entry, int hole_every) {
  return check_is_hole(seed, request, entry, hole_every);
}

int data_query_tokens(std::uint64_t seed, const Features& features, int request, int context_length) {
  constexpr int kChunkEvery = 8, kMostOfChunk = 512;
  const std::uint64_t draw = check_hash(check_mix(seed + 19), static_cast<unsigned>(request));
  if (!has_prefill(features)) return static_cast<int>((draw >> 32) % static_cast<unsigned>(features.q_len + 1));
  if (draw % kChunkEvery != 0) return 1;
  return 1 + static_cast<int>((draw >> 32) % static_cast<unsigned>(std::clamp(context_length, 1, kMostOfChunk)));
}

std::vector<int> data_selection(std::uint64_t seed, const Features& features, const DataSelection& selection,
                                int request, int kv_head, int t, std::int64_t context_length) {
  const int block = features.selection_block, context = static_cast<int>(std::max<std::int64_t>(context_length, 0));
  const int blocks = (context + (features.selection_in_pool ? 0 : block - 1)) / block;
  const int count = check_selected_count(blocks, selection.spread, t);
  std::vector<int> list(static_cast<std::size_t>(count));
  for (int index = 0; index < count; ++index)
    list[static_cast<std::size_t>(index)] = check_selected_block(
        seed, request, selection.shared ? 0 : kv_head, t, index, count, blocks, selection.spread, selection.holes);
  return list;
}

static_assert(kSecondRequest == kCheckSecondRequest);
int data_second_length(std::uint64_t seed, int request, int t, int capacity) {
  return check_second_length(seed, request, t, capacity);
}

double extreme_scale(int head_dim) { return 1e4 / (4096.0 * head_dim); }

double value_of(DType dtype, std::uint16_t bits) { return check_to_float(format_of(dtype), bits); }

std::uint16_t bits_of(DType dtype, float value) { return check_from_float(format_of(dtype), value); }

double scaled_value(KvElement element, std::uint8_t byte, float scale) {
  if (element == KvElement::int4)
    return static_cast<double>(check_scale_of_word(scale)) * (byte - check_zero_of_word(scale));
  return scale * byte_value(element, byte);
}

double byte_value(KvElement element, std::uint8_t byte) { return check_byte_to_float(static_cast<int>(element), byte); }

std::uint8_t byte_of(KvElement element, float value) { return check_byte_from_float(static_cast<int>(element), value); }

double unit_in_last_place(DType dtype, double magnitude) {
  const int fraction_bits = dtype == DType::bf16 ? 7 : 10;
  const int smallest_exponent = dtype == DType::bf16 ? -126 : -14;
  const double size = std::abs(magnitude);
  const int exponent =
      size > 0 && std::isfinite(size) ? std::max(std::ilogb(size), smallest_exponent) : smallest_exponent;
  return std::ldexp(1.0, exponent - fraction_bits);
}

}  // namespace v1
}  // namespace leanattn
