// oracle.cpp -- two passes in double: scores and their max, then weights, sum and O.
#include "tuner/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>
#include <thread>

namespace leanattn {
inline namespace v1 {

OracleOutput oracle(const AttentionRows& input) {
  const auto head_dim = static_cast<std::size_t>(input.head_dim);
  const auto rows = static_cast<std::size_t>(input.rows);
  const auto context = static_cast<std::size_t>(std::max<std::int64_t>(input.context_length, 0));
  assert(input.q.size() >= rows * head_dim && input.k.size() >= context * head_dim &&
         input.v.size() >= context * head_dim);

  OracleOutput output{std::vector<double>(rows * head_dim, 0.0),
                      std::vector<double>(rows, -std::numeric_limits<double>::infinity())};
  if (context == 0) return output;
  std::vector<double> weights(context);
  for (std::size_t row = 0; row < rows; ++row) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t token = 0; token < context; ++token) {
      double score = 0;
      for (std::size_t i = 0; i < head_dim; ++i) score += input.q[row * head_dim + i] * input.k[token * head_dim + i];
      weights[token] = score * input.scale;
      largest = std::max(largest, weights[token]);
    }
    double sum = 0;
    double* o = output.o.data() + row * head_dim;
    for (std::size_t token = 0; token < context; ++token) {
      const double weight = std::exp(weights[token] - largest);
      sum += weight;
      for (std::size_t i = 0; i < head_dim; ++i) o[i] += weight * input.v[token * head_dim + i];
    }
    for (std::size_t i = 0; i < head_dim; ++i) o[i] /= sum;
    output.lse[row] = largest + std::log(sum);
  }
  return output;
}

OracleOutput oracle_of_data(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale, int request,
                            int kv_head, std::int64_t context_length) {
  const int group = problem.q_heads / problem.kv_heads;
  const std::int64_t context = std::max<std::int64_t>(context_length, 0);
  const auto element = [&](DataTensor tensor, int head, std::int64_t token, int column) {
    return value_of(problem.dtype,
                    data_bits(kind, seed, tensor, problem.dtype, request, head, token, column, problem.head_dim));
  };
  std::vector<double> q, k, v;
  q.reserve(static_cast<std::size_t>(group) * static_cast<std::size_t>(problem.head_dim));
  k.reserve(static_cast<std::size_t>(context) * static_cast<std::size_t>(problem.head_dim));
  v.reserve(k.capacity());
  for (int row = 0; row < group; ++row) {
    for (int column = 0; column < problem.head_dim; ++column)
      q.push_back(element(DataTensor::q, kv_head * group + row, 0, column));
  }
  for (std::int64_t token = 0; token < context; ++token) {
    for (int column = 0; column < problem.head_dim; ++column) {
      k.push_back(element(DataTensor::k, kv_head, token, column));
      v.push_back(element(DataTensor::v, kv_head, token, column));
    }
  }
  return oracle(
      {.rows = group, .head_dim = problem.head_dim, .context_length = context, .scale = scale, .q = q, .k = k, .v = v});
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
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < std::min<std::size_t>(cores, tasks); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return output;
}

double scale_of_argument(float scale_log2) { return static_cast<double>(scale_log2) * std::numbers::ln2; }

float scale_argument(double scale) { return static_cast<float>(scale * std::numbers::log2e); }

}  // namespace v1
}  // namespace leanattn
