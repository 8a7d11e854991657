#include "tuner/search/measurer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cache/digest.hpp"
#include "generator/generator.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kBatch = 8;     // candidates timed between two looks at the sentinel
constexpr double kHopeless = 1.25;    // a candidate whose one sample is this much behind the best is dropped
constexpr int kNoisyRepetitions = 2;  // of a round whose clocks moved

TrialStatus status_of(Verdict verdict) {
  return verdict == Verdict::incorrect   ? TrialStatus::incorrect
         : verdict == Verdict::timed_out ? TrialStatus::timeout
                                         : TrialStatus::launch_fail;
}

bool noisy(const RoundTimes& times) { return !times.throttle.empty() || times.sentinel_drift > kMostDrift; }

}  // namespace

Measurer::Measurer(const ShapeContext& context, const KnownTrials& known, std::vector<ModelSample>& samples)
    : context_(context), session_(context.session), known_(known), samples_(samples) {}

std::optional<CompiledSpec> Measurer::compiled(const KernelSpec& spec, const CostModel& model, double until_s) {
  const Result<CompiledSpec>* result = session_.compiles.find(spec);
  if (result == nullptr) result = session_.compiles.wait(spec, [&] { return context_.stopped(until_s); });
  return counted(result, spec, model);
}

std::optional<CompiledSpec> Measurer::compiled_already(const KernelSpec& spec, const CostModel& model) {
  return counted(session_.compiles.find(spec), spec, model);
}

std::optional<CompiledSpec> Measurer::counted(const Result<CompiledSpec>* result, const KernelSpec& spec,
                                              const CostModel& model) {
  if (result == nullptr) return std::nullopt;
  if (seen_kernels_.insert(kernel_name(spec)).second) {
    ++(*result ? counts_.compiled : counts_.rejected);
    if (!*result) {
      counts_.failure = result->error().message;
      const auto ranked = context_.ranked_grids(model, spec, 1);
      const Config config{.spec = spec, .grid = ranked.empty() ? 1 : ranked.front().config.grid};
      // An internal error (there is no process to compile in) says nothing about the kernel.
      const bool of_kernel = result->error().code != ErrorCode::internal;
      if (of_kernel) failed_kernels_.insert(kernel_name(spec));
      if (of_kernel && !known_.contains(to_json(config)))
        record({.config = config}, TrialStatus::compile_fail, result->error().message);
    }
  }
  if (!*result) return std::nullopt;
  return **result;
}

Result<void> Measurer::begin() {
  if (begun_) return {};
  const Result<double> read_limit = session_.backend.begin_shape(context_.step.shape);
  if (!read_limit) return tl::unexpected(read_limit.error());
  begun_ = true;
  read_limit_us_ = *read_limit;
  return {};
}

Result<bool> Measurer::passes_check(const Candidate& candidate) {
  const double begun_s = session_.backend.now_s();
  const Result<CheckOutcome> outcome = session_.backend.check(candidate.config);
  counts_.gpu_seconds += session_.backend.now_s() - begun_s;
  if (!outcome && outcome.error().code == ErrorCode::interrupted) return false;
  if (!outcome) {
    record_condemned(candidate);
    return tl::unexpected(outcome.error());
  }
  if (outcome->verdict == Verdict::passed) return true;
  if (outcome->verdict == Verdict::incorrect) ++counts_.incorrect;
  record(candidate, status_of(outcome->verdict), outcome->reason);
  return false;
}

Result<void> Measurer::try_configs(std::span<const RankedConfig> configs, const char* phase, double until_s,
                                   TimedCandidates& timed) {
  std::vector<Candidate> batch;
  for (const RankedConfig& ranked : configs) {
    if (context_.stopped(until_s)) break;  // candidates that were checked are timed all the same
    const std::string key = to_json(ranked.config);
    if (!seen_configs_.insert(key).second) continue;
    ++counts_.candidates;
    const auto* result = session_.compiles.find(ranked.config.spec);
    Candidate candidate{.config = ranked.config, .compiled = result != nullptr && *result ? **result : CompiledSpec{}};
    if (const auto it = known_.find(key); it != known_.end()) {
      // An earlier trial without a time is settled; one with a time takes part with it.
      if (it->second.median_us <= 0) {
        failed_configs_.insert(key);
        counts_.failure = it->second.reason;
        continue;
      }
      candidate.known = true;
      candidate.us = it->second.median_us;
      timed.add(std::move(candidate));
      continue;
    }
    if (auto begun = begin(); !begun) return begun;
    context_.report(phase, kernel_name(ranked.config.spec) + fmt::format(" G={}", ranked.config.grid), 0, 0,
                    timed.best_us());
    const Result<bool> passed = passes_check(candidate);
    if (!passed) return tl::unexpected(passed.error());
    if (!*passed) continue;
    batch.push_back(std::move(candidate));
    if (batch.size() == kBatch) {
      if (auto done = time_batch(batch, timed); !done) return done;
      batch.clear();
    }
  }
  return batch.empty() ? Result<void>{} : time_batch(batch, timed);
}

Result<RoundTimes> Measurer::time(std::span<const Config> configs) {
  const double begun_s = session_.backend.now_s();
  Result<RoundTimes> times = session_.backend.time(configs);
  counts_.gpu_seconds += session_.backend.now_s() - begun_s;
  if (times && !times->neighbours.empty()) counts_.neighbours = times->neighbours;
  return times;
}

Result<void> Measurer::time_batch(const std::vector<Candidate>& batch, TimedCandidates& timed) {
  std::vector<Config> configs;
  configs.reserve(batch.size());
  for (const Candidate& candidate : batch) configs.push_back(candidate.config);
  Result<RoundTimes> times = time(configs);
  for (int again = 0; again < kNoisyRepetitions && times && noisy(*times); ++again) times = time(configs);
  if (!times && times.error().code == ErrorCode::interrupted) return {};
  if (!times && times.error().code == ErrorCode::launch_failed) {
    // One of them cannot be launched in the way in which it is timed. Timed alone, only that one fails again.
    if (batch.size() > 1) {
      for (const Candidate& candidate : batch) {
        if (auto alone = time_batch({candidate}, timed); !alone) return alone;
      }
      return {};
    }
    if (!record_condemned(batch[0])) record(batch[0], TrialStatus::launch_fail, times.error().message);
    return {};
  }
  if (!times) {
    for (const Candidate& candidate : batch) record_condemned(candidate);
    return tl::unexpected(times.error());
  }
  // What slows the sentinel, which only reads, slows the candidates beside it as well.
  const double scale = times->sentinel_us > 0 && read_limit_us_ > 0 ? read_limit_us_ / times->sentinel_us : 1.0;
  for (std::size_t i = 0; i < batch.size(); ++i) keep(batch[i], times->us[i] * scale, timed);
  return {};
}

bool Measurer::failed(const Config& config) const {
  return failed_kernels_.contains(kernel_name(config.spec)) || failed_configs_.contains(to_json(config)) ||
         session_.backend.condemned(config);
}

bool Measurer::record_condemned(const Candidate& candidate) {
  const std::optional<CheckOutcome> outcome = session_.backend.condemned(candidate.config);
  if (!outcome) return false;
  record(candidate, status_of(outcome->verdict), outcome->reason);
  return true;
}

void Measurer::keep(Candidate candidate, double us, TimedCandidates& timed) {
  // A candidate that stays in the search is recorded much later.
  candidate.tried = detail::utc_timestamp();
  samples_.push_back({.problem = session_.request.problem,
                      .shape = context_.step.shape,
                      .config = candidate.config,
                      .resident = candidate.compiled.resident,
                      .us = us});
  const double best_us = timed.best_us();
  if (best_us > 0 && us > best_us * kHopeless && !(candidate.config == context_.default_config)) {
    record(candidate, TrialStatus::pruned,
           fmt::format("{:.0f} % slower than the best so far in its first sample", (us / best_us - 1) * 100), {&us, 1});
    return;
  }
  candidate.us = us;
  timed.add(std::move(candidate));
}

void Measurer::record(const Candidate& candidate, TrialStatus status, std::string reason,
                      std::span<const double> samples, const std::string& throttle) {
  if (status != TrialStatus::ok && status != TrialStatus::pruned) {
    counts_.failure = reason;
    if (status != TrialStatus::compile_fail) failed_configs_.insert(to_json(candidate.config));
  }
  const Summary summary = summarize(samples);
  Trial trial;
  trial.problem = context_.problem_json, trial.shape = context_.shape_json, trial.policy = session_.policy();
  trial.config = to_json(candidate.config);
  trial.kernel_revision = kernel_revision(candidate.config.spec);
  trial.status = status, trial.reason = std::move(reason);
  trial.samples = summary.samples, trial.median_us = summary.median, trial.mad_us = summary.mad;
  trial.low_us = summary.low, trial.high_us = summary.high;
  if (!samples.empty()) trial.samples_json = fmt::format("[{:.3f}]", fmt::join(samples, ","));
  trial.throttle = throttle;
  trial.created = candidate.tried;
  trial.registers = candidate.compiled.registers, trial.compile_ms = candidate.compiled.compile_ms;
  trial.bytes = context_.step.bytes;
  session_.trials.add(std::move(trial));
}

}  // namespace v1
}  // namespace leanattn
