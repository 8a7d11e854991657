// context_part.hpp -- ContextPart: which tokens of each context a decode case has, where the ranks of a group share
// contexts. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace leanattn {
inline namespace v1 {

struct ContextPart {
  int rank = 0, ranks = 1;  ///< one rank has all
  int interleave = 0;       ///< tokens of a unit, dealt in turn; 0: contiguous parts
  /// Contiguous parts are cut evenly, and each rank has room for just its share, so that all ranks have equal work.
  /// Otherwise request 0 is dealt evenly, request 1 lies on one rank only, others are cut anywhere, and so on.
  bool even = false;
};

/// The tokens of requests that a rank has: how many, and, of contiguous parts, from which one on.
struct HeldTokens {
  std::vector<int> lengths, starts;
};
/// contexts: the lengths of whole contexts, not below 0. seed: of the cuts, the same on all ranks.
HeldTokens held_tokens(const ContextPart& part, std::span<const int> contexts, std::uint64_t seed);

/// The tokens of a request for which a rank has room, where contexts have up to `context_capacity`.
std::int64_t held_capacity(const ContextPart& part, int context_capacity);

}  // namespace v1
}  // namespace leanattn
