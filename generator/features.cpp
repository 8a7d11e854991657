#include "generator/features.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "generator/feature_table.hpp"
#include "generator/kv_encoding.hpp"
#include "generator/parse_json.hpp"
#include "generator/score_expression.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kMostPageTokens = 1 << 20;
constexpr int kMostSharedQueryTokens = 1024;
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
                             Other{has_scales(f), "a kv_format that has scales", kMerge}}) {
    if (f.second_cache && other.asked)
      return fail(ErrorCode::unsupported, fmt::format("{} with second_cache", other.what), other.cure);
  }
  return {};
}

/// What goes with K and V that are no cache.
Result<void> validate_packed(const Features& f) {
  struct Other {
    bool asked;
    const char* what;
  };
  for (const Other& other : {Other{f.page_size > 0, "page_size"}, Other{f.latent, "latent"}, Other{f.append, "append"},
                             Other{f.batch_invariant, "batch_invariant"}, Other{has_token_scales(f), "kv_scale token"},
                             Other{has_part_of_context(f), "context_parallel"}}) {
    if (f.packed_kv && other.asked)
      return fail(ErrorCode::unsupported, fmt::format("{} with packed_kv", other.what),
                  "Packed K and V are no cache: give one, or leave it out.");
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
  for (const Other& other : {Other{f.q_len > 1 && f.mask == QueryMask::tree, "the query mask tree", kNotYet},
                             Other{f.spans, "spans", kNotYet}, Other{has_selection(f), "a selection", kNotYet},
                             Other{f.batch_invariant, "batch_invariant", kNotYet},
                             Other{stages_scales(f), "a cache whose scales travel with its rows", kNotYet}}) {
    if (other.asked)
      return fail(ErrorCode::unsupported, fmt::format("{} with context_parallel {}", other.what, ranks_of_context(f)),
                  other.cure);
  }
  return {};
}

/// The first bit of each feature among the words of which a hash is made, and the number of all bits. A value does not
/// reach over the end of a word; a text has a word.
constexpr auto kHashBits = [] {
  std::array<std::size_t, std::tuple_size_v<decltype(kFeatures)> + 1> first{};
  for_each_feature([&, row = std::size_t{0}]<class T>(const Feature<T>&) mutable {
    constexpr std::size_t bits = std::is_same_v<T, std::string> ? 64 : 8 * sizeof(T);
    first[row] = (first[row] + bits - 1) / bits * bits;
    first[row + 1] = first[row] + bits;
    ++row;
  });
  return first;
}();
template <class T>
std::uint64_t bits_of(const T& value) {
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<std::uint64_t>(value);
  if constexpr (std::is_same_v<T, std::string>) return XXH3_64bits(value.data(), value.size());
  if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) return static_cast<std::uint32_t>(value);
}

/// What stands for a value in the name of a kernel.
std::string short_text(bool) { return {}; }
std::string short_text(int value) { return std::to_string(value); }
std::string short_text(double value) {
  const auto whole = static_cast<int>(value);
  return whole == value ? std::to_string(whole)
                        : fmt::format("{:08x}", std::bit_cast<unsigned>(static_cast<float>(value)));
}
std::string short_text(const std::string& value) {
  return fmt::format("{:08x}", static_cast<unsigned>(XXH3_64bits(value.data(), value.size())));
}
template <class Enum>
std::string short_text(Enum value) {
  return enumerator(value).short_name;
}

/// The value of a member of Features. Errors: invalid_argument.
template <class T>
Result<void> read_json(const nlohmann::json& json, const char* name, T& out) {
  bool right = false;
  if constexpr (std::is_enum_v<T>) {
    if (right = json.is_string(); right) {
      const auto read = parse_enumerator<T>(json.get_ref<const std::string&>());
      if (!read) return tl::unexpected(read.error());
      out = *read;
    }
  } else if constexpr (std::is_same_v<T, int>) {
    const std::optional<int> read = integer_of<int>(json);
    if (right = read.has_value(); right) out = *read;
  } else {
    right = std::is_same_v<T, bool>     ? json.is_boolean()
            : std::is_same_v<T, double> ? json.is_number()
                                        : json.is_string();
    if (right) out = json.get<T>();
  }
  if (right) return {};
  return fail(ErrorCode::invalid_argument, fmt::format("features: '{}' has the wrong type", name));
}

}  // namespace

std::string_view to_string(QueryMask v) { return enumerator(v).name; }
std::string_view to_string(Rope v) { return enumerator(v).name; }
std::string_view to_string(KvFormat v) { return enumerator(v).name; }
std::string_view to_string(KvScale v) { return enumerator(v).name; }

bool is_plain(const Features& features) { return features == Features{}; }

bool transforms_scores(const Features& features) {
  return features.soft_cap != 0 || features.alibi || !features.score.empty();
}

int most_query_tokens(const Features& f) {
  if (f.ragged_q && f.mask != QueryMask::tree && !f.batch_invariant && !has_part_of_context(f))
    return kMostPrefillTokens;
  return f.mask == QueryMask::full ? kMostSharedQueryTokens : kMostDecodeTokens;
}

bool has_prefill(const Features& f) {
  return f.q_len > kMostDecodeTokens && most_query_tokens(f) == kMostPrefillTokens;
}

int query_rows(const Features& features, int group) { return group * (has_selection(features) ? 1 : features.q_len); }

Result<void> validate(const Features& f) {
  if (auto ok = in_range("page_size", f.page_size, 0, kMostPageTokens); !ok) return ok;
  const int most = most_query_tokens(f);
  if (f.q_len < 1) return invalid(fmt::format("q_len is {}", f.q_len), fmt::format("Give 1 to {}.", most));
  if (f.q_len > most)
    return fail(ErrorCode::unsupported, fmt::format("q_len is {}", f.q_len),
                fmt::format("At most {} query tokens per request with mask {} and these features. With ragged_q and "
                            "mask causal or full there may be {}, but not with batch_invariant or in a group.",
                            most, to_string(f.mask), kMostPrefillTokens));
  if (f.mask == QueryMask::tree && f.q_len == 1)
    return invalid("a tree mask over one query token", "Give q_len of at least 2.");
  if (f.spans && (!f.ragged_q || f.mask != QueryMask::causal))
    return invalid(fmt::format("spans {}", f.ragged_q ? fmt::format("with the query mask {}", to_string(f.mask))
                                                      : std::string("without ragged_q")),
                   "They add to what the mask causal shows the query tokens of prompts: give ragged_q and that mask.");
  if (auto ok = in_range("window", f.window, 0, kMostWindow); !ok) return ok;
  if (auto ok = in_range("sink_tokens", f.sink_tokens, 0, kMostWindow); !ok) return ok;
  if (f.sink_tokens > 0 && f.window == 0)
    return invalid(fmt::format("sink_tokens is {} without a window", f.sink_tokens),
                   "Without a window all tokens are visible; give both or neither.");
  if (f.window > 0 && f.q_len > 1 && f.mask == QueryMask::tree)
    return fail(ErrorCode::unsupported, "a window with the query mask tree",
                "A window is counted from each token's place in a chain.");
  if (!std::isfinite(f.soft_cap) || f.soft_cap < 0 || f.soft_cap > 1e6 || (f.soft_cap > 0 && f.soft_cap < 1e-3))
    return invalid(fmt::format("soft_cap is {}", f.soft_cap), "Give 0.001 to 1e6, or 0 for none.");
  if (!f.score.empty()) {
    if (const auto source = score_source(f.score); !source) return tl::unexpected(source.error());
  }
  if (f.append && has_token_scales(f) && !stages_scales(f))
    return fail(
        ErrorCode::unsupported, fmt::format("append into a cache of {} with kv_scale token", to_string(f.kv_format)),
        "Kernels write a scale of a token where they bring it with its row: set kv_scale to in_row, or to tensor "
        "or head, whose scales are there before.");
  if (f.rope == Rope::none && f.rope_dim != 0)
    return invalid(fmt::format("rope_dim is {} without rope", f.rope_dim), "Leave it 0.");
  if (f.rope_dim < 0 || f.rope_dim > 512 || f.rope_dim % 16 != 0)
    return invalid(fmt::format("rope_dim is {}", f.rope_dim), "Give a multiple of 16 up to head_dim, or 0 for all.");
  if (auto ok = validate_packed(f); !ok) return ok;
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
    return invalid(
        "rope over a latent cache in which V has all columns",
        "Leave it out, and give k_new with its columns turned; or give v_head_dim, behind which columns turn.");
  if (f.rope_dim <= dims) return {};
  return invalid(fmt::format("rope_dim is {}, more than {}, {}", f.rope_dim,
                             f.latent ? "the dims behind V's columns" : "head_dim", dims),
                 "Leave it 0 for all of them.");
}

std::string features_name(const Features& f) {
  std::string name;
  const auto add = [&](const auto& row) { name += row.short_name + short_text(f.*row.member); };
  for_each_feature([&](const auto& row) {
    if (row.differs(f) == 0 || !row.extras.part_of.empty()) return;
    add(row);
    for_each_feature([&](const auto& part) {
      if (part.extras.part_of == row.name) add(part);
    });
  });
  return name;
}

std::uint64_t features_hash(const Features& f) {
  if (is_plain_fast(f)) return 0;
  std::array<std::uint64_t, (kHashBits.back() + 63) / 64> words{};
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((words[kHashBits[I] / 64] |= bits_of(f.*std::get<I>(kFeatures).member) << kHashBits[I] % 64), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(kFeatures)>>());
  const std::uint64_t hash = XXH3_64bits(words.data(), sizeof words);
  return hash != 0 ? hash : 1;
}

std::string to_json(const Features& f) {
  nlohmann::json json = nlohmann::json::object();
  for_each_feature([&]<class T>(const Feature<T>& row) {
    if (row.differs(f) == 0) return;
    if constexpr (std::is_enum_v<T>) {
      json[row.name] = to_string(f.*row.member);
    } else {
      json[row.name] = f.*row.member;
    }
  });
  return json.dump();
}

Result<Features> features_from_json(std::string_view text) {
  const nlohmann::json object = parse_json(text);
  if (!object.is_object()) return fail(ErrorCode::invalid_argument, "features: not a JSON object");
  Features f;
  Result<void> ok;
  for_each_feature([&](const auto& row) {
    if (const auto it = object.find(row.name); ok && it != object.end()) ok = read_json(*it, row.name, f.*row.member);
  });
  if (!ok) return tl::unexpected(ok.error());
  if (auto valid = validate(f); !valid) return tl::unexpected(valid.error());
  return f;
}

}  // namespace v1
}  // namespace leanattn
