// oracle.cpp -- two passes in double: the first finds scores and their maximum, the second weights, their sum and O.
#include "tuner/oracle/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>
#include <thread>

#include "generator/kv_encoding.hpp"
#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether query token t of n sees token j of `context`. tree_word has a bit for each query token that t sees. span:
/// the one that t is in.
bool sees(const Features& features, std::int64_t context, int n, int t, std::uint32_t tree_word, const LeanSpan& span,
          std::int64_t j) {
  const std::int64_t before = context - n, position = before + t;
  const QueryMask mask = features.q_len > 1 ? features.mask : QueryMask::causal;
  if (mask == QueryMask::tree) return j < before || (tree_word >> (j - before)) % 2 == 1;
  if (j >= span.first && j < span.end) return true;
  if (mask == QueryMask::causal && j > position) return false;
  return features.window == 0 || j < features.sink_tokens || std::abs(j - position) < features.window;
}

}  // namespace

OracleOutput oracle(const AttentionRows& input) {
  const auto head_dim = static_cast<std::size_t>(input.head_dim);
  const auto v_head_dim = input.v_head_dim > 0 ? static_cast<std::size_t>(input.v_head_dim) : head_dim;
  const auto rows = static_cast<std::size_t>(input.rows);
  const auto context = static_cast<std::size_t>(std::max<std::int64_t>(input.context_length, 0));
  assert(input.q.size() >= rows * head_dim && input.k.size() >= context * head_dim &&
         input.v.size() >= context * v_head_dim);

  OracleOutput output{std::vector<double>(rows * v_head_dim, 0.0), std::vector<double>(rows, -kInfinity)};
  std::vector<double> weights(context);
  for (std::size_t row = 0; row < rows; ++row) {
    const double sink = input.sink_logits.empty() ? -kInfinity : input.sink_logits[row];
    double largest = -kInfinity;
    for (std::size_t token = 0; token < context; ++token) {
      double score = 0;
      for (std::size_t i = 0; i < head_dim; ++i) score += input.q[row * head_dim + i] * input.k[token * head_dim + i];
      score *= input.scale;
      if (input.transform) score = input.transform(score, static_cast<int>(row), static_cast<std::int64_t>(token));
      weights[token] = score;
      largest = std::max(largest, score);
    }
    output.lse[row] = sink;
    if (largest == -kInfinity) continue;
    largest = std::max(largest, sink);
    double sum = std::exp(sink - largest);
    double* o = output.o.data() + row * v_head_dim;
    for (std::size_t token = 0; token < context; ++token) {
      const double weight = std::exp(weights[token] - largest);
      sum += weight;
      for (std::size_t i = 0; i < v_head_dim; ++i) o[i] += weight * input.v[token * v_head_dim + i];
    }
    for (std::size_t i = 0; i < v_head_dim; ++i) o[i] /= sum;
    output.lse[row] = largest + std::log(sum);
  }
  return output;
}

std::int64_t shared_tokens(const Features& features, int shared_prefix, std::int64_t context_of_request_0) {
  if (features.page_size == 0) return 0;
  const std::int64_t tokens = std::clamp<std::int64_t>(context_of_request_0, 0, shared_prefix);
  return tokens - tokens % features.page_size;
}

OracleOutput oracle_of_data(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale, int request,
                            int kv_head, std::int64_t context_length, const OracleRequest& details) {
  const Features& features = problem.features;
  const int group = problem.q_heads / problem.kv_heads;
  const int n = details.query_tokens < 0 ? features.q_len : details.query_tokens;
  const int v_head_dim = features.v_head_dim > 0 ? features.v_head_dim : problem.head_dim;
  const std::int64_t context = std::max<std::int64_t>(context_length, 0);
  std::vector<double> q, k, v, sinks;
  q.reserve(static_cast<std::size_t>(n * group) * static_cast<std::size_t>(problem.head_dim));
  k.reserve(static_cast<std::size_t>(context) * static_cast<std::size_t>(problem.head_dim));
  v.reserve(static_cast<std::size_t>(context) * static_cast<std::size_t>(v_head_dim));
  for (int t = 0; t < n; ++t) {
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int column = 0; column < problem.head_dim; ++column)
        q.push_back(value_of(problem.dtype, data_query_bits(kind, seed, features, problem.dtype, request, head, t,
                                                            column, problem.head_dim)));
      if (features.sink_logits) sinks.push_back(data_sink_logit(seed, head));
    }
  }
  const KvElement element = kv_encoding(features).element;
  const auto append = [&](std::vector<double>& to, DataTensor tensor, std::int64_t at, int columns) {
    // Tokens of the second cache stand behind those of the context.
    const std::int64_t token = at < context ? at : at - context;
    const int owner = at >= context ? request + kSecondRequest : at < details.shared_tokens ? 0 : request;
    const float scale = data_kv_scale(kind, seed, tensor, features, owner, kv_head, token);
    for (int column = 0; column < columns; ++column) {
      if (row_format(features) != nullptr) {
        to.push_back(data_row_value(kind, seed, features, owner, kv_head, token, column, columns));
        continue;
      }
      to.push_back(element == KvElement::of_q
                       ? value_of(problem.dtype,
                                  data_bits(kind, seed, tensor, problem.dtype, owner, kv_head, token, column, columns))
                       : scaled_value(element,
                                      data_byte(kind, seed, tensor, element, owner, kv_head, token, column, columns),
                                      scale) *
                             data_block_scale(kind, seed, tensor, features, owner, kv_head, token, column));
    }
  };
  const std::int64_t second = features.second_cache ? details.second_capacity : 0;
  for (std::int64_t token = 0; token < context + second; ++token) {
    append(k, features.latent ? DataTensor::latent : DataTensor::k, token, problem.head_dim);
    if (features.latent) {
      v.insert(v.end(), k.end() - problem.head_dim, k.end() - problem.head_dim + v_head_dim);
    } else {
      append(v, DataTensor::v, token, v_head_dim);
    }
  }
  std::vector<std::uint32_t> words;
  words.reserve(static_cast<std::size_t>(n));
  for (int t = 0; t < n; ++t) words.push_back(features.mask == QueryMask::tree ? data_tree_word(seed, request, t) : 0u);
  // Which tokens each query token has selected.
  std::vector<std::vector<bool>> selected(has_selection(features) ? static_cast<std::size_t>(n) : 0);
  for (std::size_t t = 0; t < selected.size(); ++t) {
    selected[t].resize(static_cast<std::size_t>(context));
    const std::int64_t block = features.selection_block;
    for (const int entry :
         data_selection(seed, features, details.selection, request, kv_head, static_cast<int>(t), context)) {
      for (std::int64_t token = entry * block; entry >= 0 && token < std::min((entry + 1) * block, context); ++token)
        selected[t][static_cast<std::size_t>(token)] = true;
    }
  }
  AttentionRows rows{.rows = n * group,
                     .head_dim = problem.head_dim,
                     .context_length = context + second,
                     .scale = scale,
                     .q = q,
                     .k = k,
                     .v = v,
                     .v_head_dim = v_head_dim,
                     .transform = {},
                     .sink_logits = sinks};
  if (!is_plain(features)) {
    rows.transform = [&](double score, int row, std::int64_t token) {
      const int t = row / group, head = kv_head * group + row % group;
      const auto position = static_cast<int>(context - n + t), index = static_cast<int>(token);
      if (token >= context) {
        const std::int64_t in_second = token - context;
        const bool hole = details.hole_every > 0 && data_is_hole(seed, request + kSecondRequest,
                                                                 in_second / features.page_size, details.hole_every);
        if (hole || in_second >= data_second_length(seed, request, t, details.second_capacity)) return -kInfinity;
        return features.soft_cap > 0 ? features.soft_cap * std::tanh(score / features.soft_cap) : score;
      }
      const LeanSpan span = features.spans ? data_span(seed, request, position) : LeanSpan{};
      if (!features.selection_in_pool &&
          !sees(features, context, n, t, words[static_cast<std::size_t>(t)], span, token))
        return -kInfinity;
      if (!selected.empty() && !selected[static_cast<std::size_t>(t)][static_cast<std::size_t>(token)])
        return -kInfinity;
      if (details.hole_every > 0 && data_is_hole(seed, request, token / features.page_size, details.hole_every))
        return -kInfinity;
      if (features.soft_cap > 0) score = features.soft_cap * std::tanh(score / features.soft_cap);
      if (features.alibi) score += static_cast<double>(data_alibi_slope(seed, head)) * (index - position);
      return details.score ? details.score(score, position, index, head) : score;
    };
  }
  return oracle(rows);
}

OracleOutput oracle_of_batch(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale,
                             std::span<const int> context_lengths, int threads) {
  const std::size_t group = static_cast<std::size_t>(problem.q_heads / problem.kv_heads);
  const std::size_t head_dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t tasks = context_lengths.size() * static_cast<std::size_t>(problem.kv_heads);
  OracleOutput output{std::vector<double>(tasks * group * head_dim), std::vector<double>(tasks * group)};
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t task = next++; task < tasks; task = next++) {
      const std::size_t request = task / static_cast<std::size_t>(problem.kv_heads);
      const int kv_head = static_cast<int>(task % static_cast<std::size_t>(problem.kv_heads));
      const OracleOutput part =
          oracle_of_data(problem, kind, seed, scale, static_cast<int>(request), kv_head, context_lengths[request]);
      std::copy(part.o.begin(), part.o.end(), output.o.begin() + static_cast<std::ptrdiff_t>(task * group * head_dim));
      std::copy(part.lse.begin(), part.lse.end(), output.lse.begin() + static_cast<std::ptrdiff_t>(task * group));
    }
  };
  const unsigned cores =
      threads > 0 ? static_cast<unsigned>(threads) : std::max(1u, std::thread::hardware_concurrency());
  ThreadGroup helpers;
  helpers.start(std::min<std::size_t>(cores, std::max<std::size_t>(tasks, 1)) - 1, work);
  work();
  helpers.join();
  return output;
}

double scale_of_argument(float scale_log2) { return static_cast<double>(scale_log2) * std::numbers::ln2; }

float scale_argument(double scale) { return static_cast<float>(scale * std::numbers::log2e); }

}  // namespace v1
}  // namespace leanattn
