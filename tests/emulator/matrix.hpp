// matrix.hpp -- the warpgroup matrix instructions that a warp has issued and not waited for.
#pragma once

#include <deque>
#include <unordered_map>

#include "tests/emulator/machine.hpp"

namespace emulator {

/// A matrix instruction, or the copy of an accumulator, that is still to be executed.
struct MatrixWork {
  const Instruction* in = nullptr;
  std::uint64_t group = 0;
  std::uint64_t a_descriptor = 0, b_descriptor = 0;
  bool accumulates = false;
  bool is_copy = false;
  std::array<std::array<float, 16>, 16> a;  ///< where A comes from registers, which are read when it is issued
};

struct MatrixQueue {
  std::uint64_t group = 0;  ///< to which instructions are added
  std::deque<MatrixWork> work;
  std::unordered_map<Operand, std::uint64_t> pending;  ///< registers, and the groups that must be waited for
};

/// Faults where an instruction uses an accumulator that may not be there yet. A copy of one is made when it is there,
/// because the compiler may give both the same register: true, where it is still to be made.
bool defers(Warp& w, const Instruction& in);

/// The handler of copies of 32 bits, and of matrix instructions.
extern const Handler kCopy32;

}  // namespace emulator
