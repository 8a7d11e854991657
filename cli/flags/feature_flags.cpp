#include "cli/flags/feature_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "cli/flags/aliases.hpp"
#include "cli/flags/sizes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Reads one of a parser's names into `out`. The parser's error gets the flag and its value in front.
template <class T>
Result<void> read_name(const char* flag, const std::string& text, Result<T> (*parse)(std::string_view), T& out) {
  if (text.empty()) return {};
  Result<T> parsed = parse(without_alias(text));
  if (!parsed) {
    Error error = parsed.error();
    error.message = fmt::format("{} {}: {}", flag, text, error.message);
    return tl::unexpected(std::move(error));
  }
  out = *parsed;
  return {};
}

Result<void> read_real(const char* flag, const std::string& text, double& out) {
  if (text.empty()) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(ErrorCode::invalid_argument, fmt::format("{} '{}' is not a number", flag, text));
  out = value;
  return {};
}

/// Reads the type of the KV cache, which is a one-byte format or the type of the query.
Result<void> read_kv_dtype(const FeatureFlags& flags, DType dtype, Features& features) {
  if (flags.kv_dtype.empty()) return {};
  const std::string name = without_alias(flags.kv_dtype);
  if (name == to_string(dtype)) {
    features.kv_format = KvFormat::same;
    return {};
  }
  if (parse_dtype(name)) {
    return fail(
        ErrorCode::unsupported,
        fmt::format("--kv-dtype {} cannot be had, because the cache of a {} query has that type or one-byte elements",
                    flags.kv_dtype, to_string(dtype)),
        "Leave --kv-dtype out, or change --dtype.");
  }
  return read_name("--kv-dtype", flags.kv_dtype, parse_kv_format, features.kv_format);
}

}  // namespace

void add_feature_flags(CLI::App& command, FeatureFlags& flags) {
  constexpr const char* kGroup = "Features";
  const auto option = [&](const char* name, std::string& value, const char* help) {
    return command.add_option(name, value, help)->group(kGroup);
  };
  const auto flag = [&](const char* name, bool& value, const char* help) {
    command.add_flag(name, value, help)->group(kGroup);
  };
  option("--page-size", flags.page_size, "Tokens in a page of a paged KV cache; default: the cache is dense")
      ->type_name("N");
  option("--q-len", flags.q_len,
         "The largest number of query tokens of a request, 1 to 16 (1024 with --query-mask full); default 1")
      ->type_name("N");
  flag("--ragged-q", flags.ragged_q, "Requests have different numbers of query tokens, at most --q-len");
  option("--query-mask", flags.query_mask,
         "What the query tokens see of each other; tree: what a bit mask says; default causal")
      ->type_name("causal|tree|full");
  option("--window", flags.window, "How many tokens a query token sees, of which it is the last; default: all")
      ->type_name("N");
  option("--sink-tokens", flags.sink_tokens, "How many first tokens stay visible beside the window")->type_name("N");
  flag("--sink-logits", flags.sink_logits,
       "Each query head has a learned logit that counts in the softmax's denominator");
  option("--soft-cap", flags.soft_cap, "Each score becomes X * tanh(score / X)")->type_name("X");
  flag("--alibi", flags.alibi, "Each score gets the query head's slope times the distance between the tokens");
  option("--score", flags.score, "An expression of score, q_index, kv_index and head that gives the new score")
      ->type_name("EXPR");
  option("--kv-dtype", flags.kv_dtype,
         "The type of a one-byte KV cache; fp8 means fp8_e4m3; fp8_ds_mla: the rows of 656 bytes of latent caches; "
         "default: the one of --dtype")
      ->type_name("fp8_e4m3|fp8_e5m2|int8|fp8_ds_mla");
  option("--kv-scale", flags.kv_scale, "What has a scale of its own in a one-byte cache; default tensor")
      ->type_name("tensor|head|token");
  option("--v-head-dim", flags.v_head_dim, "The head size of V and O; default: the one of --head-dim")->type_name("N");
  flag("--latent", flags.latent,
       "V is the first --v-head-dim columns of K, as in multi-head latent attention with absorbed projections");
  flag("--append", flags.append, "The kernel writes the query tokens' own K and V into the cache");
  option("--rope", flags.rope,
         "The kernel applies rotary embedding to q and appended keys. half_split (also neox) pairs dimension i with "
         "i + d/2, interleaved (also gptj) 2i with 2i + 1")
      ->type_name("half_split|interleaved");
  option("--rope-dim", flags.rope_dim,
         "How many first dimensions of a head are rotated (--latent: behind V's columns); default: all")
      ->type_name("N");
  flag("--batch-invariant", flags.batch_invariant,
       "A request's result has the same bits whatever else is in its batch");
  option(
      "--selection-block", flags.selection_block,
      "Each query token brings a list of the blocks of N tokens that it sees, 1 or 16 to 128; contexts then count the "
      "tokens that are selected")
      ->type_name("N");
  flag("--selection-in-pool", flags.selection_in_pool,
       "The lists count blocks from the start of the pool of pages, not of the request's context");
  flag("--second-cache", flags.second_cache, "Beside what they select, query tokens see the tokens of a second cache");
  option(
      "--context-parallel", flags.context_parallel,
      "GPUs that hold a part of every context each, 2 to 8; contexts then count the tokens of one of them; default 1")
      ->type_name("N");
  option("--context-interleave", flags.context_interleave,
         "They hold units of N tokens in turn, a power of two up to 256; default: contiguous parts")
      ->type_name("N");
  flag("--replicate-output", flags.replicate_output,
       "Each of them writes the results of all query heads, instead of its share of the heads");
}

Result<Features> with_flags(Features features, const FeatureFlags& flags, DType dtype) {
  struct Field {
    const char* flag;
    const std::string& text;
    int& value;
  };
  for (const Field& field :
       {Field{"--page-size", flags.page_size, features.page_size}, Field{"--q-len", flags.q_len, features.q_len},
        Field{"--window", flags.window, features.window},
        Field{"--sink-tokens", flags.sink_tokens, features.sink_tokens},
        Field{"--v-head-dim", flags.v_head_dim, features.v_head_dim},
        Field{"--rope-dim", flags.rope_dim, features.rope_dim},
        Field{"--selection-block", flags.selection_block, features.selection_block},
        Field{"--context-parallel", flags.context_parallel, features.context_parallel},
        Field{"--context-interleave", flags.context_interleave, features.context_interleave}}) {
    if (field.text.empty()) continue;
    const Result<std::int64_t> value = parse_size(field.flag, field.text, 0, std::numeric_limits<int>::max());
    if (!value) return tl::unexpected(value.error());
    field.value = static_cast<int>(*value);
  }
  features.ragged_q = features.ragged_q || flags.ragged_q;
  features.sink_logits = features.sink_logits || flags.sink_logits;
  features.alibi = features.alibi || flags.alibi;
  features.latent = features.latent || flags.latent;
  features.append = flags.append;
  features.batch_invariant = flags.batch_invariant;
  features.selection_in_pool = flags.selection_in_pool;
  features.second_cache = flags.second_cache;
  features.replicate_output = flags.replicate_output;
  if (!flags.score.empty()) features.score = flags.score;
  for (const Result<void>& read :
       {read_name("--query-mask", flags.query_mask, parse_query_mask, features.mask),
        read_real("--soft-cap", flags.soft_cap, features.soft_cap), read_kv_dtype(flags, dtype, features),
        read_name("--rope", flags.rope, parse_rope, features.rope),
        read_name("--kv-scale", flags.kv_scale, parse_kv_scale, features.kv_scale)}) {
    if (!read) return tl::unexpected(read.error());
  }
  if (!flags.kv_scale.empty() && !has_one_byte_elements(features)) {
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("--kv-scale {} cannot be had, because only a cache of one-byte elements has scales beside it",
                    flags.kv_scale),
        "Give --kv-dtype fp8_e4m3, fp8_e5m2 or int8.");
  }
  return features;
}

}  // namespace v1
}  // namespace leanattn
