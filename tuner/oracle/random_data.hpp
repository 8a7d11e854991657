// random_data.hpp -- the data of decode cases, element by element, on the host. templates/check/data.cuh gives the same
// bits on the device, so that no tensor has to be copied. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// The kinds of data. Each element follows from seed, tensor, request, head, token and column alone, and not from
/// strides, lengths or capacity.
enum class DataKind : std::uint8_t {
  uniform,   ///< q, k and v are uniform with unit variance. Logits are about +-4, and attention spreads over the
             ///< context.
  peaked,    ///< As uniform with q eight times as large, so that few tokens dominate and the row maximum grows often.
  extreme,   ///< q and k are +-64, so that logits reach +-1e4 with extreme_scale(), all exactly representable.
  coverage,  ///< k is 0 and v is one-hot for each block of 16 tokens. Every weight is exactly 1, so that O and LSE show
             ///< a token that is lost or counted twice. Rows of a latent cache have a one in every 16 columns.
  ones,      ///< q is 64, k is -64 and v is 1 (latent: -64). All scores are equal and very low, and O is exactly v.
  written,  ///< As uniform, but rows that have scales of their own are as a kernel leaves them that quantises new rows,
            ///< so that these can be checked bit by bit. Scales of V differ by up to 32.
};
std::string_view to_string(DataKind kind);

/// latent: K of a latent cache, of which V is a part.
enum class DataTensor : std::uint8_t { q = 1, k = 2, v = 3, latent = 4 };

/// The bits of one element. Of q, `head` is a query head and `token` a query token; of k and v, they are a KV head and
/// a token. `head_dim` is the tensor's own, and column < head_dim.
std::uint16_t data_bits(DataKind kind, std::uint64_t seed, DataTensor tensor, DType dtype, int request, int head,
                        std::int64_t token, int column, int head_dim);

/// The byte of one element of a one-byte KV cache, or its four bits, and the scale of its tensor, head or token (of
/// int4 with its zero point). scaled_value() of them is close
/// to the same element of a 16-bit cache, but for V with scales by token: there it is a multiple that a request draws,
/// and in every second request each token anew, from about 1e-4 to 1e3. The scale is 1 if elements are not one
/// byte.
std::uint8_t data_byte(DataKind kind, std::uint64_t seed, DataTensor tensor, KvElement element, int request, int head,
                       std::int64_t token, int column, int head_dim);
float data_kv_scale(DataKind kind, std::uint64_t seed, DataTensor tensor, const Features& features, int request,
                    int head, std::int64_t token);

/// The scale of the block of columns that has this one, from 2^-9 to 448. It is 1 where blocks have no scales. The
/// element's value is scaled_value() times it.
double data_block_scale(DataKind kind, std::uint64_t seed, DataTensor tensor, const Features& features, int request,
                        int head, std::int64_t token, int column);

/// The bits of an element of q. As data_bits, but where rows of the cache have a format of their own, columns are
/// divided by the power of two in which the scales of their group count.
std::uint16_t data_query_bits(DataKind kind, std::uint64_t seed, const Features& features, DType dtype, int request,
                              int head, std::int64_t token, int column, int head_dim);
/// Of a row with a format of its own: the byte of a latent column, the scale of a group of them, from about 5e-7 to 4,
/// and the value of any column. In each group some byte is the largest of its format, as engines quantise.
/// features.kv_format has rows with a format of their own.
std::uint8_t data_row_byte(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                           std::int64_t token, int column, int head_dim);
float data_group_scale(DataKind kind, std::uint64_t seed, const RowFormat& row, int request, int head,
                       std::int64_t token, int group);
double data_row_value(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                      std::int64_t token, int column, int head_dim);
/// The bits of a latent column of a new row, in q's type, which become that byte and that scale once the row is stored.
/// Some have to be rounded.
std::uint16_t data_new_latent(DataKind kind, std::uint64_t seed, const Features& features, int request, int head,
                              std::int64_t token, int column, int head_dim);

/// The ALiBi slope and the sink logit of a query head.
float data_alibi_slope(std::uint64_t seed, int head);
float data_sink_logit(std::uint64_t seed, int head);
/// A word of the tree mask: which of its request's query tokens a query token sees. It sees itself. Bits of query
/// tokens that the request does not have are random.
std::uint32_t data_tree_word(std::uint64_t seed, int request, int query_token);
/// The span that a position of a request's context is in; both 0: it is in none.
LeanSpan data_span(std::uint64_t seed, int request, std::int64_t position);
/// Whether an entry of a request's part of the page table is a hole, where one of `hole_every` is (0: none).
bool data_is_hole(std::uint64_t seed, int request, std::int64_t entry, int hole_every);
/// The number of query tokens of a request in a ragged batch, 0 to q_len. Where requests may bring prefill, one in
/// eight has a chunk of up to 512 tokens, but not of more than its context, and the others have one token.
int data_query_tokens(std::uint64_t seed, const Features& features, int request, int context_length);

/// What query token `t` of a request has selected through a KV head, in the order of its list: blocks, and -1 for
/// holes.
struct DataSelection {
  int spread = 4;       ///< one of so many blocks of a context is selected
  bool holes = false;   ///< some entries of the lists are holes
  bool shared = false;  ///< the KV heads share a list
};
std::vector<int> data_selection(std::uint64_t seed, const Features& features, const DataSelection& selection,
                                int request, int kv_head, int t, std::int64_t context_length);

/// How many tokens of a request's second cache, of up to `capacity`, a query token sees: 0 to all. Its K and V are
/// those of request `request` + kSecondRequest.
inline constexpr int kSecondRequest = 1 << 24;
int data_second_length(std::uint64_t seed, int request, int t, int capacity);

/// The softmax scale with which the logits of DataKind::extreme reach exactly +-1e4.
double extreme_scale(int head_dim);

/// The value of bits, and the bits of a value. Rounding is to nearest even, overflow gives infinity, and NaN stays NaN.
double value_of(DType dtype, std::uint16_t bits);
std::uint16_t bits_of(DType dtype, float value);
/// The same for elements of one byte, or for four bits of e2m1, so neither for KvElement::of_q nor for int4. The value
/// must be well within the format's range, unless that is e2m1. int8 counts 64ths.
double byte_value(KvElement element, std::uint8_t byte);
/// The value of an element of a cache with scales. Of int4, `byte` is 0 to 15, and `scale` has a zero point in it.
double scaled_value(KvElement element, std::uint8_t byte, float scale);
std::uint8_t byte_of(KvElement element, float value);

/// The distance between neighbouring values of the dtype at this magnitude; near zero, that of subnormal values.
double unit_in_last_place(DType dtype, double magnitude);

}  // namespace v1
}  // namespace leanattn
