#include "generator/features.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "generator/parse_enum.hpp"
#include "generator/parse_json.hpp"
#include "generator/score_expression.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kMostPageTokens = 1 << 20;
constexpr int kMostQueryTokens = 16, kMostSharedQueryTokens = 1024;
constexpr int kMostWindow = 1 << 30;
constexpr const char* kBlockSizes = "Give 1, 16, 32, 64 or 128 tokens, or 0 for no selection.";

tl::unexpected<Error> invalid(std::string message, std::string hint) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

Result<void> in_range(const char* name, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return invalid(fmt::format("{} is {}", name, value), fmt::format("Give {} to {}.", least, most));
}

/// What a query token's own list of blocks goes with.
Result<void> validate_selection(const Features& f) {
  constexpr int kMostBlockTokens = 128;
  if (!has_selection(f)) {
    if (f.selection_block < 0) return invalid(fmt::format("selection_block is {}", f.selection_block), kBlockSizes);
    if (f.second_cache)
      return invalid("second_cache without a selection", "Give selection_block: without one, a cache is read whole.");
    if (!f.selection_in_pool) return {};
    return invalid("selection_in_pool without a selection", "Give selection_block, the tokens of an entry.");
  }
  const bool power = (f.selection_block & (f.selection_block - 1)) == 0;
  if (f.selection_block != 1 && (f.selection_block < 16 || f.selection_block > kMostBlockTokens || !power))
    return fail(ErrorCode::unsupported, fmt::format("selection_block is {}", f.selection_block), kBlockSizes);
  if (f.page_size == 0)
    return fail(ErrorCode::unsupported, "a selection from a dense cache",
                "Give page_size: a request of a dense cache may be one page.");
  struct Other {
    bool asked;
    const char* what;
    const char* cure;
  };
  // A token's index in its context decides about these, and the kernel knows only its place in the list.
  constexpr const char* kSelectFewer = "Leave it out, and select only tokens that the query token may see.";
  for (const Other& other :
       {Other{f.window > 0, "a window", kSelectFewer},
        Other{f.q_len > 1 && f.mask == QueryMask::tree, "the query mask tree", kSelectFewer},
        Other{f.ragged_q, "ragged_q", "Make a request of each query token, with q_len 1."},
        Other{f.alibi, "alibi", "The kernel does not know how far a selected token is."},
        Other{!f.score.empty(), "a score expression", "The kernel does not know how far a selected token is."},
        Other{f.append, "append", "Write the new tokens before the launch: what is selected may be any of them."},
        Other{f.rope != Rope::none, "rope", "Rotate q before the launch."}}) {
    if (other.asked) return fail(ErrorCode::unsupported, fmt::format("{} with a selection", other.what), other.cure);
  }
  constexpr const char* kMerge = "Read the second cache in a launch of its own, and merge the two results.";
  for (const Other& other : {Other{f.batch_invariant, "batch_invariant", kMerge},
                             Other{has_one_byte_elements(f), "a one-byte kv_format", kMerge}}) {
    if (f.second_cache && other.asked)
      return fail(ErrorCode::unsupported, fmt::format("{} with second_cache", other.what), other.cure);
  }
  return {};
}

/// What goes with a context that several ranks share.
Result<void> validate_group(const Features& f) {
  constexpr int kMostInterleave = 256;
  if (auto ok = in_range("context_parallel", f.context_parallel, 1, kMostContextParallel); !ok) return ok;
  const int unit = f.context_interleave;
  if (unit < 0 || unit > kMostInterleave || (unit & (unit - 1)) != 0)
    return invalid(fmt::format("context_interleave is {}", unit),
                   fmt::format("Give a power of two from 1 to {}, or 0 for contiguous parts.", kMostInterleave));
  if (const int all = f.context_ranks;
      all != 0 && (all <= f.context_parallel || all > kMostContextParallel || all % f.context_parallel != 0))
    return invalid(
        fmt::format("context_ranks is {} with context_parallel {}", all, f.context_parallel),
        fmt::format("Leave it 0, or give a larger multiple of context_parallel up to {}.", kMostContextParallel));
  if (f.replicate_output && !in_group(f))
    return invalid("replicate_output without context_parallel", "Give context_parallel, the number of ranks.");
  if (!has_part_of_context(f)) {
    if (unit > 0)
      return invalid(fmt::format("context_interleave is {} without context_parallel", unit),
                     "Give context_parallel, the number of ranks, or leave it 0.");
    return {};
  }
  struct Other {
    bool asked;
    const char* what;
    const char* cure;
  };
  constexpr const char* kNotYet = "Kernels of a group do not have it yet: leave it out, or give one GPU the context.";
  for (const Other& other :
       {Other{f.q_len > 1 && f.mask == QueryMask::tree, "the query mask tree", kNotYet},
        Other{has_selection(f), "a selection", kNotYet}, Other{f.batch_invariant, "batch_invariant", kNotYet}}) {
    if (other.asked)
      return fail(ErrorCode::unsupported, fmt::format("{} with context_parallel {}", other.what, ranks_of_context(f)),
                  other.cure);
  }
  return {};
}

}  // namespace

std::string_view to_string(QueryMask v) {
  switch (v) {
    case QueryMask::causal: return "causal";
    case QueryMask::tree: return "tree";
    case QueryMask::full: return "full";
  }
  return "causal";
}
std::string_view to_string(Rope v) {
  switch (v) {
    case Rope::none: return "none";
    case Rope::half_split: return "half_split";
    case Rope::interleaved: return "interleaved";
  }
  return "none";
}
std::string_view to_string(KvFormat v) {
  switch (v) {
    case KvFormat::same: return "same";
    case KvFormat::fp8_e4m3: return "fp8_e4m3";
    case KvFormat::fp8_e5m2: return "fp8_e5m2";
    case KvFormat::int8: return "int8";
    case KvFormat::fp8_ds_mla: return "fp8_ds_mla";
  }
  return "same";
}
std::string_view to_string(KvScale v) {
  switch (v) {
    case KvScale::tensor: return "tensor";
    case KvScale::head: return "head";
    case KvScale::token: return "token";
  }
  return "tensor";
}
Result<QueryMask> parse_query_mask(std::string_view text) {
  return parse_enum("query mask", text, std::array{QueryMask::causal, QueryMask::tree, QueryMask::full});
}
Result<Rope> parse_rope(std::string_view text) {
  return parse_enum("rope", text, std::array{Rope::none, Rope::half_split, Rope::interleaved});
}
Result<KvFormat> parse_kv_format(std::string_view text) {
  return parse_enum(
      "KV format", text,
      std::array{KvFormat::same, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8, KvFormat::fp8_ds_mla});
}
Result<KvScale> parse_kv_scale(std::string_view text) {
  return parse_enum("KV scale", text, std::array{KvScale::tensor, KvScale::head, KvScale::token});
}

bool is_plain(const Features& features) { return features == Features{}; }

bool transforms_scores(const Features& features) {
  return features.soft_cap != 0 || features.alibi || !features.score.empty();
}

int kv_element_bytes(const Features& features) { return features.kv_format == KvFormat::same ? 2 : 1; }

bool has_one_byte_elements(const Features& features) {
  return features.kv_format == KvFormat::fp8_e4m3 || features.kv_format == KvFormat::fp8_e5m2 ||
         features.kv_format == KvFormat::int8;
}

int query_rows(const Features& features, int group) { return group * (has_selection(features) ? 1 : features.q_len); }

Result<void> validate(const Features& f) {
  if (auto ok = in_range("page_size", f.page_size, 0, kMostPageTokens); !ok) return ok;
  if (f.q_len < 1) return invalid(fmt::format("q_len is {}", f.q_len), fmt::format("Give 1 to {}.", kMostQueryTokens));
  if (const int most = f.mask == QueryMask::full ? kMostSharedQueryTokens : kMostQueryTokens; f.q_len > most)
    return fail(ErrorCode::unsupported, fmt::format("q_len is {}", f.q_len),
                fmt::format("At most {} query tokens per request with mask {}; longer ones are prefill.", most,
                            to_string(f.mask)));
  if (f.mask == QueryMask::tree && f.q_len == 1)
    return invalid("a tree mask over one query token", "Give q_len of at least 2.");
  if (auto ok = in_range("window", f.window, 0, kMostWindow); !ok) return ok;
  if (auto ok = in_range("sink_tokens", f.sink_tokens, 0, kMostWindow); !ok) return ok;
  if (f.sink_tokens > 0 && f.window == 0)
    return invalid(fmt::format("sink_tokens is {} without a window", f.sink_tokens),
                   "Without a window all tokens are visible; give both or neither.");
  if (f.window > 0 && f.q_len > 1 && f.mask != QueryMask::causal)
    return fail(ErrorCode::unsupported, fmt::format("a window with the query mask {}", to_string(f.mask)),
                "A window is counted back from each token's place in a causal chain.");
  if (!std::isfinite(f.soft_cap) || f.soft_cap < 0 || f.soft_cap > 1e6 || (f.soft_cap > 0 && f.soft_cap < 1e-3))
    return invalid(fmt::format("soft_cap is {}", f.soft_cap), "Give 0.001 to 1e6, or 0 for none.");
  if (!f.score.empty()) {
    if (const auto source = score_source(f.score); !source) return tl::unexpected(source.error());
  }
  if (f.append && has_one_byte_elements(f) && f.kv_scale == KvScale::token)
    return fail(ErrorCode::unsupported,
                fmt::format("append into a cache of {} with a scale per token", to_string(f.kv_format)),
                "Append rounds to scales that are there before: one per tensor or per head.");
  if (f.rope == Rope::none && f.rope_dim != 0)
    return invalid(fmt::format("rope_dim is {} without rope", f.rope_dim), "Leave it 0.");
  if (f.rope_dim < 0 || f.rope_dim > 512 || f.rope_dim % 16 != 0)
    return invalid(fmt::format("rope_dim is {}", f.rope_dim), "Give a multiple of 16 up to head_dim, or 0 for all.");
  if (auto ok = validate_selection(f); !ok) return ok;
  if (auto ok = validate_group(f); !ok) return ok;
  if (f.v_head_dim < 0) return invalid(fmt::format("v_head_dim is {}", f.v_head_dim), "Leave it 0 for head_dim.");
  return {};
}

int first_turning_dim(const Features& f, int head_dim) {
  if (!f.latent) return 0;
  return f.v_head_dim > 0 ? std::min(f.v_head_dim, head_dim) : head_dim;
}

int turning_dims(const Features& f, int head_dim) { return head_dim - first_turning_dim(f, head_dim); }

Result<void> validate_for_head(const Features& f, int head_dim) {
  if (f.latent && f.v_head_dim > head_dim)
    return invalid(
        fmt::format("v_head_dim is {}, and the latent cache has {} columns (head_dim)", f.v_head_dim, head_dim),
        "V is the first v_head_dim columns of K.");
  const int dims = turning_dims(f, head_dim);
  if (f.rope != Rope::none && dims == 0)
    return invalid("rope over a latent cache in which V has all columns", "Give v_head_dim.");
  if (f.rope_dim <= dims) return {};
  return invalid(fmt::format("rope_dim is {}, more than {}, {}", f.rope_dim,
                             f.latent ? "the dims behind V's columns" : "head_dim", dims),
                 "Leave it 0 for all of them.");
}

std::string features_name(const Features& f) {
  std::string name;
  if (f.page_size > 0) name += fmt::format("_p{}", f.page_size);
  if (f.q_len > 1) {
    constexpr std::string_view kMasks[] = {"", "tree", "full"};
    name += fmt::format("_q{}{}", f.q_len, kMasks[static_cast<std::size_t>(f.mask)]);
  }
  if (f.ragged_q) name += "_rq";
  if (f.window > 0) name += fmt::format("_win{}", f.window);
  if (f.sink_tokens > 0) name += fmt::format("_sink{}", f.sink_tokens);
  if (f.sink_logits) name += "_slog";
  if (f.soft_cap > 0) {
    const auto whole = static_cast<int>(f.soft_cap);
    name += whole == f.soft_cap ? fmt::format("_cap{}", whole)
                                : fmt::format("_cap{:08x}", std::bit_cast<unsigned>(static_cast<float>(f.soft_cap)));
  }
  if (f.alibi) name += "_alibi";
  if (!f.score.empty())
    name += fmt::format("_x{:08x}", static_cast<unsigned>(XXH3_64bits(f.score.data(), f.score.size())));
  if (f.kv_format != KvFormat::same) {
    constexpr std::string_view kFormats[] = {"", "e4m3", "e5m2", "i8", "dsmla"}, kScales[] = {"", "h", "t"};
    name += fmt::format("_{}{}", kFormats[static_cast<std::size_t>(f.kv_format)],
                        kScales[static_cast<std::size_t>(f.kv_scale)]);
  }
  if (f.v_head_dim > 0) name += fmt::format("_v{}", f.v_head_dim);
  if (f.latent) name += "_latent";
  if (f.append) name += "_app";
  if (f.rope != Rope::none) name += fmt::format("_{}{}", f.rope == Rope::half_split ? "rh" : "ri", f.rope_dim);
  if (f.batch_invariant) name += "_inv";
  if (has_selection(f)) name += fmt::format("_sel{}{}", f.selection_block, f.selection_in_pool ? "p" : "");
  if (has_selection(f) && f.second_cache) name += "_two";
  if (has_part_of_context(f)) {
    if (in_group(f)) name += fmt::format("_cp{}", f.context_parallel);
    if (f.context_ranks > 0) name += fmt::format("_of{}", f.context_ranks);
    if (f.context_interleave > 0) name += fmt::format("i{}", f.context_interleave);
    if (f.replicate_output) name += "r";
  }
  return name;
}

std::uint64_t features_hash(const Features& f) {
  if (is_plain(f)) return 0;
  struct Words {
    std::uint64_t page_size, q_len, flags, window, sink_tokens, soft_cap, v_head_dim, rope_dim, selection_block, group;
  };
  const Words words{
      static_cast<std::uint64_t>(f.page_size),
      static_cast<std::uint64_t>(f.q_len),
      static_cast<std::uint64_t>(f.ragged_q) | static_cast<std::uint64_t>(f.mask) << 8 |
          static_cast<std::uint64_t>(f.sink_logits) << 16 | static_cast<std::uint64_t>(f.alibi) << 24 |
          static_cast<std::uint64_t>(f.kv_format) << 32 | static_cast<std::uint64_t>(f.kv_scale) << 40 |
          static_cast<std::uint64_t>(f.batch_invariant) << 48 | static_cast<std::uint64_t>(f.append) << 49 |
          static_cast<std::uint64_t>(f.latent) << 50 | static_cast<std::uint64_t>(f.selection_in_pool) << 51 |
          static_cast<std::uint64_t>(f.second_cache) << 52 | static_cast<std::uint64_t>(f.rope) << 56,
      static_cast<std::uint64_t>(f.window),
      static_cast<std::uint64_t>(f.sink_tokens),
      std::bit_cast<std::uint64_t>(f.soft_cap),
      static_cast<std::uint64_t>(f.v_head_dim),
      static_cast<std::uint64_t>(f.rope_dim),
      static_cast<std::uint64_t>(f.selection_block),
      static_cast<std::uint64_t>(f.context_parallel) | static_cast<std::uint64_t>(f.context_interleave) << 16 |
          static_cast<std::uint64_t>(f.replicate_output) << 32 | static_cast<std::uint64_t>(f.context_ranks) << 40};
  const std::uint64_t hash = XXH3_64bits_withSeed(f.score.data(), f.score.size(), XXH3_64bits(&words, sizeof words));
  return hash != 0 ? hash : 1;
}

std::string to_json(const Features& f) {
  const Features plain;
  nlohmann::json json = nlohmann::json::object();
  if (f.page_size != plain.page_size) json["page_size"] = f.page_size;
  if (f.q_len != plain.q_len) json["q_len"] = f.q_len;
  if (f.ragged_q) json["ragged_q"] = true;
  if (f.mask != plain.mask) json["mask"] = to_string(f.mask);
  if (f.window != plain.window) json["window"] = f.window;
  if (f.sink_tokens != plain.sink_tokens) json["sink_tokens"] = f.sink_tokens;
  if (f.sink_logits) json["sink_logits"] = true;
  if (f.soft_cap != plain.soft_cap) json["soft_cap"] = f.soft_cap;
  if (f.alibi) json["alibi"] = true;
  if (!f.score.empty()) json["score"] = f.score;
  if (f.kv_format != plain.kv_format) json["kv_format"] = to_string(f.kv_format);
  if (f.kv_scale != plain.kv_scale) json["kv_scale"] = to_string(f.kv_scale);
  if (f.v_head_dim != plain.v_head_dim) json["v_head_dim"] = f.v_head_dim;
  if (f.latent) json["latent"] = true;
  if (f.append) json["append"] = true;
  if (f.rope != plain.rope) json["rope"] = to_string(f.rope);
  if (f.rope_dim != plain.rope_dim) json["rope_dim"] = f.rope_dim;
  if (f.batch_invariant) json["batch_invariant"] = true;
  if (f.selection_block != plain.selection_block) json["selection_block"] = f.selection_block;
  if (f.selection_in_pool) json["selection_in_pool"] = true;
  if (f.second_cache) json["second_cache"] = true;
  if (f.context_parallel != plain.context_parallel) json["context_parallel"] = f.context_parallel;
  if (f.context_interleave != plain.context_interleave) json["context_interleave"] = f.context_interleave;
  if (f.context_ranks != plain.context_ranks) json["context_ranks"] = f.context_ranks;
  if (f.replicate_output) json["replicate_output"] = true;
  return json.dump();
}

Result<Features> features_from_json(std::string_view text) {
  const nlohmann::json object = parse_json(text);
  if (!object.is_object()) return fail(ErrorCode::invalid_argument, "features: not a JSON object");
  Features f;
  Result<void> ok;
  const auto read = [&](const char* key, auto is, auto take) {
    const auto it = object.find(key);
    if (!ok || it == object.end()) return;
    if (!is(*it)) {
      ok = fail(ErrorCode::invalid_argument, fmt::format("features: '{}' has the wrong type", key));
    } else {
      take(*it);
    }
  };
  const auto integer = [&](const char* key, int& out) {
    read(
        key, [](const nlohmann::json& value) { return integer_of<int>(value).has_value(); },
        [&](const nlohmann::json& value) { out = *integer_of<int>(value); });
  };
  const auto boolean = [&](const char* key, bool& out) {
    read(
        key, [](const nlohmann::json& v) { return v.is_boolean(); },
        [&](const nlohmann::json& v) { out = v.get<bool>(); });
  };
  const auto is_text = [](const nlohmann::json& v) { return v.is_string(); };
  const auto name = [&](const char* key, auto& out, auto parse) {
    read(key, is_text, [&](const nlohmann::json& v) {
      if (auto parsed = parse(v.get_ref<const std::string&>())) {
        out = *parsed;
      } else {
        ok = tl::unexpected(parsed.error());
      }
    });
  };
  integer("page_size", f.page_size);
  integer("q_len", f.q_len);
  boolean("ragged_q", f.ragged_q);
  name("mask", f.mask, parse_query_mask);
  integer("window", f.window);
  integer("sink_tokens", f.sink_tokens);
  boolean("sink_logits", f.sink_logits);
  read(
      "soft_cap", [](const nlohmann::json& v) { return v.is_number(); },
      [&](const nlohmann::json& v) { f.soft_cap = v.get<double>(); });
  boolean("alibi", f.alibi);
  read("score", is_text, [&](const nlohmann::json& v) { f.score = v.get<std::string>(); });
  name("kv_format", f.kv_format, parse_kv_format);
  name("kv_scale", f.kv_scale, parse_kv_scale);
  integer("v_head_dim", f.v_head_dim);
  boolean("latent", f.latent);
  boolean("append", f.append);
  name("rope", f.rope, parse_rope);
  integer("rope_dim", f.rope_dim);
  boolean("batch_invariant", f.batch_invariant);
  integer("selection_block", f.selection_block);
  boolean("selection_in_pool", f.selection_in_pool);
  boolean("second_cache", f.second_cache);
  integer("context_parallel", f.context_parallel);
  integer("context_interleave", f.context_interleave);
  integer("context_ranks", f.context_ranks);
  boolean("replicate_output", f.replicate_output);
  if (!ok) return tl::unexpected(ok.error());
  if (auto valid = validate(f); !valid) return tl::unexpected(valid.error());
  return f;
}

}  // namespace v1
}  // namespace leanattn
