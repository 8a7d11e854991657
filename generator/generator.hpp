// generator.hpp -- KernelSpec -> CUDA source. Pure function of the spec; any thread; knows no driver and no database.
#pragma once

#include <span>
#include <string>

#include "generator/kernel_spec.hpp"
#include "generator/templates.hpp"

namespace leanattn {
inline namespace v1 {

/// One flat translation unit without includes, and what a host needs to launch it.
struct EmittedKernel {
  KernelSpec spec;
  std::string source;    ///< same bytes for the same spec; compiles under NVRTC and `nvcc -cubin`
  std::string entry;     ///< extern "C" symbol of the kernel
  int threads = 0;       ///< CTA size
  int shared_bytes = 0;  ///< dynamic shared memory to launch with
};

/// Errors: those of validate(spec).
Result<EmittedKernel> emit(const KernelSpec& spec);

/// Content hash (XXH3-128, hex) over all templates and the generator's own version: provenance of results, and what
/// makes winners stale. Lines that are empty or hold nothing but a comment do not count: no kernel depends on them.
/// Computed once a process.
const std::string& generator_revision();
/// The hash over other templates. Exposed for tests.
std::string revision_of(std::span<const EmbeddedTemplate> templates);

}  // namespace v1
}  // namespace leanattn
