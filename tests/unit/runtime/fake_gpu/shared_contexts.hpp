// shared_contexts.hpp -- Contexts: whole contexts, the parts of the ranks that share them, and attention over any of
// their tokens in FP64. Test code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace leanattn {

inline constexpr double kNothing = -std::numeric_limits<double>::infinity();

inline std::uint16_t to_bf16(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline double from_bf16(std::uint16_t value) {
  const std::uint32_t bits = std::uint32_t{value} << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

/// What an attention over some tokens gives for one row.
struct RowResult {
  std::vector<double> o;
  double lse = kNothing;
};

/// Whole contexts, the parts of the ranks, and what each rank's launch gets.
struct Contexts {
  int ranks = 2, batch = 3, q_len = 1, q_heads = 8, kv_heads = 4, dim = 16, unit = 0;
  bool ragged = false, sinks = false;
  int window = 0, sink_tokens = 0;
  std::vector<int> lengths = {}, counts = {}, offsets = {};  ///< of whole contexts; query tokens of each request
  std::vector<std::uint16_t> q = {};                         ///< [tokens, q_heads, dim]
  std::vector<std::vector<std::uint16_t>> k = {}, v = {};    ///< by request: [length, kv_heads, dim]
  std::vector<float> sink_logits = {};
  struct Part {
    std::vector<std::vector<int>> held;  ///< by request: the tokens of the context that the rank holds
    std::vector<int> lengths, starts;
    std::vector<std::uint16_t> k, v, o;  ///< [batch, kv_heads, capacity, dim]; o [batch, q_len, q_heads, dim]
    std::vector<float> lse;
    int capacity = 1;
  };
  std::vector<Part> parts = {};

  int tokens() const { return batch * q_len; }
  int first(int request) const { return ragged ? offsets[static_cast<std::size_t>(request)] : request * q_len; }
  int count(int request) const { return ragged ? counts[static_cast<std::size_t>(request)] : q_len; }

  void make(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<std::uint16_t>& to, std::size_t size) {
      to.resize(size);
      for (auto& x : to) x = to_bf16(normal(random));
    };
    lengths.clear(), counts.clear(), offsets = {0}, parts.assign(static_cast<std::size_t>(ranks), {});
    for (int r = 0; r < batch; ++r) {
      counts.push_back(ragged ? static_cast<int>(random() % static_cast<unsigned>(q_len + 1)) : q_len);
      offsets.push_back(offsets.back() + counts.back());
      // The last request is so short that some rank holds nothing of it.
      lengths.push_back(r + 1 == batch ? counts.back() : counts.back() + static_cast<int>(random() % 70));
    }
    const auto columns = static_cast<std::size_t>(kv_heads * dim);
    fill(q, static_cast<std::size_t>(tokens() * q_heads * dim));
    k.assign(static_cast<std::size_t>(batch), {}), v = k;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      fill(k[r], static_cast<std::size_t>(lengths[r]) * columns);
      fill(v[r], static_cast<std::size_t>(lengths[r]) * columns);
    }
    sink_logits.resize(static_cast<std::size_t>(q_heads));
    for (auto& x : sink_logits) x = static_cast<float>(normal(random));
    deal(random);
  }
  void deal(std::mt19937& random) {
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<int> cuts{0};
      for (int rank = 1; rank < ranks; ++rank)
        cuts.push_back(static_cast<int>(random() % static_cast<unsigned>(lengths[r] + 1)));
      std::sort(cuts.begin(), cuts.end());
      cuts.push_back(lengths[r]);
      for (int rank = 0; rank < ranks; ++rank) {
        Part& part = parts[static_cast<std::size_t>(rank)];
        const auto at = static_cast<std::size_t>(rank);
        part.held.emplace_back();
        for (int token = 0; token < lengths[r]; ++token) {
          const bool mine = unit > 0 ? token / unit % ranks == rank : token >= cuts[at] && token < cuts[at + 1];
          if (mine) part.held.back().push_back(token);
        }
        part.lengths.push_back(static_cast<int>(part.held.back().size()));
        part.starts.push_back(cuts[at]);
        part.capacity = std::max(part.capacity, part.lengths.back());
      }
    }
    for (Part& part : parts) {
      const auto elements = static_cast<std::size_t>(batch * kv_heads * part.capacity * dim);
      part.k.assign(elements, 0x7fc0), part.v = part.k;  // NaN where nobody may read
      for (int r = 0; r < batch; ++r)
        for (int head = 0; head < kv_heads; ++head)
          for (std::size_t i = 0; i < part.held[static_cast<std::size_t>(r)].size(); ++i)
            for (int d = 0; d < dim; ++d) {
              const auto to =
                  (static_cast<std::size_t>(r * kv_heads + head) * static_cast<std::size_t>(part.capacity) + i) *
                      static_cast<std::size_t>(dim) +
                  static_cast<std::size_t>(d);
              part.k[to] = key(k, r, head, part.held[static_cast<std::size_t>(r)][i], d);
              part.v[to] = key(v, r, head, part.held[static_cast<std::size_t>(r)][i], d);
            }
      part.o.assign(static_cast<std::size_t>(tokens() * q_heads * dim), 0x7fc0);
      part.lse.assign(static_cast<std::size_t>(tokens() * q_heads), NAN);
    }
  }
  std::uint16_t key(const std::vector<std::vector<std::uint16_t>>& cache, int request, int head, int token,
                    int d) const {
    return cache[static_cast<std::size_t>(request)][static_cast<std::size_t>((token * kv_heads + head) * dim + d)];
  }
  /// Attention of a query token and head over those of `seen` tokens of the whole context.
  RowResult attend(int request, int t, int head, const std::vector<int>& seen, bool with_sink) const {
    RowResult row;
    row.o.assign(static_cast<std::size_t>(dim), 0);
    const int kv_head = head / (q_heads / kv_heads);
    const double sink = with_sink ? sink_logits[static_cast<std::size_t>(head)] : kNothing;
    std::vector<double> scores;
    double most = sink;
    for (const int token : seen) {
      double dot = 0;
      for (int d = 0; d < dim; ++d)
        dot += from_bf16(q[static_cast<std::size_t>(((first(request) + t) * q_heads + head) * dim + d)]) *
               from_bf16(key(k, request, kv_head, token, d));
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
      most = std::max(most, scores.back());
    }
    if (most == kNothing) return row;
    double sum = with_sink ? std::exp(sink - most) : 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double weight = std::exp(scores[i] - most);
      sum += weight;
      for (int d = 0; d < dim; ++d)
        row.o[static_cast<std::size_t>(d)] += weight * from_bf16(key(v, request, kv_head, seen[i], d));
    }
    for (double& x : row.o) x /= sum;
    row.lse = most + std::log(sum);
    return row;
  }
  /// What a query token sees of the whole context.
  std::vector<int> seen_by(int request, int t) const {
    std::vector<int> seen;
    const int length = lengths[static_cast<std::size_t>(request)];
    for (int token = 0; token < length; ++token) {
      if (sees(request, t, token)) seen.push_back(token);
    }
    return seen;
  }
  bool sees(int request, int t, int token) const {
    const int position = lengths[static_cast<std::size_t>(request)] - count(request) + t;
    return token <= position && (window == 0 || token > position - window || token < sink_tokens);
  }
  bool depends_on_positions() const { return q_len > 1 || window > 0; }
};

}  // namespace leanattn
