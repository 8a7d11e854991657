// recurrent_memory.hpp -- RecurrentMemory: what timed launches of operation `recurrent` read and write. One thread,
// with the GPU's context current. Internal to this folder.
#pragma once

#include <cstdint>

#include "runtime/recurrent/recurrent_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// States of all copies, and inputs and outputs of each.
class RecurrentMemory {
 public:
  static Result<RecurrentMemory> make(const RecurrentProblem& problem, int batch, int copies, const Stream& stream);

  LeanRecurrentArgs args(int copy) const;
  void* states(int copy) const { return pool_.at(copy * bytes_of_copy_); }
  std::int64_t state_bytes_of_launch() const { return std::int64_t{batch_} * state_bytes(problem_); }

 private:
  RecurrentMemory(const RecurrentProblem& problem, int batch) : problem_(problem), batch_(batch) {}
  int slots_of_request() const { return problem_.snapshots ? problem_.tokens : 1; }
  /// Of q, k and v together.
  std::int64_t channels() const {
    return std::int64_t{2} * problem_.qk_heads * problem_.key_dim + std::int64_t{problem_.v_heads} * problem_.value_dim;
  }

  RecurrentProblem problem_;
  int batch_;
  std::int64_t bytes_of_copy_ = 0;
  DeviceBuffer pool_, slots_, offsets_, inputs_, gates_, o_, z_, constants_, conv_states_, conv_weights_, readers_,
      erasures_, ring_spans_, ring_u_, ring_k_, ring_w_;
};

}  // namespace v1
}  // namespace leanattn
