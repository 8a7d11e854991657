// problem.cpp -- the valid range of every field, the tokens and bytes of a step, and the JSON of problems and shapes.
#include "runtime/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "generator/integers.hpp"
#include "generator/kv_encoding.hpp"
#include "generator/parse_enum.hpp"
#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
/// Context lengths are 32-bit on the device, and so is the index of a (request, query head).
constexpr std::int64_t kLargestInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kLargestSegmentCost = 1024;  // LeanTiles
constexpr int kHeadDimStep = 16, kLargestValueDim = 512;
constexpr int kLargestGroup = 128;  // with the most query tokens, 2^17, a KV head has 2^24 query rows

Result<void> check_range(const char* name, std::int64_t value, std::int64_t lowest, std::int64_t largest) {
  if (value >= lowest && value <= largest) return {};
  return fail(ErrorCode::invalid_argument, fmt::format("{} is {}", name, value),
              fmt::format("Give {} to {}.", lowest, largest));
}

/// Matrix instructions take steps of 16, and a CTA has registers for the accumulators of so many columns.
Result<void> check_head_dim(const char* name, int value, int largest) {
  if (value % kHeadDimStep == 0 && value <= largest) return {};
  return fail(ErrorCode::unsupported, fmt::format("{} {} is not supported", name, value),
              fmt::format("Supported: multiples of {} up to {}.", kHeadDimStep, largest));
}

std::int64_t bytes_of_tokens(const DecodeProblem& problem, std::int64_t tokens) {
  const int columns = problem.head_dim + (problem.features.latent ? 0 : v_head_dim(problem));
  const std::int64_t row = kv_encoding(problem.features).row_bytes(columns);
  return saturating_product(saturating_product(tokens, problem.kv_heads), row);
}

/// Tokens from `first` on, and before `end`.
struct TokenRange {
  std::int64_t first = 0, end = 0;
  std::int64_t size() const { return std::max<std::int64_t>(end - first, 0); }
};

/// The most of `tokens` neighbouring tokens that one GPU has: all, or of units that ranks have in turn its share. Of
/// contiguous parts the last one that has tokens may have all of them.
std::int64_t most_on_rank(const Features& features, std::int64_t tokens) {
  if (features.context_interleave == 0) return tokens;
  const std::int64_t unit = features.context_interleave, round = unit * ranks_of_context(features);
  return tokens / round * unit + std::min(tokens % round, unit);
}

/// The visible tokens of one request: its sinks, and its window or all of its context. Of a group's request, the most
/// that a rank with so many tokens sees.
std::array<TokenRange, 2> visible_ranges(const Features& features, std::int64_t context, std::int64_t query_tokens) {
  if (features.window == 0) return {TokenRange{}, TokenRange{0, context}};
  // The first query token looks back furthest.
  const std::int64_t window = most_on_rank(features, std::int64_t{features.window} + query_tokens - 1),
                     first = std::max<std::int64_t>(context - window, 0);
  return {TokenRange{0, std::min(most_on_rank(features, features.sink_tokens), first)}, TokenRange{first, context}};
}

/// Tokens that lie in at least one of the ranges.
std::int64_t union_size(std::vector<TokenRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const TokenRange& a, const TokenRange& b) { return a.first < b.first; });
  std::int64_t tokens = 0, counted_to = 0;
  for (const TokenRange& range : ranges) {
    tokens += TokenRange{std::max(range.first, counted_to), range.end}.size();
    counted_to = std::max(counted_to, range.end);
  }
  return tokens;
}

std::int64_t visible_tokens(const DecodeProblem& problem, const RequestLengths& lengths) {
  std::int64_t tokens = 0;
  std::vector<TokenRange> shared;
  if (has_selection(problem.features)) {
    for (const int selected : lengths.context_lengths)
      tokens = saturating_sum(tokens, saturating_product(std::max(selected, 0), problem.features.q_len));
    return tokens;
  }
  for (std::size_t i = 0; i < lengths.context_lengths.size(); ++i) {
    const std::int64_t query_tokens = lengths.query_tokens.empty() ? problem.features.q_len : lengths.query_tokens[i];
    const std::int64_t context = std::max(lengths.context_lengths[i], 0);
    for (const TokenRange& range : visible_ranges(problem.features, context, query_tokens)) {
      const std::int64_t own = std::max(range.first, lengths.shared_tokens);
      tokens = saturating_sum(tokens, TokenRange{own, range.end}.size());
      if (range.first < lengths.shared_tokens)
        shared.push_back({range.first, std::min(range.end, lengths.shared_tokens)});
    }
  }
  return saturating_sum(tokens, union_size(std::move(shared)));
}

/// What is said of the chunks must be possible. Query tokens alone are a limit, and may be any number.
Result<void> validate_mix(const Shape& shape) {
  const QueryMix& mix = shape.mix;
  if (auto ok = check_range("query_tokens", mix.query_tokens, 0, kLargestInt); !ok) return ok;
  if (auto ok = check_range("chunks", mix.chunks, 0, shape.batch); !ok) return ok;
  if (mix.chunks == 0) {
    if (mix.chunk_context == 0 && mix.chunk_pairs == 0) return {};
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("chunk_context is {} and chunk_pairs is {}, but chunks is 0", mix.chunk_context, mix.chunk_pairs),
        "Say how many requests have several query tokens.");
  }
  const std::int64_t tokens = chunk_tokens(shape), all = total_tokens(shape),
                     most = std::min(all, saturating_product(mix.chunks, shape.longest_context));
  if (tokens < 2 * std::int64_t{mix.chunks} || tokens > most)
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("query_tokens is {}, which {} requests, {} of them with several and up to {} tokens in all, "
                    "cannot have",
                    mix.query_tokens, shape.batch, mix.chunks, most),
        "The other requests have one query token each, and a context has all query tokens of its request.");
  if (mix.chunk_context != 0)
    if (auto ok = check_range("chunk_context", mix.chunk_context, tokens, most); !ok) return ok;
  if (mix.chunk_pairs != 0)
    return check_range("chunk_pairs", mix.chunk_pairs, tokens, saturating_product(tokens, shape.longest_context));
  return {};
}

Result<void> validate_shape(const Shape& shape) {
  if (auto ok = check_range("batch", shape.batch, 1, kLargestInt); !ok) return ok;
  if (auto ok = check_range("longest_context", shape.longest_context, 1, kLargestInt); !ok) return ok;
  if (shape.max_batch != 0 && shape.max_batch < shape.batch) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("max_batch is {}, less than batch, {}", shape.max_batch, shape.batch),
                "Leave max_batch 0 for the same as batch.");
  }
  const std::int64_t uniform = saturating_product(shape.batch, shape.longest_context);
  if (shape.total_context != 0 && (shape.total_context < shape.longest_context || shape.total_context > uniform)) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("total_context is {}, which {} requests of at most {} tokens cannot have",
                            shape.total_context, shape.batch, shape.longest_context),
                fmt::format("Give {} to {}, or leave it 0 for equally long requests.", shape.longest_context, uniform));
  }
  return validate_mix(shape);
}

/// Reads exactly the text that to_json() makes of a shape, without a JSON parser, because a database has many shapes
/// and all differ. nullopt for any other text, which may still be a shape.
std::optional<Shape> read_written_shape(std::string_view text) {
  const auto after = [&text](std::string_view expected) {
    if (!text.starts_with(expected)) return false;
    text.remove_prefix(expected.size());
    return true;
  };
  const auto number = [&text](auto& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    const auto length = static_cast<std::size_t>(end - text.data());
    const bool leading_zero = length > 1 && text.front() == '0';  // which JSON forbids
    text.remove_prefix(length);
    return error == std::errc{} && !leading_zero && out >= 0;
  };
  Shape shape;
  const bool read = after(R"({"batch":)") && number(shape.batch) && after(R"(,"longest_context":)") &&
                    number(shape.longest_context) && after(R"(,"max_batch":)") && number(shape.max_batch) &&
                    after(R"(,"total_context":)") && number(shape.total_context) && text == "}";
  return read ? std::optional(shape) : std::nullopt;
}

/// Reads the keys of one JSON object. It keeps the first failure, after which reads do nothing.
class Reader {
 public:
  Reader(const char* what, std::string_view text) : what_(what), object_(parse_json(text)) {
    if (!object_.is_object()) failed(fmt::format("{}: not a JSON object", what_));
  }

  template <class Integer>
  void integer(const char* key, Integer& out) {
    const nlohmann::json* value = find(key, [](const nlohmann::json& json) { return json.is_number_integer(); });
    if (value == nullptr) return;
    const std::optional<Integer> number = integer_of<Integer>(*value);
    if (!number) return failed(fmt::format("{}: '{}' is {}, out of range", what_, key, value->dump()));
    out = *number;
  }

  /// Left alone where the key is missing.
  template <class Integer>
  void optional_integer(const char* key, Integer& out) {
    if (object_.is_object() && object_.contains(key)) integer(key, out);
  }
  void optional_boolean(const char* key, bool& out) {
    if (object_.is_object() && object_.contains(key)) boolean(key, out);
  }

  void boolean(const char* key, bool& out) {
    if (const nlohmann::json* value = find(key, [](const nlohmann::json& json) { return json.is_boolean(); }))
      out = value->get<bool>();
  }

  template <class T>
  void name(const char* key, T& out, Result<T> (*parse)(std::string_view)) {
    const nlohmann::json* value = find(key, [](const nlohmann::json& json) { return json.is_string(); });
    if (value == nullptr) return;
    if (auto parsed = parse(value->get_ref<const std::string&>())) {
      out = *parsed;
    } else {
      error_ = std::move(parsed.error());
    }
  }

  template <class T>
  void optional_name(const char* key, T& out, Result<T> (*parse)(std::string_view)) {
    if (object_.is_object() && object_.contains(key)) name(key, out, parse);
  }

  /// Left alone where the key is missing.
  template <class T>
  void optional_object(const char* key, T& out, Result<T> (*parse)(std::string_view)) {
    if (!object_.is_object() || !object_.contains(key)) return;
    const std::string text = object(key);
    if (error_) return;
    if (auto parsed = parse(text)) {
      out = *std::move(parsed);
    } else {
      error_ = std::move(parsed.error());
    }
  }

  /// The JSON text of a nested object; empty after a failure.
  std::string object(const char* key) {
    const nlohmann::json* value = find(key, [](const nlohmann::json& json) { return json.is_object(); });
    return value != nullptr ? value->dump() : std::string();
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  template <class Is>
  const nlohmann::json* find(const char* key, Is is) {
    if (error_) return nullptr;
    const auto it = object_.find(key);
    if (it != object_.end() && is(*it)) return &*it;
    failed(fmt::format("{}: '{}' is missing or has the wrong type", what_, key));
    return nullptr;
  }

  void failed(std::string message) { error_ = Error{ErrorCode::invalid_argument, std::move(message), {}, {}}; }

  const char* what_;
  nlohmann::json object_;
  std::optional<Error> error_;
};

}  // namespace

std::string_view to_string(L2Policy policy) { return policy == L2Policy::cold ? "cold" : "warm"; }

Result<L2Policy> parse_l2_policy(std::string_view text) {
  return parse_enum("L2 policy", text, std::array{L2Policy::cold, L2Policy::warm});
}

std::string_view to_string(GroupLink link) {
  switch (link) {
    case GroupLink::unknown: return "unknown";
    case GroupLink::nvlink: return "nvlink";
    case GroupLink::pcie: return "pcie";
    case GroupLink::same_gpu: return "same_gpu";
  }
  return "unknown";
}

Result<GroupLink> parse_group_link(std::string_view text) {
  return parse_enum("link of a group", text, std::array{GroupLink::nvlink, GroupLink::pcie, GroupLink::same_gpu});
}

namespace {

/// Whether each rank of a group gets whole KV heads, or a share of the query heads of one.
Result<void> validate_head_shares(const DecodeProblem& problem) {
  const int ranks = problem.features.context_parallel;
  if (ranks == 1 || problem.features.replicate_output || problem.kv_heads % ranks == 0) return {};
  if (ranks % problem.kv_heads == 0 && problem.q_heads % ranks == 0) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("{} query heads over {} KV heads cannot be dealt to {} ranks", problem.q_heads,
                          problem.kv_heads, ranks),
              "A rank takes whole KV heads, or an equal share of the query heads of one. Set replicate_output, so that "
              "every rank writes all heads.");
}

}  // namespace

Result<void> validate(const DecodeProblem& problem) {
  if (auto ok = check_range("kv_heads", problem.kv_heads, 1, kLargestInt); !ok) return ok;
  if (auto ok = check_range("q_heads", problem.q_heads, 1, kLargestInt); !ok) return ok;
  if (auto ok = check_range("head_dim", problem.head_dim, 1, kLargestInt); !ok) return ok;
  if (problem.q_heads % problem.kv_heads != 0) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} query heads cannot be shared by {} KV heads", problem.q_heads, problem.kv_heads),
                "q_heads must be a multiple of kv_heads.");
  }
  if (auto ok = check_head_dim("head_dim", problem.head_dim, largest_head_dim(problem.features)); !ok) return ok;
  if (const int group = problem.q_heads / problem.kv_heads; group > kLargestGroup) {
    return fail(ErrorCode::unsupported, fmt::format("{} query heads per KV head are not supported", group),
                fmt::format("At most {} are.", kLargestGroup));
  }
  if (auto ok = validate(problem.features); !ok) return ok;
  if (auto ok = validate_for_head(problem.features, problem.head_dim); !ok) return ok;
  if (auto ok = validate_row_format(problem.features, problem.head_dim, problem.dtype); !ok) return ok;
  if (auto ok = validate_nibbles(problem.features, problem.head_dim); !ok) return ok;
  if (auto ok = validate_head_shares(problem); !ok) return ok;
  return check_head_dim("v_head_dim", v_head_dim(problem), kLargestValueDim);
}

Result<void> validate(const DecodeProblem& problem, const Shape& shape) {
  if (auto ok = validate(problem); !ok) return ok;
  if (auto ok = validate_shape(shape); !ok) return ok;
  if (shape.mix != QueryMix{} && !has_prefill(problem.features))
    return fail(ErrorCode::invalid_argument,
                fmt::format("query_tokens is {}, but the problem has no prefill", shape.mix.query_tokens),
                "Leave the mix 0 where requests have up to 16 query tokens each.");
  const std::int64_t requests = std::max(shape.batch, shape.max_batch);
  // A launch says how many rows of prefill it has.
  const std::int64_t rows =
      std::int64_t{problem.q_heads} * (has_prefill(problem.features) ? 1 : problem.features.q_len);
  if (saturating_product(requests, rows) > kLargestInt) {
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("a batch of {} with {} query heads{} overflows 32-bit row numbers", requests, problem.q_heads,
                    rows > problem.q_heads ? fmt::format(" of {} tokens", problem.features.q_len) : ""),
        fmt::format("At most {} requests fit.", kLargestInt / rows));
  }
  // The whole cache counts, not only what a window shows of it, because strides reach over all of it.
  if (bytes_of_tokens(problem, total_tokens(shape)) == kLargest) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("the KV cache of {} tokens overflows 64-bit sizes", total_tokens(shape)),
                "Give a smaller batch or context.");
  }
  return {};
}

std::int64_t total_tokens(const Shape& shape) {
  return shape.total_context != 0 ? shape.total_context : saturating_product(shape.batch, shape.longest_context);
}

Shape canonical(const Shape& shape) {
  Shape result = shape;
  if (shape.max_batch == shape.batch) result.max_batch = 0;
  if (shape.total_context == saturating_product(shape.batch, shape.longest_context)) result.total_context = 0;
  if (shape.mix != QueryMix{}) result.mix = canonical_mix(shape);
  return result;
}

QueryMix canonical_mix(const Shape& shape) {
  const std::int64_t all = total_tokens(shape), batch = shape.batch, longest = shape.longest_context;
  QueryMix mix = shape.mix;
  mix.query_tokens = std::min(mix.query_tokens, all);
  if (mix.query_tokens <= batch || batch < 1 || longest < 2) return {};  // a key is made before the shape is checked
  if (mix.chunks == 0)  // of which each takes longest - 1 tokens beside the one that every request has
    mix.chunks = static_cast<int>(std::clamp<std::int64_t>(divide_up(mix.query_tokens - batch, longest - 1), 1, batch));
  if (mix.chunk_context == 0) mix.chunk_context = std::min(mix.chunks * longest, all - (batch - mix.chunks));
  if (mix.chunk_pairs == 0) {
    const auto count = static_cast<double>(mix.chunks), tokens = static_cast<double>(mix.query_tokens - batch) + count;
    const double pairs = tokens * (static_cast<double>(mix.chunk_context) - (tokens - count) / 2) / count;
    mix.chunk_pairs = static_cast<std::int64_t>(std::min(pairs, 0x1p62));
  }
  return mix;
}

std::int64_t chunk_tokens(const Shape& shape) {
  return shape.mix.query_tokens - (std::int64_t{shape.batch} - shape.mix.chunks);
}

Shape without_max_batch(Shape shape) {
  shape.max_batch = 0;
  return canonical(shape);
}

DecodeProblem canonical(DecodeProblem problem) {
  Features& features = problem.features;
  features.kv_scale = asked_scale(features);
  if (features.v_head_dim == problem.head_dim) features.v_head_dim = 0;
  if (features.rope_dim == turning_dims(features, problem.head_dim)) features.rope_dim = 0;
  if (features.kv_format == KvFormat::same) features.kv_scale = KvScale::tensor;
  if (features.q_len == 1 && features.mask == QueryMask::full) features.mask = QueryMask::causal;
  if (has_prefill(features)) features.q_len = std::max(features.q_len, kMostPrefillTokens);
  if (!in_group(features)) problem.group_link = GroupLink::unknown;
  return problem;
}

DecodeProblem without_group(DecodeProblem problem) {
  const Features none;
  problem.features.context_parallel = none.context_parallel;
  problem.features.context_interleave = none.context_interleave;
  problem.features.context_ranks = none.context_ranks;
  problem.features.replicate_output = none.replicate_output;
  problem.group_link = GroupLink::unknown;
  return problem;
}

DecodeProblem without_pdl(DecodeProblem problem) {
  problem.pdl = false;
  return problem;
}

int v_head_dim(const DecodeProblem& problem) {
  return problem.features.v_head_dim != 0 ? problem.features.v_head_dim : problem.head_dim;
}

namespace {

/// The same of a mixed step, where decodes look back less far than chunks. Chunks count as equal ones.
Shape visible_mixed_shape(const Features& features, const Shape& shape) {
  Shape visible = canonical(shape);
  QueryMix& mix = visible.mix;
  const std::int64_t tokens = chunk_tokens(visible), decodes = visible.batch - mix.chunks,
                     of_decodes = std::max<std::int64_t>(total_tokens(visible) - mix.chunk_context, 0);
  if (features.mask == QueryMask::full)
    mix.chunk_pairs = saturating_product(tokens, divide_up(mix.chunk_context, mix.chunks));
  if (features.window == 0) return visible;
  const auto most = [&](std::int64_t query_tokens) {
    return std::int64_t{features.sink_tokens} + features.window + query_tokens - 1;
  };
  const std::int64_t of_chunk = most(divide_up(tokens, mix.chunks));
  mix.chunk_context = std::min(mix.chunk_context, saturating_product(mix.chunks, of_chunk));
  mix.chunk_pairs = std::min(mix.chunk_pairs, saturating_product(tokens, most(1)));
  visible.total_context = mix.chunk_context + std::min(of_decodes, saturating_product(decodes, most(1)));
  visible.longest_context = std::min({visible.longest_context, of_chunk, visible.total_context});
  return canonical(visible);
}

}  // namespace

Shape visible_shape(const DecodeProblem& problem, const Shape& shape) {
  const Features& features = problem.features;
  if (shape.mix != QueryMix{}) return visible_mixed_shape(features, shape);
  if (features.window == 0) return shape;
  // The first query token looks back furthest.
  const std::int64_t most = most_on_rank(features, features.sink_tokens) +
                            most_on_rank(features, std::int64_t{features.window} + features.q_len - 1);
  const std::int64_t longest = std::min(shape.longest_context, most);
  const std::int64_t others = total_tokens(shape) - shape.longest_context;
  Shape visible = shape;
  visible.longest_context = longest;
  visible.total_context = saturating_sum(longest, std::min(others, saturating_product(shape.batch - 1, most)));
  // No request is longer than the longest one.
  visible.total_context = std::min(visible.total_context, saturating_product(shape.batch, longest));
  return canonical(visible);
}

Shape shape_of(const DecodeProblem& problem, const RequestLengths& lengths) {
  Shape shape{.batch = static_cast<int>(lengths.context_lengths.size()), .longest_context = 1};
  QueryMix mix;
  for (std::size_t i = 0; i < lengths.context_lengths.size(); ++i) {
    const std::int64_t context = std::max(lengths.context_lengths[i], 0);
    shape.longest_context = std::max(shape.longest_context, context);
    shape.total_context = saturating_sum(shape.total_context, context);
    const std::int64_t tokens = lengths.query_tokens.empty() ? 1 : std::int64_t{lengths.query_tokens[i]};
    // No request has more query tokens than its context.
    const std::int64_t own = std::clamp<std::int64_t>(tokens, 1, std::max<std::int64_t>(context, 1));
    mix.query_tokens = saturating_sum(mix.query_tokens, own);
    if (own == 1) continue;
    mix.chunks += 1;
    mix.chunk_context += context;
    mix.chunk_pairs += own * (context - own) + own * (own + 1) / 2;
  }
  // Requests without a token count as one each.
  shape.total_context = std::max(shape.total_context, shape.longest_context);
  if (mix.chunks > 0 && has_prefill(problem.features)) shape.mix = mix;
  return canonical(shape);
}

std::int64_t kv_bytes(const DecodeProblem& problem, const Shape& shape) {
  const int lists = has_selection(problem.features) ? problem.features.q_len : 1;
  return bytes_of_tokens(problem, saturating_product(total_tokens(visible_shape(problem, shape)), lists));
}

std::int64_t kv_bytes(const DecodeProblem& problem, const RequestLengths& lengths) {
  return bytes_of_tokens(problem, visible_tokens(problem, lengths));
}

std::int64_t kv_scale_bytes(const DecodeProblem& problem, const RequestLengths& lengths) {
  const Features& features = problem.features;
  if (!has_token_scales(features) && !has_block_scales(features)) return 0;
  // A key and a value have one each, or one for each of their blocks, and a latent row one for both.
  const std::int64_t bytes_of_row =
      has_block_scales(features) ? kv_encoding(features).block_scale_bytes(problem.head_dim) : sizeof(float);
  const std::int64_t bytes_of_token = (features.latent ? 1 : 2) * bytes_of_row;
  return saturating_product(saturating_product(visible_tokens(problem, lengths), problem.kv_heads), bytes_of_token);
}

double gb_per_s(std::int64_t bytes, double us) { return us > 0 ? static_cast<double>(bytes) / us * 1e-3 : 0; }

std::string to_json(const DecodeProblem& problem) {
  nlohmann::json json{{"q_heads", problem.q_heads},          {"kv_heads", problem.kv_heads},
                      {"head_dim", problem.head_dim},        {"dtype", to_string(problem.dtype)},
                      {"layout", to_string(problem.layout)}, {"lse", problem.lse}};
  if (problem.pdl) json["pdl"] = true;
  if (!is_plain(problem.features)) json["features"] = nlohmann::json::parse(to_json(problem.features));
  if (problem.group_link != GroupLink::unknown) json["group_link"] = to_string(problem.group_link);
  return json.dump();
}

std::string to_json(const Shape& shape) {
  const Shape plain = canonical(shape);
  nlohmann::json json{{"batch", plain.batch},
                      {"max_batch", plain.max_batch},
                      {"longest_context", plain.longest_context},
                      {"total_context", plain.total_context}};
  if (const QueryMix& mix = plain.mix; mix != QueryMix{})
    json["mix"] = {{"query_tokens", mix.query_tokens},
                   {"chunks", mix.chunks},
                   {"chunk_context", mix.chunk_context},
                   {"chunk_pairs", mix.chunk_pairs}};
  return json.dump();
}

std::string to_json(const Config& config) {
  nlohmann::json json{{"grid", config.grid}, {"spec", nlohmann::json::parse(to_json(config.spec))}};
  if (config.segment_cost != 0) json["segment_cost"] = config.segment_cost;
  if (config.l2_promotion != 128) json["l2_promotion"] = config.l2_promotion;
  return json.dump();
}

Result<DecodeProblem> problem_from_json(std::string_view json) {
  Reader reader("problem", json);
  DecodeProblem problem;
  reader.integer("q_heads", problem.q_heads);
  reader.integer("kv_heads", problem.kv_heads);
  reader.integer("head_dim", problem.head_dim);
  reader.name("dtype", problem.dtype, parse_dtype);
  reader.name("layout", problem.layout, parse_kv_layout);
  reader.boolean("lse", problem.lse);
  reader.optional_boolean("pdl", problem.pdl);
  reader.optional_object("features", problem.features, features_from_json);
  reader.optional_name("group_link", problem.group_link, parse_group_link);
  if (reader.error()) return tl::unexpected(*reader.error());
  problem = canonical(std::move(problem));
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  return problem;
}

namespace {

Result<QueryMix> mix_from_json(std::string_view json) {
  Reader reader("mix", json);
  QueryMix mix;
  reader.integer("query_tokens", mix.query_tokens);
  reader.integer("chunks", mix.chunks);
  reader.integer("chunk_context", mix.chunk_context);
  reader.integer("chunk_pairs", mix.chunk_pairs);
  if (reader.error()) return tl::unexpected(*reader.error());
  return mix;
}

}  // namespace

Result<Shape> shape_from_json(std::string_view json) {
  Shape shape;
  if (const auto written = read_written_shape(json)) {
    shape = *written;
  } else {
    Reader reader("shape", json);
    reader.integer("batch", shape.batch);
    reader.integer("max_batch", shape.max_batch);
    reader.integer("longest_context", shape.longest_context);
    reader.integer("total_context", shape.total_context);
    reader.optional_object("mix", shape.mix, mix_from_json);
    if (reader.error()) return tl::unexpected(*reader.error());
  }
  if (auto ok = validate_shape(shape); !ok) return tl::unexpected(ok.error());
  return canonical(shape);
}

Result<Config> config_from_json(std::string_view json) {
  Reader reader("config", json);
  Config config;
  reader.integer("grid", config.grid);
  reader.optional_integer("segment_cost", config.segment_cost);
  reader.optional_integer("l2_promotion", config.l2_promotion);
  const auto spec_text = reader.object("spec");
  if (reader.error()) return tl::unexpected(*reader.error());
  if (auto ok = check_range("grid", config.grid, 1, kLargestInt); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_range("segment_cost", config.segment_cost, 0, kLargestSegmentCost); !ok)
    return tl::unexpected(ok.error());
  auto spec = kernel_spec_from_json(spec_text);
  if (!spec) return tl::unexpected(spec.error());
  if (auto ok = validate(*spec); !ok) return tl::unexpected(ok.error());
  config.spec = *spec;
  if (config.l2_promotion != 128 && (config.l2_promotion != 256 || config.spec.load != LoadPath::tensor))
    return fail(ErrorCode::invalid_argument,
                fmt::format("l2_promotion is {} on load path {}", config.l2_promotion, to_string(config.spec.load)),
                "Give 128, or 256 on load path tensor.");
  return config;
}

}  // namespace v1
}  // namespace leanattn
