// generator.hpp -- KernelSpec -> CUDA source. Pure function of the spec; any thread; knows no driver and no database.
#pragma once

#include <cstdint>
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

/// Kernels that show where the time of a launch goes are for measurements: their results are of no use.
enum class KernelVariant : std::uint8_t {
  whole,
  unmerged,  ///< ends once its partials are stored. Output tiles that several CTAs share are not written, and the
             ///< workspace is not left zeroed as the next launch expects it
  stamped,   ///< writes clock stamps to args.lse (templates/stamps.cuh). The spec has no LSE
};

/// Errors: those of validate(spec); invalid_argument for stamps of a kernel with LSE.
Result<EmittedKernel> emit(const KernelSpec& spec, KernelVariant variant = KernelVariant::whole);

/// Content hash (XXH3-64, hex) over what a kernel is made of: the code of its modules, and its constants. A winner is
/// stale where its kernel has another one by now. The spec must be valid. Some tens of microseconds: no source is
/// emitted.
std::string kernel_revision(const KernelSpec& spec);

/// Content hash (XXH3-128, hex) over all templates and the generator's own version: provenance of results, and what
/// says whether two libraries are alike. Lines that are empty or hold nothing but a comment do not count: no kernel
/// depends on them. Computed once a process.
const std::string& generator_revision();
/// The hash over other templates. Exposed for tests.
std::string revision_of(std::span<const EmbeddedTemplate> templates);

}  // namespace v1
}  // namespace leanattn
