// feature_table.hpp -- the table of features: what each member of Features is called, and where it is in the C
// interface. Names and hashes of kernels, JSON, the C interface, Python's Problem and the flags of the command line
// follow from it. Plain data and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "generator/features.hpp"
#include "generator/parse_enum.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {

/// An enumerator of a feature. In the C interface its name is `name` in capitals, behind a prefix.
struct Enumerator {
  const char* name;        ///< in JSON, Python and on the command line
  const char* short_name;  ///< in the name of a kernel
};

/// What errors call an enumeration, what its names in C begin with, and its enumerators in the order of their values.
template <class Enum>
struct Enumeration;
template <>
struct Enumeration<QueryMask> {
  static constexpr const char *kWhat = "query mask", *kPrefix = "LEANATTN_MASK_";
  static constexpr Enumerator kAll[] = {{"causal", ""}, {"tree", "tree"}, {"full", "full"}};
};
template <>
struct Enumeration<Rope> {
  static constexpr const char *kWhat = "rope", *kPrefix = "LEANATTN_ROPE_";
  static constexpr Enumerator kAll[] = {{"none", ""}, {"half_split", "rh"}, {"interleaved", "ri"}};
};
template <>
struct Enumeration<KvFormat> {
  static constexpr const char *kWhat = "KV format", *kPrefix = "LEANATTN_KV_";
  static constexpr Enumerator kAll[] = {{"same", ""},     {"fp8_e4m3", "e4m3"},    {"fp8_e5m2", "e5m2"},
                                        {"int8", "i8"},   {"fp8_ds_mla", "dsmla"}, {"int4", "i4"},
                                        {"nvfp4", "nv4"}, {"fp8_ds_v4", "dsv4"}};
};
template <>
struct Enumeration<KvScale> {
  static constexpr const char *kWhat = "KV scale", *kPrefix = "LEANATTN_SCALE_";
  static constexpr Enumerator kAll[] = {{"tensor", ""}, {"head", "h"}, {"token", "t"}, {"in_row", "r"}};
};
/// Whether the last enumerator is the same one everywhere.
template <class Enum>
consteval bool ends_with(Enum last, int last_in_c) {
  return static_cast<int>(last) == last_in_c && std::ssize(Enumeration<Enum>::kAll) == last_in_c + 1;
}
static_assert(ends_with(QueryMask::full, LEANATTN_MASK_FULL) && ends_with(KvScale::in_row, LEANATTN_SCALE_IN_ROW) &&
              ends_with(KvFormat::fp8_ds_v4, LEANATTN_KV_FP8_DS_V4) &&
              ends_with(Rope::interleaved, LEANATTN_ROPE_INTERLEAVED));

template <class Enum>
constexpr const Enumerator& enumerator(Enum value) {
  return Enumeration<Enum>::kAll[static_cast<std::size_t>(value)];
}
/// Errors: invalid_argument, naming the choices.
template <class Enum>
Result<Enum> parse_enumerator(std::string_view text) {
  std::array<Enum, std::size(Enumeration<Enum>::kAll)> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Enum>(i);
  return parse_enum(Enumeration<Enum>::kWhat, text, values);
}

/// A flag of the command line. `placeholder` stands for its value in the help; null: it has none.
struct FeatureFlag {
  const char* name = nullptr;
  const char* placeholder = nullptr;
  const char* help = nullptr;
};
/// What few features have.
struct FeatureExtras {
  int usual = 0;  ///< the default, a number, where it is not 0
  /// The feature behind whose value this one's stands in the name of a kernel, and without which it has no consequence.
  std::string_view part_of{};
  const char* c_name = nullptr;       ///< of c_member, where it is not `name`
  const char* python_name = nullptr;  ///< of the field of Python's Problem, where it is not `name`
};

/// A member of Features. What has its default is not asked for. The default is 0, false, empty or the first enumerator,
/// except where `extras` has a number; in the C interface 0 always stands for it.
template <class T>
struct Feature {
  using C = std::conditional_t<std::is_same_v<T, double>, double,
                               std::conditional_t<std::is_same_v<T, std::string>, const char*, std::int32_t>>;
  const char* name;        ///< in JSON
  const char* short_name;  ///< in front of the value in the name of a kernel
  T Features::*member;
  C leanattn_problem::*c_member = nullptr;  ///< null: callers cannot ask for it
  FeatureFlag flag{};
  FeatureExtras extras{};

  /// 0 where it has the default; without branches.
  constexpr unsigned differs(const Features& features) const {
    const T& value = features.*member;
    if constexpr (std::is_same_v<T, std::string>) {
      return !value.empty();
    } else if constexpr (std::is_same_v<T, double>) {
      return value != 0;
    } else {
      return static_cast<unsigned>(value) ^ static_cast<unsigned>(extras.usual);
    }
  }
  constexpr const char* c_name() const { return extras.c_name != nullptr ? extras.c_name : name; }
  constexpr const char* python_name() const { return extras.python_name != nullptr ? extras.python_name : name; }
};
template <class T>
constexpr Feature<T> feature(const char* name, const char* short_name, T Features::*member,
                             typename Feature<T>::C leanattn_problem::*c_member = nullptr, FeatureFlag flag = {},
                             FeatureExtras extras = {}) {
  return {name, short_name, member, c_member, flag, extras};
}

/// All features, in the order in which help lists their flags.
inline constexpr auto kFeatures = std::tuple{
    feature("page_size", "_p", &Features::page_size, &leanattn_problem::page_size,
            {"--page-size", "N", "Tokens in a page of a paged KV cache; default: the cache is dense"}),
    feature("packed_kv", "_pkv", &Features::packed_kv, &leanattn_problem::packed_kv,
            {"--packed-kv", nullptr, "K and V of all requests follow each other, as q's rows do with --ragged-q"}),
    feature("q_len", "_q", &Features::q_len, &leanattn_problem::q_len,
            {"--q-len", "N",
             "The largest number of query tokens of a request, 1 to 16 (1024 with --query-mask full, 131072 with "
             "--ragged-q); default 1"},
            {.usual = 1}),
    feature("ragged_q", "_rq", &Features::ragged_q, &leanattn_problem::ragged_q,
            {"--ragged-q", nullptr, "Requests have different numbers of query tokens, at most --q-len"}),
    feature("mask", "", &Features::mask, &leanattn_problem::query_mask,
            {"--query-mask", "causal|tree|full",
             "What the query tokens see of each other; tree: what a bit mask says; default causal"},
            {.part_of = "q_len", .c_name = "query_mask"}),
    feature("spans", "_span", &Features::spans, &leanattn_problem::spans,
            {"--spans", nullptr,
             "Query tokens lie in spans of tokens that see each other both ways, as those of an image do in a prompt"}),
    feature("window", "_win", &Features::window, &leanattn_problem::window,
            {"--window", "N",
             "How many tokens a query token sees, of which it is the last; with --query-mask full also as many ahead; "
             "default: all"}),
    feature("sink_tokens", "_sink", &Features::sink_tokens, &leanattn_problem::sink_tokens,
            {"--sink-tokens", "N", "How many first tokens stay visible beside the window"}),
    feature("sink_logits", "_slog", &Features::sink_logits, &leanattn_problem::sink_logits,
            {"--sink-logits", nullptr, "Each query head has a learned logit that counts in the softmax's denominator"}),
    feature("soft_cap", "_cap", &Features::soft_cap, &leanattn_problem::soft_cap,
            {"--soft-cap", "X", "Each score becomes X * tanh(score / X)"}),
    feature("alibi", "_alibi", &Features::alibi, &leanattn_problem::alibi,
            {"--alibi", nullptr, "Each score gets the query head's slope times the distance between the tokens"}),
    feature("score", "_x", &Features::score, &leanattn_problem::score,
            {"--score", "EXPR", "An expression of score, q_index, kv_index and head that gives the new score"}),
    feature(
        "kv_format", "_", &Features::kv_format, &leanattn_problem::kv_format,
        {"--kv-dtype", "fp8_e4m3|fp8_e5m2|int8|fp8_ds_mla|int4|nvfp4|fp8_ds_v4",
         "The type of a quantised KV cache; fp8 means fp8_e4m3; fp8_ds_mla and fp8_ds_v4: the rows of 656 and of 584 "
         "bytes of latent caches; int4: four bits, with a scale and a zero point per token; nvfp4: floats of four "
         "bits, with a scale "
         "for 16 columns; default: the one of --dtype"},
        {.python_name = "kv_dtype"}),
    feature("kv_scale", "", &Features::kv_scale, &leanattn_problem::kv_scale,
            {"--kv-scale", "tensor|head|token|in_row",
             "What has a scale of its own in a quantised cache; in_row: a token, whose scale lies among the rows; "
             "default tensor, or in_row with int4"},
            {.part_of = "kv_format"}),
    feature("v_head_dim", "_v", &Features::v_head_dim, &leanattn_problem::v_head_dim,
            {"--v-head-dim", "N", "The head size of V and O; default: the one of --head-dim"}),
    feature("latent", "_latent", &Features::latent, &leanattn_problem::latent,
            {"--latent", nullptr,
             "V is the first --v-head-dim columns of K, as in multi-head latent attention with absorbed projections"}),
    feature("append", "_app", &Features::append, &leanattn_problem::append,
            {"--append", nullptr, "The kernel writes the query tokens' own K and V into the cache"}),
    feature("rope", "_", &Features::rope, &leanattn_problem::rope,
            {"--rope", "half_split|interleaved",
             "The kernel applies rotary embedding to q and appended keys. half_split (also neox) pairs dimension i "
             "with i + d/2, interleaved (also gptj) 2i with 2i + 1"}),
    feature("rope_dim", "", &Features::rope_dim, &leanattn_problem::rope_dim,
            {"--rope-dim", "N",
             "How many first dimensions of a head are rotated (--latent: behind V's columns); default: all"},
            {.part_of = "rope"}),
    feature("batch_invariant", "_inv", &Features::batch_invariant, &leanattn_problem::batch_invariant,
            {"--batch-invariant", nullptr, "A request's result has the same bits whatever else is in its batch"}),
    feature("selection_block", "_sel", &Features::selection_block, &leanattn_problem::selection_block,
            {"--selection-block", "N",
             "Each query token brings a list of the blocks of N tokens that it sees, 1 or 16 to 128; contexts then "
             "count the tokens that are selected"}),
    feature("selection_in_pool", "p", &Features::selection_in_pool, &leanattn_problem::selection_in_pool,
            {"--selection-in-pool", nullptr,
             "The lists count blocks from the start of the pool of pages, not of the request's context"}),
    feature("second_cache", "_two", &Features::second_cache, &leanattn_problem::second_cache,
            {"--second-cache", nullptr, "Beside what they select, query tokens see the tokens of a second cache"}),
    feature("context_parallel", "_cp", &Features::context_parallel, &leanattn_problem::context_parallel,
            {"--context-parallel", "N",
             "GPUs that hold a part of every context each, 2 to 8; contexts then count the tokens of one of them; "
             "default 1"},
            {.usual = 1}),
    feature("context_ranks", "_of", &Features::context_ranks),
    feature("context_interleave", "i", &Features::context_interleave, &leanattn_problem::context_interleave,
            {"--context-interleave", "N",
             "They hold units of N tokens in turn, a power of two up to 256; default: contiguous parts"}),
    feature("replicate_output", "r", &Features::replicate_output, &leanattn_problem::replicate_output,
            {"--replicate-output", nullptr,
             "Each of them writes the results of all query heads, instead of its share of the heads"})};

/// Calls `visit` with each row.
template <class Visit>
constexpr void for_each_feature(Visit visit) {
  std::apply([&](const auto&... row) { (visit(row), ...); }, kFeatures);
}

/// The same answer as is_plain(), without a call or a branch for each field, because it runs at every decode step.
inline bool is_plain_fast(const Features& features) noexcept {
  const auto differs = [&]<std::size_t I>() {
    constexpr auto row = std::get<I>(kFeatures);
    return row.differs(features);
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return (differs.template operator()<I>() | ...) == 0; }
  (std::make_index_sequence<std::tuple_size_v<decltype(kFeatures)>>());
}

namespace detail {

/// Converts to anything, to count the members of an aggregate.
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <class T, class... Members>
consteval std::size_t count_members(Members... members) {
  if constexpr (requires { T{members..., AnyMember{}}; }) {
    return count_members<T>(members..., AnyMember{});
  } else {
    return sizeof...(Members);
  }
}
static_assert(count_members<Features>() == std::tuple_size_v<decltype(kFeatures)>,
              "each member of Features has a row in kFeatures");

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
