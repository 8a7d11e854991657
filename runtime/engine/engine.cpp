// engine.cpp -- makes plans: looks up a configuration, prepares its kernel, and keeps what was made.
#include "runtime/engine/engine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/group.hpp"
#include "runtime/engine/launch_checks.hpp"
#include "runtime/engine/launch_status.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// A key that differs between most plans. same_launch() decides.
std::string key_of(const DecodeProblem& problem, const PlanSize& size, const Config& config, const GroupMember* group) {
  return fmt::format("{} {} {} {} {} {} {} {}", kernel_name(config.spec), config.grid, config.segment_cost,
                     config.l2_promotion, problem.kv_heads, size.batch, size.context_capacity,
                     group != nullptr ? group->number() : 0);
}

bool same_launch(const PlanCore& plan, const DecodeProblem& problem, const PlanSize& size, const Choice& choice,
                 bool stand_in, const GroupMember* group) {
  const Choice& mine = plan.choice();
  return plan.stand_in() == stand_in && plan.group() == group && plan.limits().problem == problem &&
         plan.limits().size == size && mine.config == choice.config && mine.provenance == choice.provenance &&
         mine.tuned_us == choice.tuned_us && mine.tuned_shape == choice.tuned_shape && mine.layer == choice.layer &&
         mine.stale == choice.stale && mine.tuned_pdl == choice.tuned_pdl;
}

}  // namespace

EngineCore::EngineCore(EngineParts parts)
    : parts_(std::move(parts)), kernels_(parts_.prepare), call_capture_(parts_.call_capture.get()) {
  builder_ = std::make_unique<BackgroundBuilds>(kernels_, [this] { builds_.fetch_add(1, std::memory_order_release); });
  if (parts_.debug) checks_ = std::make_unique<LaunchChecks>(parts_.device.arch, parts_.cubins);
  recurrent_ = std::make_unique<RecurrentPlans>(parts_.context ? parts_.context->get() : nullptr, parts_.cubins.get(),
                                                parts_.debug ? parts_.is_capturing : IsCapturing());
  merger_ = std::make_unique<PartialsMerger>(parts_.device.arch, parts_.context ? parts_.context->get() : nullptr,
                                             parts_.cubins.get());
  late_winners_ = std::make_unique<LateWinners>([this] {
    auto table = std::make_shared<const WinnerTable>(parts_.device, parts_.open_winners());
    if (table->locked()) return false;
    install(std::move(table));
    return true;
  });
  tuning_ = std::make_unique<EngineTuning>(
      EngineTuning::Parts{.device = parts_.device,
                          .cache_directory = parts_.cache_directory,
                          .reload = [this] { read_winners(); },
                          .find = [this](const DecodeProblem& problem,
                                         const Shape& shape) { return winners().table->find(problem, shape); },
                          .patience = parts_.patience});
  reload();
}

EngineCore::~EngineCore() {
  tuning_.reset();
  late_winners_.reset();
  builder_.reset();
  // Kernels, events and pinned memory must be destroyed while their context is current.
  const CurrentContext scope(parts_.context ? parts_.context->get() : nullptr);
  plans_.clear();
  checks_.reset();
  recurrent_.reset();
  merger_.reset();
  parts_.status.reset();
}

Result<bool> EngineCore::unready_and_capturing(CUstream_st* stream) const {
  if (stream == nullptr || merger_->ready()) return false;
  return parts_.is_capturing(stream);
}

Result<void> EngineCore::merge_partials(const leanattn_merge_args& args, CUstream_st* stream) {
  const auto capturing = unready_and_capturing(stream);
  if (!capturing) return tl::unexpected(capturing.error());
  return merger_->launch(args, *capturing, stream);
}

Result<const RecurrentPlanCore*> EngineCore::plan_recurrent(const RecurrentProblem& problem, int batch,
                                                            CUstream_st* stream) {
  const auto capturing = stream == nullptr ? Result<bool>(false) : parts_.is_capturing(stream);
  if (!capturing) return tl::unexpected(capturing.error());
  const Winners now = winners();
  const auto plan = recurrent_->get(parts_.device, {problem, batch, *capturing}, *now.table, now.generation);
  if (now.table->locked()) late_winners_->request();
  return plan;
}

Result<void> EngineCore::check() const { return parts_.status ? parts_.status->check() : Result<void>{}; }

void EngineCore::acknowledge() {
  if (parts_.status) parts_.status->acknowledge();
}

EngineCore::Winners EngineCore::winners() const {
  const std::lock_guard lock(mutex_);
  return {table_, generation_.load(std::memory_order_relaxed)};
}

void EngineCore::reload() {
  {
    const std::lock_guard lock(mutex_);
    warnings_.clear();
  }
  read_winners();
}

void EngineCore::read_winners() {
  auto table = std::make_shared<const WinnerTable>(parts_.device, parts_.open_winners());
  const bool locked = table->locked();
  install(std::move(table));
  if (locked) late_winners_->request();
}

void EngineCore::install(std::shared_ptr<const WinnerTable> table) {
  builder_->forgive();
  const std::lock_guard lock(mutex_);
  table_ = std::move(table);
  generation_.fetch_add(1, std::memory_order_release);
  builds_.fetch_add(1, std::memory_order_release);
}

Result<void> EngineCore::set_autotune(Autotune mode, const TuneOptions& options) {
  if (auto ok = tuning_->set_autotune(mode, options); !ok) return ok;
  const std::lock_guard lock(mutex_);
  generation_.fetch_add(1, std::memory_order_release);
  builds_.fetch_add(1, std::memory_order_release);
  return {};
}

const char* EngineCore::warnings() const {
  const Winners now = winners();
  std::vector<std::string> warnings = parts_.warnings;
  const std::vector<std::string> more = now.table->warnings();
  warnings.insert(warnings.end(), more.begin(), more.end());
  const std::vector<std::string> of_tuning = tuning_->warnings();
  warnings.insert(warnings.end(), of_tuning.begin(), of_tuning.end());
  if (const std::size_t skipped = now.table->skipped(); skipped > 0)
    warnings.push_back(fmt::format("winners left out because another version wrote them: {}", skipped));
  std::string text = fmt::format("{}", fmt::join(warnings, "\n"));
  const std::lock_guard lock(mutex_);
  if (warnings_.empty() || warnings_.back() != text) warnings_.push_back(std::move(text));
  return warnings_.back().c_str();
}

std::size_t EngineCore::plan_count() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

Result<Choice> EngineCore::lookup(const DecodeProblem& problem, const Shape& shape) const {
  if (auto valid = validate(problem, shape); !valid) return tl::unexpected(std::move(valid.error()));
  return winners().table->find(problem, shape);
}

Result<std::shared_ptr<const PreparedKernel>> EngineCore::prepare(const KernelSpec& spec, CUstream_st* stream) {
  // The legacy default stream cannot be captured, and asking about it is forbidden while another stream is captured.
  if (stream != nullptr && !kernels_.ready(spec)) {
    const auto capturing = parts_.is_capturing(stream);
    if (!capturing) return tl::unexpected(capturing.error());
    if (*capturing) {
      return fail(ErrorCode::not_prepared,
                  fmt::format("{} is not loaded yet, and the stream is being captured", kernel_name(spec)),
                  "Make the plan once before the stream capture begins.");
    }
  }
  return kernels_.get(spec);
}

Result<std::shared_ptr<const PreparedKernel>> EngineCore::fit(Choice& choice,
                                                              std::shared_ptr<const PreparedKernel> waiting,
                                                              CUstream_st* stream) {
  const std::int64_t sms =
      stream != nullptr && parts_.stream_sms ? parts_.stream_sms(stream) : std::int64_t{parts_.device.sm_count};
  const auto one_wave = [&](const PreparedKernel& kernel) {
    const std::int64_t resident = std::min(kernel.resident_ctas, sms * kernel.resident_ctas_per_sm);
    return std::clamp<std::int64_t>(resident, 1, choice.config.grid);
  };
  // CTAs of a group's kernel wait for those of other ranks, whatever the fix-up.
  if (in_group(choice.config.spec.features)) {
    choice.config.grid = one_wave(*waiting);
    return waiting;
  }
  KernelSpec spec = choice.config.spec;
  spec.fixup = FixUp::ticket;
  auto kernel = prepare(spec, stream);
  if (kernel) {
    choice.config.spec = spec;
    choice.config.grid = one_wave(**kernel);
  } else if (is_about_the_kernel(kernel.error().code)) {
    choice.config.grid = one_wave(*waiting);
    return waiting;
  }
  return kernel;
}

Config EngineCore::safe_config(const DecodeStep& step) const {
  const std::vector<Config> defaults = default_configs(step);
  for (const Config& config : defaults) {
    if (kernels_.ready(config.spec)) return config;
  }
  // A batch-invariant problem has one kernel only, because bits depend on the kernel.
  if (step.problem.features.batch_invariant) return defaults.front();
  const auto ready =
      kernels_.ready_specs([&](const KernelSpec& spec) { return differ_in_tunables_only(spec, step.base); });
  if (ready.empty()) return defaults.front();
  const KernelSpec& spec = *std::min_element(ready.begin(), ready.end(), [](const KernelSpec& a, const KernelSpec& b) {
    return kernel_name(a) < kernel_name(b);
  });
  return {spec, fastest_grid(step, spec)};
}

std::pair<EngineCore::Winners, Choice> EngineCore::look_up(const PlanRequest& request) {
  const auto& [problem, shape, stream, when, key] = request;
  Winners now = winners();
  Choice choice = now.table->find(problem, shape);
  if (tuning_->wants(choice) && !has_part_of_context(problem.features)) [[unlikely]] {
    const Result<bool> capturing = stream != nullptr ? parts_.is_capturing(stream) : false;
    if (capturing && !*capturing && tuning_->first_use(problem, shape)) {
      now = winners();
      choice = now.table->find(problem, shape);
    }
  }
  if (now.table->locked()) late_winners_->request();
  return {std::move(now), std::move(choice)};
}

EngineCore::Answer EngineCore::at_once(const PlanRequest& request, const WinnerTable& winners, Choice choice) const {
  if (request.when_not_loaded == WhenNotLoaded::compile) return {std::move(choice)};
  const auto ready = [&](const Choice& one) { return kernels_.ready(one.config.spec); };
  const auto has_failed = [&](const Choice& one) { return !ready(one) && builder_->has_failed(one.config.spec); };
  if (has_failed(choice)) {
    const std::vector<Choice> order = winners.launch_order(request.problem, request.shape);
    const auto next = std::find_if_not(order.begin(), order.end(), has_failed);
    if (next == order.end()) return {.choice = std::move(choice), .all_failed = true};
    choice = *next;
  }
  if (ready(choice)) return {std::move(choice)};
  Config safe = safe_config({parts_.device, request.problem, request.shape});
  if (safe.spec == choice.config.spec) return {std::move(choice)};
  return {.choice = {.config = std::move(safe), .tuned_shape = {}, .layer = {}, .tuned_nvrtc = {}},
          .better = choice.config.spec};
}

Result<std::shared_ptr<const PreparedKernel>> EngineCore::prepare_first(const PlanRequest& request,
                                                                        const WinnerTable& winners, Answer& answer) {
  KernelSpec& spec = answer.choice.config.spec;
  auto kernel =
      answer.all_failed ? tl::unexpected(Error{ErrorCode::kernel_rejected, {}, {}, {}}) : prepare(spec, request.stream);
  if (kernel || !is_about_the_kernel(kernel.error().code)) return kernel;
  std::vector<KernelSpec> tried{spec};
  for (const Choice& next : winners.launch_order(request.problem, request.shape)) {
    if (std::find(tried.begin(), tried.end(), next.config.spec) != tried.end()) continue;
    tried.push_back(next.config.spec);
    answer.choice = next;
    kernel = prepare(spec, request.stream);
    if (kernel || !is_about_the_kernel(kernel.error().code)) break;
  }
  return kernel;
}

Result<const PlanCore*> EngineCore::make_plan(const PlanRequest& request) {
  if (!mark_.here()) return tl::unexpected(ProcessMark::forked());  // here locks may be held by threads of the parent
  if (auto valid = validate(request.problem, request.shape); !valid) return tl::unexpected(std::move(valid.error()));
  // Read before anything else, so that a build that ends from now on outdates a stand-in.
  const std::uint64_t builds = builds_.load(std::memory_order_acquire);
  auto [winners, looked_up] = look_up(request);
  Answer answer = at_once(request, *winners.table, std::move(looked_up));
  auto kernel = prepare_first(request, *winners.table, answer);
  Choice& choice = answer.choice;
  // The plan for a stream of fewer SMs than the context has is kept beside that for all other streams.
  std::optional<Launchable> for_others;
  if (kernel && waits(choice.config.spec) && !fits(choice.config.grid, **kernel, request.stream)) {
    if (choice.config.grid <= (*kernel)->resident_ctas) for_others = Launchable{choice, *kernel};
    kernel = fit(choice, *kernel, request.stream);
  }
  if (!kernel && kernel.error().code == ErrorCode::not_prepared) {
    // Winners have changed since the pair was planned, and a stream that is being captured cannot wait for the new
    // kernel. The plan that the pair got then is as right as before.
    const auto of_any_winners = [&](const PlanCache& of) { return of.find_any(request.key); };
    if (const PlanCore* before = known_plan(request.stream, of_any_winners)) {
      count(request, &before->choice());
      return before;
    }
  }
  // After any compile of the stand-in, so that the two do not compete.
  if (answer.better) builder_->request(*answer.better);
  count(request, kernel ? &choice : nullptr);
  if (!kernel) return tl::unexpected(std::move(kernel.error()));
  const std::lock_guard lock(mutex_);
  const auto kept = [&](Launchable one) {
    return keep(request.problem, plan_size(request.problem, request.shape), std::move(one.choice),
                std::move(one.kernel), answer.better.has_value());
  };
  const PlanCore* const plan = kept({std::move(choice), *std::move(kernel)});
  if (answer.better) {
    if (!for_others) stand_ins_.insert(request.key, builds, plan);
    return plan;
  }
  if (for_others) narrow_.insert(request.key, winners.generation, plan);
  recent_.insert(request.key, winners.generation, for_others ? kept(*std::move(for_others)) : plan);
  return plan;
}

Result<std::unique_ptr<GroupMember>> EngineCore::create_group(const GroupMemberOptions& options) {
  if (!mark_.here()) return tl::unexpected(ProcessMark::forked());
  return GroupMember::create(options, parts_.context, parts_.status, merger_.get());
}

Result<const PlanCore*> EngineCore::plan_group(const DecodeProblem& problem, const Shape& shape,
                                               const GroupMember& group, CUstream_st* stream) {
  if (!mark_.here()) return tl::unexpected(ProcessMark::forked());  // as in make_plan()
  if (auto valid = validate(problem, shape); !valid) return tl::unexpected(std::move(valid.error()));
  if (auto fits = group.check(problem, plan_size(problem, shape).batch, parts_.context.get()); !fits)
    return tl::unexpected(std::move(fits.error()));
  DecodeProblem part = problem;
  if (group.over_nccl() != nullptr) {
    const auto capturing = unready_and_capturing(stream);
    if (!capturing) return tl::unexpected(capturing.error());
    if (auto ok = group.over_nccl()->prepare(*capturing); !ok) return tl::unexpected(std::move(ok.error()));
    part = part_over_nccl(problem, group.place());
  }
  if (in_group(part.features)) part.group_link = group.link();
  auto any = plan(part, shape, stream);
  if (!any) return any;
  // The same kernel, bound to this group. The plan without a group keeps the kernel alive.
  const std::lock_guard lock(mutex_);
  return keep(problem, plan_size(problem, shape), (*any)->choice(), (*any)->shared_kernel(), (*any)->stand_in(),
              &group);
}

const PlanCore* EngineCore::keep(const DecodeProblem& problem, const PlanSize& size, Choice choice,
                                 std::shared_ptr<const PreparedKernel> kernel, bool stand_in,
                                 const GroupMember* group) {
  if (waits(choice.config.spec)) choice.config.grid = std::min(choice.config.grid, resident_share(group, *kernel));
  std::string key = key_of(problem, size, choice.config, group);
  const auto [first, last] = plans_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (same_launch(*it->second, problem, size, choice, stand_in, group)) return it->second.get();
  }
  CUctx_st* const context = parts_.context ? parts_.context->get() : nullptr;
  auto plan = std::make_unique<PlanCore>(problem, size, std::move(choice), std::move(kernel), context, checks_.get(),
                                         parts_.status.get(), stand_in, group);
  return plans_.emplace(std::move(key), std::move(plan))->second.get();
}

}  // namespace v1
}  // namespace leanattn
