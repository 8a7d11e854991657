#include "tuner/backend/compiled_spec.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {

Result<CompiledSpec> fit_on_device(const DeviceFacts& device, const EmittedKernel& emitted,
                                   const CompiledKernel& kernel) {
  const int registers = kernel.resources.registers;
  const int resident = resident_ctas_per_sm(device, registers, emitted.threads,
                                            emitted.shared_bytes + kernel.resources.static_shared_bytes);
  if (resident < 1) {
    return fail(ErrorCode::kernel_rejected,
                fmt::format("{} does not fit an SM: {} registers x {} threads, {} bytes of shared memory",
                            emitted.entry, registers, emitted.threads, emitted.shared_bytes));
  }
  return CompiledSpec{.registers = registers, .resident = resident, .compile_ms = kernel.compile_ms};
}

}  // namespace v1
}  // namespace leanattn
