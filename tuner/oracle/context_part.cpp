// context_part.cpp -- deals the tokens of contexts to the ranks of a group.
#include "tuner/oracle/context_part.hpp"

#include <algorithm>
#include <random>

#include "tuner/oracle/decode_case_detail.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Tokens of a context of `length` that a rank holds where units go in turn.
int interleaved_length(int length, int unit, int ranks, int rank) {
  const int round = unit * ranks;
  return length / round * unit + std::clamp(length % round - rank * unit, 0, unit);
}

}  // namespace

HeldTokens held_tokens(const ContextPart& part, std::span<const int> contexts, std::uint64_t seed) {
  const int ranks = part.ranks;
  const auto own = static_cast<std::size_t>(part.rank);
  std::mt19937_64 random(seed);
  HeldTokens held;
  for (std::size_t request = 0; request < contexts.size(); ++request) {
    const int length = contexts[request], number = static_cast<int>(request);
    // Where the parts begin: contiguous ones are cut anywhere, or one rank has all.
    std::vector<int> cuts{0};
    for (int rank = 1; rank < ranks; ++rank) {
      const int anywhere = static_cast<int>(random() % static_cast<unsigned>(length + 1));
      cuts.push_back(part.even || number % 4 == 0 ? static_cast<int>(std::int64_t{length} * rank / ranks)
                     : number % 4 == 1            ? (rank <= number / 4 % ranks ? 0 : length)
                                                  : anywhere);
    }
    cuts.push_back(length);
    std::sort(cuts.begin(), cuts.end());
    const bool in_turn = part.interleave > 0;
    held.starts.push_back(in_turn ? 0 : cuts[own]);
    held.lengths.push_back(in_turn ? interleaved_length(length, part.interleave, ranks, part.rank)
                                   : cuts[own + 1] - cuts[own]);
  }
  return held;
}

std::int64_t held_capacity(const ContextPart& part, int context_capacity) {
  constexpr int kBehind = 8, kStep = 16;  // tokens of NaN behind an even part at least
  if (part.ranks == 1 || !part.even) return context_capacity;
  const int most = part.interleave > 0 ? interleaved_length(context_capacity, part.interleave, part.ranks, 0)
                                       : (context_capacity + part.ranks - 1) / part.ranks;
  return decode_case_detail::round_up(most + kBehind, kStep);
}

}  // namespace v1
}  // namespace leanattn
