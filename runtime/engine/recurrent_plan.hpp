// recurrent_plan.hpp -- RecurrentPlanCore: a loaded kernel of operation `recurrent` and the checks of its arguments;
// RecurrentPlans: those of an engine. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "leanattn/recurrent.h"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "runtime/recurrent/recurrent_kernel.hpp"

/// The opaque handle of the C ABI. Every object of it is the base of a RecurrentPlanCore.
struct leanattn_recurrent_plan {};

struct CUctx_st;

namespace leanattn {
inline namespace v1 {

/// The arguments as kernels take them. Errors: invalid_argument, with the name of the argument and its value.
Result<LeanRecurrentArgs> bind_recurrent(const RecurrentProblem& problem, const leanattn_recurrent_args& args);

/// Whether CUDA is capturing a stream into a graph.
using IsCapturing = std::function<Result<bool>(CUstream_st*)>;

/// Waits for the stream and reads the slots of a step, as LEANATTN_DEBUG=1 does before each launch. Errors:
/// invalid_argument, which names two requests and the slot that one of them writes and the other reads or writes, or a
/// span that its ring does not have; launch_failed, context_lost.
Result<void> check_slots(const RecurrentProblem& problem, const LeanRecurrentArgs& args, int batch,
                         CUstream_st* stream);

class RecurrentPlanCore : public ::leanattn_recurrent_plan {
 public:
  /// With `is_capturing`, every launch on a stream that is not captured checks its slots.
  RecurrentPlanCore(RecurrentKernel kernel, CUctx_st* context, IsCapturing is_capturing)
      : kernel_(std::move(kernel)),
        name_(leanattn::kernel_name(kernel_.spec())),
        context_(context),
        is_capturing_(std::move(is_capturing)) {}

  /// See leanattn_recurrent_plan_launch.
  Result<void> launch(const leanattn_recurrent_args& args, CUstream_st* stream) const;
  const std::string& name() const { return name_; }

 private:
  RecurrentKernel kernel_;
  std::string name_;
  CUctx_st* context_;
  IsCapturing is_capturing_;
};

class RecurrentPlans {
 public:
  /// `context` and `cubins` (both may be null) must outlive the plans. `is_capturing` has launches check their slots.
  RecurrentPlans(CUctx_st* context, CubinCache* cubins, IsCapturing is_capturing)
      : context_(context), cubins_(cubins), is_capturing_(std::move(is_capturing)) {}

  struct Request {
    const RecurrentProblem& problem;
    int batch;
    bool capturing;  ///< CUDA is capturing the stream, so that nothing may be loaded
  };
  /// See leanattn_engine_recurrent_plan. What was looked up before is looked up anew where `generation`, that of the
  /// winners, is another one.
  Result<const RecurrentPlanCore*> get(const DeviceFacts& device, const Request& request, const WinnerTable& winners,
                                       std::uint64_t generation);

 private:
  /// The plan of the first kernel that can be launched. Called with the lock. Errors: that of the last kernel.
  Result<const RecurrentPlanCore*> first_of(std::span<const RecurrentChoice> order, bool capturing);
  Result<const RecurrentPlanCore*> load(const RecurrentSpec& spec, bool capturing);

  CUctx_st* const context_;
  CubinCache* const cubins_;
  const IsCapturing is_capturing_;
  std::mutex mutex_;                                                 ///< guards what follows
  std::map<std::string, std::unique_ptr<RecurrentPlanCore>> plans_;  ///< by kernel_name()
  struct Answer {
    const RecurrentPlanCore* plan = nullptr;
    std::uint64_t generation = 0;  ///< of the winners on which it rests
  };
  std::vector<std::pair<RecurrentProblem, std::unordered_map<int, Answer>>> answers_;  ///< by problem and batch
  std::map<std::string, Error> failed_;  ///< why kernels do not compile or load, by kernel_name()
  std::uint64_t generation_ = 0;         ///< of the winners since which they have failed
};

}  // namespace v1
}  // namespace leanattn
