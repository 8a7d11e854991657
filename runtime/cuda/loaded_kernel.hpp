// loaded_kernel.hpp -- LoadedKernel: a cubin loaded into the current context, ready to launch. Move-only.
// launch() may be called from any thread with the owning context current; destruction too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/workspace.hpp"
#include "runtime/cuda/compiler.hpp"

struct CUstream_st;
struct CUfunc_st;
struct CUlib_st;

// The kernel's by-value argument block (templates/kernel_args.cuh), at global scope so that host and device agree.
#include "templates/kernel_args.cuh"

namespace leanattn {
inline namespace v1 {

class TensorMapCache;  // runtime/cuda/tensor_map_cache.hpp

/// Most CTAs of one launch: the kernel's estimated quotients (templates/line/schedule.cuh) are exact below it.
inline constexpr std::int64_t kMostCtas = 1 << 20;

/// Points `args` into a workspace of this layout at `base`.
void bind_workspace(LeanDecodeArgs& args, const WorkspaceLayout& layout, void* base);

class LoadedKernel {
 public:
  /// Loads into the current context and raises the dynamic shared-memory limit.
  /// Errors: no_driver, driver_too_old, load_failed, out_of_memory, context_lost.
  static Result<LoadedKernel> load(const EmittedKernel& kernel, const CompiledKernel& compiled);

  /// The same kernel for the context that is current now, which may be of another GPU of the same architecture. Errors:
  /// those of load().
  Result<LoadedKernel> in_current_context() const;

  /// compile() through the cache, then load(). A cached cubin that the driver refuses is deleted and compiled again,
  /// once. `compiled`, when not null, receives what compile() said (resources, time, where it came from). cache may be
  /// null. Errors: both calls'.
  static Result<LoadedKernel> prepare(const EmittedKernel& kernel, CubinCache* cache,
                                      CompiledKernel* compiled = nullptr);

  LoadedKernel(LoadedKernel&& other) noexcept;
  LoadedKernel& operator=(LoadedKernel&& other) noexcept;
  ~LoadedKernel();

  /// CTAs of this kernel one SM holds, asked of the driver once at load.
  int resident_ctas_per_sm() const { return resident_; }
  /// CTAs of this kernel that the SMs of the context hold at once: the largest grid of a FixUp::wait kernel.
  std::int64_t resident_ctas() const { return resident_total_; }
  const KernelSpec& spec() const { return spec_; }
  int threads() const { return threads_; }
  int shared_bytes() const { return shared_bytes_; }

  /// Enqueues one launch of `grid` CTAs (1 .. kMostCtas), filling in what follows from the grid
  /// (args.grid_reciprocal) and, for load path tensor, from the KV cache's place (its tensor maps, encoded once for
  /// each of some hundred places); no allocation, no lock, no sync; legal under stream capture. Kernels that wait go
  /// out cooperative and only up to resident_ctas(); pdl kernels with the programmatic-stream-serialization attribute.
  /// `beside_ranks`: other ranks of the group are on this GPU, and the caller sees to it that the CTAs of all of them
  /// are resident together. Then neither attribute is set: cooperative grids might not run side by side, and the early
  /// CTAs of a next launch would take the room of another rank's. l2_promotion: Config::l2_promotion, which other load
  /// paths than tensor ignore. Errors: launch_failed, context_lost.
  Result<void> launch(const LeanDecodeArgs& args, std::int64_t grid, CUstream_st* stream, int l2_promotion = 128,
                      bool beside_ranks = false) const;

 private:
  LoadedKernel();
  /// Finds the function of the loaded library in the current context, and how many of its CTAs that context holds.
  Result<void> bind_to_current_context();

  std::shared_ptr<CUlib_st> library_;  ///< of all contexts
  CUfunc_st* function_ = nullptr;
  std::string entry_;
  KernelSpec spec_;
  int threads_ = 0;
  int shared_bytes_ = 0;
  int resident_ = 0;
  std::int64_t resident_total_ = 0;
  std::int64_t ctas_of_range_ = 1;        ///< that carry a row block each (row_blocks_in_step)
  bool heads_in_step_ = false;            ///< or a KV head each, as many as go in step
  std::unique_ptr<TensorMapCache> maps_;  ///< null where no tensor copies read KV
};

}  // namespace v1
}  // namespace leanattn
