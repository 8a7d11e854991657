// recurrent_case.hpp -- RecurrentCase: the data of one step of operation `recurrent`, on host and device, and the check
// of a kernel on it. One thread at a time, with the GPU's context current.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/recurrent/recurrent_kernel.hpp"
#include "tuner/oracle/case_array.hpp"
#include "tuner/oracle/recurrent_convolution.hpp"
#include "tuner/oracle/recurrent_oracle.hpp"
#include "tuner/oracle/recurrent_ring.hpp"

namespace leanattn {
inline namespace v1 {

struct RecurrentCaseOptions {
  int batch = 3;
  std::uint64_t seed = 1;
  bool padded = false;        ///< rows of q, k, v, gates and o, and slots, are further apart than they are long
  bool null_slots = false;    ///< some requests have null slots, of each kind that there is
  bool zero_is_null = false;  ///< slot 0 is a null slot
  bool moved = false;         ///< states go to other slots than those where they begin; not with a ring
  int launches = 1;           ///< which follow each other with tokens of their own, so that a state's errors add up
};
std::string describe(const RecurrentCaseOptions& options);

/// What a check found.
struct RecurrentOutcome {
  double error_ratio = 0;     ///< the largest error over that of a plain fp32 implementation; at most 2 passes
  std::string first_failure;  ///< empty when it passed

  void fail(std::string text) {
    if (first_failure.empty()) first_failure = std::move(text);
  }
};

class RecurrentCase {
 public:
  /// Errors: those of validate(problem), out_of_memory, context_lost.
  static Result<RecurrentCase> create(const RecurrentProblem& problem, const RecurrentCaseOptions& options,
                                      const Stream& stream);

  /// Launches the kernel on fresh states, and compares outputs and all slots of the pool with the oracle. The
  /// kernel is one of the case's problem. Errors: launch_failed, out_of_memory, context_lost.
  Result<RecurrentOutcome> check(const RecurrentKernel& kernel, const Stream& stream) const;

 private:
  RecurrentCase(const RecurrentProblem& problem, const RecurrentCaseOptions& options)
      : problem_(problem), options_(options) {
    options_.moved &= problem.ring == 0;
  }

  /// What a request's outputs and stored states must be, in one precision.
  template <class Real>
  struct Expected {
    std::vector<Real> o;      ///< [tokens of all requests, v_heads, value_dim]
    std::vector<Real> state;  ///< the pool: [slots, v_heads, value_dim, key_dim]
    RecurrentConvolution::States conv_states;
    RecurrentRing::Values<Real> rings;
  };
  /// q, k and v of a request's tokens in a launch, after the convolution if there is one: [tokens, heads, dim].
  template <class Real>
  using Inputs = std::array<std::vector<Real>, RecurrentConvolution::kParts>;

  /// What a kernel wrote: outputs, and the pool as the case has it.
  struct Got {
    std::vector<std::uint16_t> o;
    std::vector<std::uint32_t> pool;
    std::vector<std::uint16_t> pool16;
    std::array<std::vector<float>, RecurrentRing::kParts> rings;
  };

  void draw();
  Result<void> upload(const Stream& stream);
  LeanRecurrentArgs arguments(const DeviceBuffer& pool, const DeviceBuffer& o, int launch) const;

  template <class Real>
  Inputs<Real> inputs_of(int request, int launch, const Expected<Real>& before) const;
  template <class Real>
  RecurrentToken<Real> token_of(const Inputs<Real>& inputs, int t, std::int64_t token, int head) const;
  /// One head of a request takes all of its tokens.
  template <class Real>
  void take_tokens(const Inputs<Real>& inputs, int request, int head, int launch, Expected<Real>& out) const;
  template <class Real>
  void gate_outputs(int request, int launch, Expected<Real>& out) const;
  template <class Real>
  Expected<Real> expected() const;

  /// Outputs are near the oracle's, those of null slots are zero, and what no token has stays poisoned.
  void compare_outputs(const Got& got, RecurrentOutcome& outcome) const;
  /// States that were stored are near the oracle's, and all others are as they were, to the bit.
  void compare_states(const Got& got, RecurrentOutcome& outcome) const;
  /// The same of the entries of rings.
  void compare_rings(const Got& got, RecurrentOutcome& outcome) const;

  template <class Real>
  std::vector<Real> values_of(const std::vector<std::uint16_t>& from, std::int64_t at, std::int64_t count) const;
  std::int64_t value_at(std::int64_t token, int head) const {
    return token * v_stride_ + std::int64_t{head} * problem_.value_dim;
  }
  double state_value(const std::vector<std::uint32_t>& pool, const std::vector<std::uint16_t>& pool16,
                     std::size_t i) const;
  bool is_null(int slot) const { return slot < first_slot_ || slot >= slot_count_; }
  int tokens_of(int request) const;
  std::int64_t first_token(int request, int launch) const;
  std::int64_t rows() const { return tokens_ * options_.launches; }  ///< of q, k, v, o and gates
  RecurrentConvolution::Request conv_request(int request, int launch) const;
  /// Bits of q, k or v, and from token to token.
  std::pair<std::span<const std::uint16_t>, std::int64_t> rows_of(std::size_t part) const;
  /// Where a request's entry lies in the list of slots.
  std::size_t slot_index(int request, int entry) const;
  /// The slots of a request: where its state begins, and where token t's goes. -1: null, or not stored, as with a ring,
  /// where it is the state before the tokens that is.
  int start_slot(int request) const;
  int slot_after(int request, int token) const;
  std::int64_t state_index(int slot, std::int64_t element) const { return slot * state_stride_ + element; }
  std::int64_t elements_of_slot() const {
    return std::int64_t{problem_.v_heads} * problem_.value_dim * problem_.key_dim;
  }

  RecurrentProblem problem_;
  RecurrentCaseOptions options_;
  int slot_count_ = 0, first_slot_ = 0;
  std::int64_t tokens_ = 0;  ///< of a launch, together with rows that are nobody's
  std::int64_t erase_stride_ = 0, write_stride_ = 0, q_stride_ = 0, v_stride_ = 0, a_stride_ = 0, b_stride_ = 0,
               state_stride_ = 0;
  int slots_stride_ = 1;
  float scale_ = 1, norm_eps_ = 1e-6F, lower_bound_ = -5, output_eps_ = 1e-5F;
  CaseArray<int> slots_, accepted_, offsets_, out_slots_;
  CaseArray<std::uint16_t> erase_, write_, q_, k_, v_, a_, b_, z_;
  CaseArray<float> given_a_, given_b_, a_log_, dt_bias_, skip_, norm_weight_;
  CaseArray<std::uint32_t> pool_;    ///< an fp32 state's bits
  CaseArray<std::uint16_t> pool16_;  ///< a bf16 state's
  RecurrentConvolution convolution_;
  RecurrentRing ring_;
  Expected<double> oracle_;
  Expected<float> plain_;
};

}  // namespace v1
}  // namespace leanattn
