// engine.hpp -- EngineCore: one GPU's winners, kernels and plans. Thread-safe, except that destruction must come last.
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

#include "runtime/background_builds.hpp"
#include "runtime/capture.hpp"
#include "runtime/merge_partials.hpp"
#include "runtime/plan.hpp"
#include "runtime/plan_cache.hpp"
#include "runtime/process_mark.hpp"

/// The C ABI's opaque handle: every one is the base of an EngineCore.
struct leanattn_engine {};

namespace leanattn {
inline namespace v1 {

class Context;     // runtime/gpu.hpp
class CubinCache;  // cache/cubin_db.hpp

struct EngineCoreOptions {
  int device = 0;                                  ///< CUDA ordinal
  std::optional<std::filesystem::path> cache_dir;  ///< nullopt: cache_directory() decides
  bool disk_cache = true;                          ///< false: neither tuning.db nor cubin.db of the user's
};

/// What an engine stands on. open() makes the real ones; tests bring their own and need no GPU.
struct EngineParts {
  DeviceFacts device;
  std::function<WinnersByProblem()> open_winners;
  KernelStore::Prepare prepare;
  std::function<Result<bool>(CUstream_st*)> is_capturing;
  std::shared_ptr<const Context> context;  ///< kept as long as the engine; null in tests
  std::vector<std::string> warnings;
  bool debug = false;                  ///< LaunchChecks around every launch; needs a context
  std::shared_ptr<CubinCache> cubins;  ///< where those keep their kernel; may be null
  std::unique_ptr<Capture> capture;    ///< counts the calls of plan(); may be null
};

/// What plan() does when the kernel it would answer with is not loaded yet.
enum class WhenNotLoaded { compile, stand_in };

class EngineCore : public ::leanattn_engine {
 public:
  /// See leanattn_engine_create. Reads LEANATTN_DEBUG and LEANATTN_CAPTURE.
  static Result<std::unique_ptr<EngineCore>> open(const EngineCoreOptions& options);
  explicit EngineCore(EngineParts parts);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;
  ~EngineCore();

  /// See leanattn_engine_plan_with. A known (problem, shape) costs one hash and at most four cache lines (eight, while
  /// a stand-in answers): no lock, no allocation. The plan lives as long as the engine.
  Result<const PlanCore*> plan(const DecodeProblem& problem, const Shape& shape, CUstream_st* stream,
                               WhenNotLoaded when_not_loaded = WhenNotLoaded::compile) {
    const LookupKey key = make_lookup_key(problem, shape);
    const std::uint64_t generation = generation_.load(std::memory_order_acquire);
    if (const PlanCore* known = recent_.find(key, generation)) [[likely]] {
      if (capture_ != nullptr) [[unlikely]]
        capture_->count(problem, shape, key, &known->choice());
      return known;
    }
    if (when_not_loaded == WhenNotLoaded::stand_in) {
      if (const PlanCore* known = stand_ins_.find(key, builds_.load(std::memory_order_acquire))) {
        if (capture_ != nullptr) capture_->count(problem, shape, key, &known->choice());
        return known;
      }
    }
    return make_plan(problem, shape, stream, key, when_not_loaded);
  }

  /// What plan() would launch, without compiling. Errors: invalid_argument, unsupported.
  Result<Choice> lookup(const DecodeProblem& problem, const Shape& shape) const;

  /// See leanattn_engine_merge_partials.
  Result<void> merge_partials(const leanattn_merge_args& args, CUstream_st* stream);

  /// Forgets the winners, which are then read again as problems are met; later plans go by them.
  void reload();

  const DeviceFacts& device() const { return parts_.device; }
  /// False in a child that was forked after the engine was made: there it must be left alone.
  bool in_its_process() const { return mark_.here(); }
  /// One sentence a line; more may follow when winners of another problem are read. The text stays valid until the next
  /// reload.
  const char* warnings() const;
  std::size_t plan_count() const;

 private:
  struct Winners {
    std::shared_ptr<const WinnerTable> table;
    std::uint64_t generation = 0;
  };
  Winners winners() const;
  Result<const PlanCore*> make_plan(const DecodeProblem& problem, const Shape& shape, CUstream_st* stream,
                                    const LookupKey& key, WhenNotLoaded when_not_loaded);
  /// The configuration to launch while a better one is being built: with a kernel that is ready, if there is one.
  Config safe_config(const DecodeProblem& problem, const Shape& shape) const;
  Result<std::shared_ptr<const PreparedKernel>> prepare(const KernelSpec& spec, CUstream_st* stream);
  const PlanCore* keep(const DecodeProblem& problem, const PlanSize& size, Choice choice,
                       std::shared_ptr<const PreparedKernel> kernel, bool stand_in);

  const ProcessMark mark_;
  EngineParts parts_;
  std::unique_ptr<LaunchChecks> checks_;
  std::unique_ptr<PartialsMerger> merger_;
  KernelStore kernels_;
  Capture* const capture_;  ///< of parts_
  PlanCache recent_;
  std::atomic<std::uint64_t> generation_{0};
  static constexpr std::size_t kStandInSets = 64;
  PlanCache stand_ins_{kStandInSets};     ///< until the next build ends
  std::atomic<std::uint64_t> builds_{0};  ///< that ended in the background, and reloads
  std::unique_ptr<BackgroundBuilds> builder_;

  mutable std::mutex mutex_;  ///< what follows, and writes to recent_, stand_ins_ and generation_
  std::shared_ptr<const WinnerTable> table_;
  mutable std::deque<std::string> warnings_;  ///< the texts given out since the last reload
  /// By kernel, grid, KV heads and largest batch. Shapes that come to the same launch share a plan, so there are few.
  std::unordered_multimap<std::string, std::unique_ptr<PlanCore>> plans_;
};

}  // namespace v1
}  // namespace leanattn
