// matrix.hpp -- the warpgroup matrix instructions that a warp has issued and not waited for.
#pragma once

#include "tests/emulator/machine.hpp"

namespace emulator {

/// Faults where an instruction uses an accumulator of a matrix instruction that may not be done.
void check_pending(Warp& w, const Instruction& in);

}  // namespace emulator
