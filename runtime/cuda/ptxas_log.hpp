// ptxas_log.hpp -- KernelResources: what the log of a compilation says about a kernel. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// What ptxas reports about a kernel. For a source with several kernels, spills are summed up, and of everything else
/// this is the largest.
struct KernelResources {
  int registers = 0;                ///< of a thread
  int spill_store_bytes = 0;        ///< of a thread
  int spill_load_bytes = 0;         ///< of a thread
  int stack_bytes = 0;              ///< of a thread
  int static_shared_bytes = 0;      ///< of a CTA, besides the dynamic part
  bool wgmma_serialized = false;    ///< a warning from C7510 to C7515: "wgmma.mma_async instructions are serialized"
  bool setmaxnreg_ignored = false;  ///< C7508: warpgroups do not hand registers to each other

  bool operator==(const KernelResources&) const = default;
};

/// Reads the log of `ptxas -v`. What the log does not say is 0.
KernelResources parse_ptxas_log(std::string_view log);

/// The first line of a compiler log that reports an error; else its first line; else "no log".
std::string first_error(std::string_view log);

}  // namespace v1
}  // namespace leanattn
