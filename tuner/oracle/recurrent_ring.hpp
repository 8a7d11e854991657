// recurrent_ring.hpp -- RecurrentRing: the rings of a case's slots, on host and device, the spans of its launches, and
// what a kernel leaves in them. One thread at a time, with the GPU's context current.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/recurrent/recurrent_kernel.hpp"
#include "tuner/oracle/case_array.hpp"
#include "tuner/oracle/recurrent_oracle.hpp"

namespace leanattn {
inline namespace v1 {

class RecurrentRing {
 public:
  static constexpr std::size_t kParts = 3;  ///< u, k and w

  /// What the rings hold, in one precision. What no token has written is not a number.
  template <class Real>
  using Values = std::array<std::vector<Real>, kParts>;

  /// The entries of a request that count before a launch.
  struct Span {
    int first = 0, count = 0;
  };

  /// Copies that a kernel changes.
  struct Run {
    std::array<DeviceBuffer, kParts> parts;
  };

  /// Draws the spans before the first launch, and the entries that count then. All others are not numbers. `slots` has
  /// each request's slot, -1 where it is null, and `tokens` how many tokens it has. How many of them are accepted after
  /// each launch is drawn, too, and the next spans follow by the rule of engines.
  void draw(const RecurrentProblem& problem, const std::vector<int>& slots, const std::vector<int>& tokens,
            int launches, int slot_count, bool padded, std::mt19937_64& random);
  Result<void> upload(const Stream& stream);

  Span span(int request, int launch) const {
    const std::size_t at = 2 * (static_cast<std::size_t>(launch) * requests_ + static_cast<std::size_t>(request));
    return {spans_.host[at], spans_.host[at + 1]};
  }
  /// Whether a launch stores the request's state after the replay.
  bool flushes(int request, int launch) const {
    return tokens_[static_cast<std::size_t>(request)] > 0 &&
           span(request, launch).count + 2 * problem_.tokens > problem_.ring;
  }

  /// What the rings hold before the first launch.
  template <class Real>
  Values<Real> fresh() const;
  /// Entry i behind the first one of a span, of one head of v, and what a token puts there.
  template <class Real>
  RecurrentEntry<Real> entry(const Values<Real>& values, int slot, const Span& span, int i, int head) const;
  template <class Real>
  void put(Values<Real>& values, int slot, const Span& span, int i, int head, const RecurrentEntry<Real>& entry) const;

  /// Errors: out_of_memory, context_lost.
  Result<Run> start(const Stream& stream) const;
  void bind(const Run& run, int launch, LeanRecurrentArgs& args) const;
  /// What a kernel has left in the rings.
  Result<std::array<std::vector<float>, kParts>> read(const Run& run, const Stream& stream) const;

  /// Elements of a slot, and from slot to slot.
  std::size_t elements(std::size_t part) const { return static_cast<std::size_t>(of_entry_[part] * problem_.ring); }
  std::size_t stride(std::size_t part) const { return static_cast<std::size_t>(strides_[part]); }
  const std::vector<float>& drawn(std::size_t part) const { return parts_[part].host; }

 private:
  /// Where a head's part of an entry lies, and how long it is.
  std::size_t at(std::size_t part, int slot, const Span& span, int i, int head) const;
  std::size_t of_head(std::size_t part) const;

  RecurrentProblem problem_;
  std::size_t requests_ = 0;
  std::vector<int> tokens_;
  std::array<std::int64_t, kParts> of_entry_ = {}, strides_ = {};
  std::array<CaseArray<float>, kParts> parts_;
  CaseArray<int> spans_;  ///< [launches, requests, 2]
};

}  // namespace v1
}  // namespace leanattn
