// recurrent_plan.hpp -- RecurrentPlanCore: a loaded kernel of operation `recurrent` and the checks of its arguments;
// RecurrentPlans: those of an engine. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "leanattn/recurrent.h"
#include "runtime/recurrent/recurrent_kernel.hpp"

/// The opaque handle of the C ABI. Every object of it is the base of a RecurrentPlanCore.
struct leanattn_recurrent_plan {};

struct CUctx_st;

namespace leanattn {
inline namespace v1 {

struct DeviceFacts;  // runtime/cuda/device.hpp

/// The arguments as kernels take them. Errors: invalid_argument, with the name of the argument and its value.
Result<LeanRecurrentArgs> bind_recurrent(const RecurrentProblem& problem, const leanattn_recurrent_args& args);

class RecurrentPlanCore : public ::leanattn_recurrent_plan {
 public:
  RecurrentPlanCore(RecurrentKernel kernel, CUctx_st* context)
      : kernel_(std::move(kernel)), name_(leanattn::kernel_name(kernel_.spec())), context_(context) {}

  /// See leanattn_recurrent_plan_launch.
  Result<void> launch(const leanattn_recurrent_args& args, CUstream_st* stream) const;
  const std::string& name() const { return name_; }

 private:
  RecurrentKernel kernel_;
  std::string name_;
  CUctx_st* context_;
};

class RecurrentPlans {
 public:
  /// `context` and `cubins` (both may be null) must outlive the plans.
  RecurrentPlans(CUctx_st* context, CubinCache* cubins) : context_(context), cubins_(cubins) {}

  /// See leanattn_engine_recurrent_plan. `capturing` says that CUDA is capturing the stream, so that nothing may be
  /// loaded.
  Result<const RecurrentPlanCore*> get(const DeviceFacts& device, const RecurrentProblem& problem, int batch,
                                       bool capturing);

 private:
  CUctx_st* const context_;
  CubinCache* const cubins_;
  std::mutex mutex_;                                                 ///< guards what follows
  std::map<std::string, std::unique_ptr<RecurrentPlanCore>> plans_;  ///< by kernel_name()
};

}  // namespace v1
}  // namespace leanattn
