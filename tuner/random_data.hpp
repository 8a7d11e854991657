// random_data.hpp -- the contents of a decode case, element by element: the host's side of templates/check_data.cuh.
// Pure functions; any thread. Host and device compute the same bits, so no tensor is ever copied to check it.
#pragma once

#include <cstdint>
#include <string_view>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// What a case is filled with. Every kind depends on (seed, tensor, request, head, token, column) alone: never on
/// strides, lengths or capacity.
enum class DataKind : std::uint8_t {
  uniform,   ///< q, k, v uniform with unit variance: logits of about +-4, attention spread over the whole context
  peaked,    ///< as uniform with q eight times as large: a few tokens win, the row max moves often
  extreme,   ///< q and k of +-64: with the scale of extreme_scale() logits reach +-1e4, all exactly representable
  coverage,  ///< k = 0 and v one-hot per block of 16 tokens: every weight is exactly 1, so a lost or doubled token
             ///< shows in O and LSE
  ones,      ///< q = 64, k = -64, v = 1: very low scores, all alike; O is exactly 1
};
std::string_view to_string(DataKind kind);

enum class DataTensor : std::uint8_t { q = 1, k = 2, v = 3 };

/// The bits of one element. request, head (query head for q, KV head otherwise), token (query token for q), column <
/// head_dim, which is the tensor's own.
std::uint16_t data_bits(DataKind kind, std::uint64_t seed, DataTensor tensor, DType dtype, int request, int head,
                        std::int64_t token, int column, int head_dim);

/// The byte of one element of a one-byte KV cache, and the scale of its tensor, head or token: together close to what
/// the same element is in a 16-bit cache. The scale is 1 where kv_format is same.
std::uint8_t data_byte(DataKind kind, std::uint64_t seed, DataTensor tensor, KvFormat format, int request, int head,
                       std::int64_t token, int column, int head_dim);
float data_kv_scale(DataKind kind, std::uint64_t seed, DataTensor tensor, const Features& features, int request,
                    int head, std::int64_t token);

/// ALiBi slope and sink logit of a query head.
float data_alibi_slope(std::uint64_t seed, int head);
float data_sink_logit(std::uint64_t seed, int head);
/// Word of the tree mask: which of its request's query tokens a query token sees; its own among them. The bits above
/// the request's tokens are random too.
std::uint32_t data_tree_word(std::uint64_t seed, int request, int query_token);
/// How many query tokens a request of a ragged batch has, 0 to q_len.
int data_query_tokens(std::uint64_t seed, int request, int q_len);

/// Softmax scale that brings DataKind::extreme to logits of exactly +-1e4 at the ends.
double extreme_scale(int head_dim);

/// Bits <-> value; rounding to nearest even, overflow to infinity, NaN kept.
double value_of(DType dtype, std::uint16_t bits);
std::uint16_t bits_of(DType dtype, float value);
/// The same of one-byte formats (not same); value well within the format's range. int8 counts 64ths.
double byte_value(KvFormat format, std::uint8_t byte);
std::uint8_t byte_of(KvFormat format, float value);

/// Distance between neighbouring values of the dtype at this magnitude (the subnormal spacing near zero).
double unit_in_last_place(DType dtype, double magnitude);

}  // namespace v1
}  // namespace leanattn
