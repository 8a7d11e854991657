// engine.hpp -- EngineCore: the winners, kernels and plans of one GPU. Thread-safe; only its destruction must come
// after every other call.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/cuda/process_mark.hpp"
#include "runtime/engine/background_builds.hpp"
#include "runtime/engine/call_capture.hpp"
#include "runtime/engine/engine_tuning.hpp"
#include "runtime/engine/late_winners.hpp"
#include "runtime/engine/partials_merger.hpp"
#include "runtime/engine/plan.hpp"
#include "runtime/engine/plan_cache.hpp"
#include "runtime/engine/recurrent_plan.hpp"
#include "runtime/lookup/decode_step.hpp"

/// The opaque handle of the C ABI. Every object of it is the base of an EngineCore.
struct leanattn_engine {};

namespace leanattn {
inline namespace v1 {

class Context;              // runtime/cuda/gpu.hpp
class CubinCache;           // cache/cubin/cubin_db.hpp
class GroupMember;          // runtime/engine/group.hpp
struct GroupMemberOptions;  // runtime/engine/group.hpp
class LaunchStatus;         // runtime/engine/launch_status.hpp

struct EngineCoreOptions {
  int device = 0;                                  ///< CUDA ordinal
  std::optional<std::filesystem::path> cache_dir;  ///< of both databases; nullopt: cache_directory() decides
  bool disk_cache = true;                          ///< false: the user's tuning.db and cubin.db are not used
};

/// What an engine is made of. open() makes the real parts; tests bring their own and need no GPU.
struct EngineParts {
  DeviceFacts device;
  std::function<WinnersByProblem()> open_winners;
  KernelStore::Prepare prepare;
  std::function<Result<bool>(CUstream_st*)> is_capturing;  ///< whether CUDA is capturing the stream into a graph
  std::function<int(CUstream_st*)> stream_sms;             ///< SMs that launches on a stream may use; null: all
  std::shared_ptr<const Context> context;                  ///< of the GPU, kept as long as the engine; null in tests
  std::shared_ptr<LaunchStatus> status;                    ///< to which launches report; null in tests
  std::vector<std::string> warnings;
  bool debug = false;                         ///< whether LaunchChecks surround every launch; needs a context
  std::shared_ptr<CubinCache> cubins;         ///< of the checks' and the merger's kernels; may be null
  std::unique_ptr<CallCapture> call_capture;  ///< counts the calls of plan(); may be null
  std::optional<std::filesystem::path> cache_directory;  ///< where tune() stores winners; nullopt: nowhere
  TuningPatience patience;                               ///< with the program that tunes
};

/// What plan() does when the kernel of its answer is not loaded yet: compile or load it first, or answer with a
/// stand-in at once and build the kernel in the background.
enum class WhenNotLoaded { compile, stand_in };

class EngineCore : public ::leanattn_engine {
 public:
  /// See leanattn_engine_create. Reads LEANATTN_DEBUG and LEANATTN_CAPTURE.
  static Result<std::unique_ptr<EngineCore>> open(const EngineCoreOptions& options);
  explicit EngineCore(EngineParts parts);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;
  ~EngineCore();

  /// See leanattn_engine_plan_with. A known (problem, shape) takes one hash, at most four cache lines, or eight
  /// while a stand-in answers, and one of the plan; no lock and no allocation. Where CTAs wait for each other, the
  /// driver is asked whether the stream has all SMs of the context; one of a green context may not. The plan lives as
  /// long as the engine.
  Result<const PlanCore*> plan(const DecodeProblem& problem, const Shape& shape, CUstream_st* stream,
                               WhenNotLoaded when_not_loaded = WhenNotLoaded::compile) {
    const PlanRequest request{problem, shape, stream, when_not_loaded, make_lookup_key(problem, shape)};
    const std::uint64_t generation = generation_.load(std::memory_order_acquire);
    const PlanCore* known = known_plan(stream, [&](const PlanCache& of) { return of.find(request.key, generation); });
    if (known == nullptr && when_not_loaded == WhenNotLoaded::stand_in) [[unlikely]] {
      known = stand_ins_.find(request.key, builds_.load(std::memory_order_acquire));
      if (known != nullptr && !serves(*known, stream)) known = nullptr;
    }
    if (known == nullptr) [[unlikely]]
      return make_plan(request);
    count(request, &known->choice());
    return known;
  }

  /// See leanattn_group_create. The group must not outlive the engine.
  Result<std::unique_ptr<GroupMember>> create_group(const GroupMemberOptions& options);
  /// See leanattn_engine_plan_group. Takes a lock. The plan lives as long as the engine.
  Result<const PlanCore*> plan_group(const DecodeProblem& problem, const Shape& shape, const GroupMember& group,
                                     CUstream_st* stream);

  /// The configuration that plan() would launch. Compiles nothing. Errors: invalid_argument, unsupported.
  Result<Choice> lookup(const DecodeProblem& problem, const Shape& shape) const;

  /// See leanattn_engine_recurrent_plan. The plan lives as long as the engine.
  Result<const RecurrentPlanCore*> plan_recurrent(const RecurrentProblem& problem, int batch, CUstream_st* stream);

  /// See leanattn_engine_merge_partials.
  Result<void> merge_partials(const leanattn_merge_args& args, CUstream_st* stream);

  /// See leanattn_engine_check and leanattn_engine_acknowledge.
  Result<void> check() const;
  void acknowledge();

  /// Forgets the winners, so that later plans read them again from the databases. Winners that
  /// other processes keep locked are read in the background as soon as they can be, and then it is as after a reload.
  void reload();

  /// See leanattn_engine_tune.
  Result<TuneReport> tune(const DecodeProblem& problem, std::span<const Shape> shapes, const TuneOptions& options) {
    return tuning_->tune(problem, shapes, options);
  }
  /// See leanattn_engine_autotune. Plans that were made before are looked up anew.
  Result<void> set_autotune(Autotune mode, const TuneOptions& options);

  const DeviceFacts& device() const { return parts_.device; }
  /// False in a child process that was forked after the engine was made. There the engine must not be used.
  bool in_its_process() const { return mark_.here(); }
  /// One sentence on each line. More may follow when the winners of another problem are read. The text stays valid
  /// until the next reload.
  const char* warnings() const;
  std::size_t plan_count() const;

 private:
  struct Winners {
    std::shared_ptr<const WinnerTable> table;
    std::uint64_t generation = 0;
  };
  /// A call of plan().
  struct PlanRequest {
    const DecodeProblem& problem;
    const Shape& shape;
    CUstream_st* stream;
    WhenNotLoaded when_not_loaded;
    LookupKey key;
  };
  /// What is to be launched for a request.
  struct Answer {
    Choice choice;
    std::optional<KernelSpec> better = {};  ///< for which the choice stands in, and which is to be built
    bool all_failed = false;                ///< nothing that a look-up answers could be built in the background
  };
  /// A configuration and its kernel.
  struct Launchable {
    Choice choice;
    std::shared_ptr<const PreparedKernel> kernel;
  };
  Winners winners() const;
  /// Reads the winners anew. The texts of warnings() stay valid.
  void read_winners();
  void install(std::shared_ptr<const WinnerTable> table);
  Result<const PlanCore*> make_plan(const PlanRequest& request);
  /// The winners and what a look-up finds in them, after tuning_ has had a first use, unless the stream is being
  /// captured.
  std::pair<Winners, Choice> look_up(const PlanRequest& request);
  /// What can be launched without waiting for a compiler, where the caller does not wait; else the choice itself.
  Answer at_once(const PlanRequest& request, const WinnerTable& winners, Choice choice) const;
  /// The kernel of the answer. Where it cannot be built, that of the next best configuration, which the answer then
  /// has. Errors: those of prepare().
  Result<std::shared_ptr<const PreparedKernel>> prepare_first(const PlanRequest& request, const WinnerTable& winners,
                                                              Answer& answer);
  /// A plan for the stream that find(cache) finds; or null.
  template <class Find>
  const PlanCore* known_plan(CUstream_st* stream, Find find) const {
    const PlanCore* known = find(recent_);
    if (known == nullptr || serves(*known, stream)) [[likely]]
      return known;
    known = find(narrow_);
    // That one may have been made for a stream with more SMs than this one.
    return known != nullptr && serves(*known, stream) ? known : nullptr;
  }
  /// Counts the request, if calls are captured. Null: it failed.
  void count(const PlanRequest& request, const Choice* choice) const {
    if (call_capture_ != nullptr) [[unlikely]]
      call_capture_->count(request.problem, request.shape, request.key, choice);
  }
  /// Whether all CTAs of a kernel with this grid are resident at once on the SMs of the stream.
  bool fits(std::int64_t grid, const PreparedKernel& kernel, CUstream_st* stream) const {
    return grid <= kernel.resident_ctas &&
           (stream == nullptr || !parts_.stream_sms ||
            grid <= std::int64_t{parts_.stream_sms(stream)} * kernel.resident_ctas_per_sm);
  }
  /// Whether a launch of the plan ends on the stream: its CTAs do not wait for each other, or are resident at once.
  bool serves(const PlanCore& plan, CUstream_st* stream) const {
    return !plan.waits() || fits(plan.choice().config.grid, plan.kernel(), stream);
  }
  /// Replaces a kernel whose CTAs wait for each other, and do not fit the stream's SMs, by the one with tickets and the
  /// same tunables; where that cannot be built, cuts the grid. Errors: those of prepare().
  Result<std::shared_ptr<const PreparedKernel>> fit(Choice& choice, std::shared_ptr<const PreparedKernel> waiting,
                                                    CUstream_st* stream);
  /// The configuration of a stand-in, with a kernel that is loaded already if there is one.
  Config safe_config(const DecodeStep& step) const;
  Result<std::shared_ptr<const PreparedKernel>> prepare(const KernelSpec& spec, CUstream_st* stream);
  /// Whether the merger's kernels would have to be loaded, but cannot be, because CUDA is capturing the stream.
  Result<bool> unready_and_capturing(CUstream_st* stream) const;
  const PlanCore* keep(const DecodeProblem& problem, const PlanSize& size, Choice choice,
                       std::shared_ptr<const PreparedKernel> kernel, bool stand_in, const GroupMember* group = nullptr);

  const ProcessMark mark_;
  EngineParts parts_;
  std::unique_ptr<LaunchChecks> checks_;
  std::unique_ptr<PartialsMerger> merger_;
  std::unique_ptr<RecurrentPlans> recurrent_;
  KernelStore kernels_;
  CallCapture* const call_capture_;  ///< that of parts_; may be null
  PlanCache recent_;
  std::atomic<std::uint64_t> generation_{0};
  static constexpr std::size_t kStandInSets = 64, kNarrowSets = 64;
  PlanCache narrow_{kNarrowSets};         ///< of streams with so few SMs that the plan in recent_ does not fit
  PlanCache stand_ins_{kStandInSets};     ///< valid until the next build ends
  std::atomic<std::uint64_t> builds_{0};  ///< background builds that have ended, plus reloads
  std::unique_ptr<BackgroundBuilds> builder_;
  std::unique_ptr<LateWinners> late_winners_;
  std::unique_ptr<EngineTuning> tuning_;

  mutable std::mutex mutex_;  ///< guards what follows, and writes to recent_, stand_ins_ and generation_
  std::shared_ptr<const WinnerTable> table_;
  mutable std::deque<std::string> warnings_;  ///< the texts that were returned since the last reload
  /// By key_of(): kernel, grid, segment cost, KV heads and size. Shapes with the same launch share a plan, so there are
  /// few.
  std::unordered_multimap<std::string, std::unique_ptr<PlanCore>> plans_;
};

}  // namespace v1
}  // namespace leanattn
