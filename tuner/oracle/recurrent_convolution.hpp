// recurrent_convolution.hpp -- RecurrentConvolution: the short convolution in front of the steps of a case: its data,
// and what comes out of it. One thread at a time, with the GPU's context current.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "generator/recurrent/recurrent_problem.hpp"
#include "runtime/recurrent/recurrent_kernel.hpp"
#include "tuner/oracle/case_array.hpp"

namespace leanattn {
inline namespace v1 {

class RecurrentConvolution {
 public:
  static constexpr std::size_t kParts = 3;  ///< q, k and v
  /// The states of all parts, as bits, which a step only moves.
  using States = std::array<std::vector<std::uint16_t>, kParts>;

  /// Which tokens of which request a step takes.
  struct Request {
    int from, to;  ///< slots of the state; -1: null
    int past;      ///< the first token of the state that counts
    int tokens;
    std::int64_t first_token;  ///< row of the first one
  };

  /// `padded` states have tokens outside of channels, and room between all.
  void draw(const RecurrentProblem& problem, int batch, int slot_count, bool padded, std::mt19937_64& random);
  Result<void> upload(const Stream& stream);
  const States& fresh() const { return fresh_; }

  /// What becomes of a part's channels, [tokens, channels]. `rows` are those of q, k or v, by their stride.
  template <class Real>
  std::vector<Real> values(std::size_t part, const States& states, const Request& request,
                           std::span<const std::uint16_t> rows, std::int64_t row_stride) const;
  /// Takes the step's tokens into the states.
  void take(std::size_t part, States& states, const Request& request, std::span<const std::uint16_t> rows,
            std::int64_t row_stride) const;

  /// What a run of a kernel changes: the states, and the counters of those that have read them.
  struct Run {
    std::array<DeviceBuffer, kParts> states;
    DeviceBuffer readers;
  };
  Result<Run> start(const Stream& stream) const;
  void bind(const Run& run, LeanRecurrentArgs& args) const;
  /// What is wrong with the states after a run, or "".
  Result<std::string> compare(const Run& run, const States& right, const Stream& stream) const;

 private:
  struct Part {
    int channels = 0;
    std::int64_t slot_stride = 0, channel_stride = 0, token_stride = 0;
    CaseArray<std::uint16_t> weight, bias;

    std::size_t at(int slot, int channel, int token) const {
      return static_cast<std::size_t>(slot * slot_stride + channel * channel_stride + token * token_stride);
    }
  };
  /// What the sums of a channel read: the state's tokens, then the step's.
  std::vector<std::uint16_t> seen(std::size_t part, const States& states, const Request& request, int channel,
                                  std::span<const std::uint16_t> rows, std::int64_t row_stride) const;

  int width_ = 0;
  bool snapshots_ = false;
  DType dtype_ = DType::bf16;
  std::array<Part, kParts> parts_;
  States fresh_;
  std::int64_t counters_ = 0;
};

}  // namespace v1
}  // namespace leanattn
