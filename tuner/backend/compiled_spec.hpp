// compiled_spec.hpp -- CompiledSpec: what a search needs to know of a kernel that was compiled. Plain data; any thread.
#pragma once

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

struct CompiledSpec {
  int registers = 0;
  int resident = 1;  ///< CTAs that one SM holds
  double compile_ms = 0;
};

/// How a compiled kernel fits this device. Errors: kernel_rejected (it does not fit an SM).
Result<CompiledSpec> fit_on_device(const DeviceFacts& device, const EmittedKernel& emitted,
                                   const CompiledKernel& kernel);

}  // namespace v1
}  // namespace leanattn
