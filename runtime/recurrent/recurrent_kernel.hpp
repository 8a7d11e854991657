// recurrent_kernel.hpp -- RecurrentKernel: a kernel of operation `recurrent`, loaded and ready to launch. Any thread
// that has the owning context current may launch it.
#pragma once

#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/ptxas_log.hpp"
#include "templates/recurrent/arguments.cuh"

namespace leanattn {
inline namespace v1 {

class CubinCache;  // cache/cubin/cubin_db.hpp

class RecurrentKernel {
 public:
  /// Compiles a kernel and loads it into the current context. cubins may be null. Errors: those of compile_kernel(),
  /// no_driver, load_failed, out_of_memory, context_lost.
  static Result<RecurrentKernel> prepare(const EmittedRecurrent& emitted, CubinCache* cubins);
  /// The same for the kernel of a spec. Errors: also those of emit().
  static Result<RecurrentKernel> prepare(const RecurrentSpec& spec, CubinCache* cubins);

  /// Enqueues one step over `batch` requests, none of which allocates or waits; 0 enqueue nothing. The arguments are
  /// right. Errors: launch_failed, context_lost.
  Result<void> launch(const LeanRecurrentArgs& args, int batch, CUstream_st* stream) const;

  const RecurrentSpec& spec() const { return spec_; }
  const KernelResources& resources() const { return resources_; }

 private:
  RecurrentKernel(const RecurrentSpec& spec, LoadedSource source) : spec_(spec), source_(std::move(source)) {}

  RecurrentSpec spec_;
  LoadedSource source_;
  CUfunc_st* function_ = nullptr;
  KernelResources resources_;
};

}  // namespace v1
}  // namespace leanattn
