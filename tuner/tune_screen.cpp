// tune_screen.cpp -- the search half of ShapeSearch: one sample each of many candidates, closing in on the promising
// ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/lookup.hpp"
#include "tuner/tune_shape.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kBatch = 8;          // candidates between two looks at the sentinel
constexpr double kHopeless = 1.25;         // one sample this much behind the best is enough to drop a candidate
constexpr double kSweepReach = 1.3;        // predictions up to this much above the best grid's are tried
constexpr double kBelievable = 1.5;        // a fitted model that says a candidate is this much behind is believed
constexpr std::size_t kEnoughToFit = 120;  // samples of this session
constexpr double kWorthAnother = 0.995;    // a generation of neighbours that gains less is the last

/// Those whose prediction is within `reach` of the first one's.
std::vector<RankedConfig> within(std::vector<RankedConfig> ranked, double reach) {
  if (ranked.empty()) return ranked;
  std::erase_if(ranked, [limit = reach * ranked.front().predicted_us](const RankedConfig& candidate) {
    return candidate.predicted_us > limit;
  });
  return ranked;
}

TrialStatus status_of(Verdict verdict) {
  return verdict == Verdict::incorrect   ? TrialStatus::incorrect
         : verdict == Verdict::timed_out ? TrialStatus::timeout
                                         : TrialStatus::launch_fail;
}

bool noisy(const RoundTimes& times) { return !times.throttle.empty() || times.sentinel_drift > kMostDrift; }

}  // namespace

std::optional<CompiledSpec> ShapeSearch::compiled(const KernelSpec& spec, double until_s, bool wait) {
  const Result<CompiledSpec>* result = state_.compiles.find(spec);
  if (result == nullptr && wait) result = state_.compiles.wait(spec, [&] { return stopped(until_s); });
  if (result == nullptr) return std::nullopt;
  if (specs_counted_.emplace(kernel_name(spec), true).second) {
    ++(*result ? result_.compiled : result_.rejected);
    if (!*result) {
      const auto ranked = rank_grids(state_.model.of(spec), state_.device, state_.request.problem, shape_, spec, 1);
      const Config config{.spec = spec, .grid = ranked.empty() ? 1 : ranked.front().config.grid};
      // Our own trouble (no process to compile in) says nothing about the kernel.
      const bool of_kernel = result->error().code != ErrorCode::internal;
      if (of_kernel && !known_.contains(to_json(config)))
        record(config, {}, TrialStatus::compile_fail, result->error().message, {});
    }
  }
  if (!*result) return std::nullopt;
  return **result;
}

std::vector<KernelSpec> ShapeSearch::spec_order() {
  // The list's own order was made from a prior; once something was measured the fitted model knows better.
  std::vector<KernelSpec> specs = state_.specs;
  if (state_.samples.empty()) return specs;
  std::map<std::string, double> predicted;
  for (const KernelSpec& spec : specs) {
    const auto* result = state_.compiles.find(spec);
    const int resident = result != nullptr && *result ? (*result)->resident : guess_resident(state_.device, spec);
    const auto ranked =
        rank_grids(state_.model.of(spec), state_.device, state_.request.problem, shape_, spec, resident);
    predicted[kernel_name(spec)] =
        ranked.empty() ? std::numeric_limits<double>::infinity() : ranked.front().predicted_us;
  }
  for (const auto& [name, us] : predicted)
    least_predicted_us_ = least_predicted_us_ > 0 ? std::min(least_predicted_us_, us) : us;
  std::stable_sort(specs.begin(), specs.end(), [&](const KernelSpec& a, const KernelSpec& b) {
    return predicted.at(kernel_name(a)) < predicted.at(kernel_name(b));
  });
  return specs;
}

std::vector<RankedConfig> ShapeSearch::promising(std::vector<RankedConfig> candidates) const {
  if (!model_fitted_ || best_us_ <= 0) return candidates;
  // A model that expects too much of every kernel at a new shape must not end the search.
  const double limit = kBelievable * std::max(best_us_, least_predicted_us_);
  std::erase_if(candidates, [limit](const RankedConfig& candidate) { return candidate.predicted_us > limit; });
  return candidates;
}

Result<void> ShapeSearch::screen(double until_s) {
  // The configurations to beat come first: whatever happens later, there is an answer.
  std::vector<Config> first = incumbents_;
  first.push_back(default_);
  first.insert(first.end(), relatives_.begin(), relatives_.end());
  for (const Config& config : first) {
    if (const auto known = compiled(config.spec, until_s)) {
      const double predicted = predict_us(state_.model.of(config.spec), state_.device, state_.request.problem, shape_,
                                          config, known->resident);
      const RankedConfig ranked{config, predicted};
      if (auto done = try_configs({&ranked, 1}, "screen", until_s); !done) return done;
    }
  }
  std::vector<RankedConfig> batch;
  model_fitted_ = state_.samples.size() >= kEnoughToFit;
  const std::vector<KernelSpec> specs = spec_order();
  for (std::size_t i = 0; i < specs.size() && !stopped(until_s); ++i) {
    report("screen", kernel_name(specs[i]), static_cast<int>(i), static_cast<int>(specs.size()));
    const std::optional<CompiledSpec> ready = compiled(specs[i], until_s);
    if (ready) {
      const auto ranked = rank_grids(state_.model.of(specs[i]), state_.device, state_.request.problem, shape_, specs[i],
                                     ready->resident);
      const auto chosen = state_.effort.every_grid ? within(ranked, state_.effort.reach)
                                                   : promising(spread(ranked, state_.effort.grids_per_spec));
      batch.insert(batch.end(), chosen.begin(), chosen.end());
    }
    if (batch.size() < kBatch && i + 1 < specs.size()) continue;
    if (auto done = try_configs(batch, "screen", until_s); !done) return done;
    batch.clear();
    if (!model_fitted_ && state_.samples.size() >= kEnoughToFit) {
      state_.model = fit_model(state_.prior, state_.device, state_.samples, state_.read_limits);
      model_fitted_ = true;
    }
  }
  return {};
}

std::vector<KernelSpec> ShapeSearch::best_specs(std::size_t count) const {
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : held_) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [](const Candidate* a, const Candidate* b) { return a->us < b->us; });
  std::vector<KernelSpec> specs;
  for (const Candidate* candidate : order) {
    if (specs.size() == count) break;
    if (std::find(specs.begin(), specs.end(), candidate->config.spec) == specs.end())
      specs.push_back(candidate->config.spec);
  }
  return specs;
}

Result<void> ShapeSearch::sweep(double until_s) {
  const std::vector<KernelSpec> specs = best_specs(state_.effort.sweep_specs);
  for (std::size_t i = 0; i < specs.size() && !stopped(until_s); ++i) {
    report("sweep", kernel_name(specs[i]), static_cast<int>(i), static_cast<int>(specs.size()));
    const auto ready = compiled(specs[i], until_s, false);
    if (!ready) continue;
    auto ranked =
        rank_grids(state_.model.of(specs[i]), state_.device, state_.request.problem, shape_, specs[i], ready->resident);
    if (auto done = try_configs(within(std::move(ranked), kSweepReach), "sweep", until_s); !done) return done;
  }
  return {};
}

Result<void> ShapeSearch::refine(double until_s) {
  for (int generation = 0; generation < state_.effort.refine_generations && !stopped(until_s); ++generation) {
    const double before = best_us_;
    std::vector<KernelSpec> near;
    for (const KernelSpec& spec : best_specs(state_.effort.refine_specs)) {
      for (const KernelSpec& next : neighbours(spec)) {
        if (std::find(near.begin(), near.end(), next) == near.end()) near.push_back(next);
      }
    }
    // Which fix-up is better depends on the grid more than on the kernel, and only tickets were screened.
    for (KernelSpec twin : generation == 0 ? best_specs(state_.effort.twin_specs) : std::vector<KernelSpec>{}) {
      twin.fixup = twin.fixup == FixUp::ticket ? FixUp::wait : FixUp::ticket;
      if (!twin.features.batch_invariant && validate(twin) && std::find(near.begin(), near.end(), twin) == near.end())
        near.push_back(twin);
    }
    state_.compiles.enqueue(near, /*urgent=*/true);
    // The grids that made the best candidates fast, and the model's own choice for each neighbour.
    std::vector<std::int64_t> grids;
    std::vector<const Candidate*> order;
    for (const Candidate& candidate : held_) order.push_back(&candidate);
    std::stable_sort(order.begin(), order.end(), [](const Candidate* a, const Candidate* b) { return a->us < b->us; });
    for (const Candidate* candidate : order) {
      if (grids.size() == state_.effort.grids_per_spec) break;
      if (std::find(grids.begin(), grids.end(), candidate->config.grid) == grids.end())
        grids.push_back(candidate->config.grid);
    }
    for (std::size_t i = 0; i < near.size() && !stopped(until_s); ++i) {
      report("refine", kernel_name(near[i]), static_cast<int>(i), static_cast<int>(near.size()));
      const auto ready = compiled(near[i], until_s);
      if (!ready) continue;
      const auto ranked =
          rank_grids(state_.model.of(near[i]), state_.device, state_.request.problem, shape_, near[i], ready->resident);
      std::vector<RankedConfig> wanted =
          state_.effort.every_grid ? within(ranked, state_.effort.reach) : promising(spread(ranked, 1));
      for (const RankedConfig& candidate : ranked) {
        if (std::find(grids.begin(), grids.end(), candidate.config.grid) != grids.end()) wanted.push_back(candidate);
      }
      if (auto done = try_configs(wanted, "refine", until_s); !done) return done;
    }
    if (best_us_ == 0 || best_us_ > before * kWorthAnother) break;
  }
  if (auto done = try_charges(until_s); !done) return done;
  // What proved itself here is worth a look for the other shapes.
  for (const KernelSpec& spec : best_specs(state_.effort.refine_specs)) {
    if (std::find(state_.specs.begin(), state_.specs.end(), spec) == state_.specs.end()) state_.specs.push_back(spec);
  }
  return {};
}

Result<void> ShapeSearch::try_charges(double until_s) {
  const DecodeProblem& problem = state_.request.problem;
  if (!is_ragged(visible_shape(problem, shape_)) || problem.features.batch_invariant) return {};
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : held_) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [](const Candidate* a, const Candidate* b) { return a->us < b->us; });
  if (order.size() > state_.effort.refine_specs) order.resize(state_.effort.refine_specs);
  std::vector<RankedConfig> charged;
  for (const Candidate* candidate : order) {
    const int now = candidate->config.segment_cost;
    for (const int cost : {0, now / 2, now + 1, 2 * now}) {
      if (cost == now) continue;
      Config config = candidate->config;
      config.segment_cost = cost;
      charged.push_back({config, candidate->us});
    }
  }
  return try_configs(charged, "refine", until_s);
}

Result<bool> ShapeSearch::passes_check(const Candidate& candidate) {
  const double begun_s = state_.backend.now_s();
  const Result<CheckOutcome> outcome = state_.backend.check(candidate.config);
  result_.gpu_seconds += state_.backend.now_s() - begun_s;
  if (!outcome && outcome.error().code == ErrorCode::interrupted) return false;  // nothing is known of it
  if (!outcome) {
    record(candidate.config, candidate.compiled, TrialStatus::launch_fail, outcome.error().message, {});
    return tl::unexpected(outcome.error());
  }
  if (outcome->verdict == Verdict::passed) return true;
  if (outcome->verdict == Verdict::incorrect) ++result_.incorrect;
  record(candidate.config, candidate.compiled, status_of(outcome->verdict), outcome->reason, {});
  return false;
}

Result<void> ShapeSearch::try_configs(std::span<const RankedConfig> configs, const char* phase, double until_s) {
  std::vector<Candidate> batch;
  for (const RankedConfig& ranked : configs) {
    if (stopped(until_s)) break;  // what was checked is timed all the same
    const std::string key = to_json(ranked.config);
    if (!seen_.emplace(key, true).second) continue;
    ++result_.candidates;
    const auto* result = state_.compiles.find(ranked.config.spec);
    Candidate candidate{.config = ranked.config, .compiled = result != nullptr && *result ? **result : CompiledSpec{}};
    if (const auto it = known_.find(key); it != known_.end()) {
      // Trials that never got as far as a time are settled; the others stand with the time they had.
      if (it->second.median_us <= 0) continue;
      candidate.known = true;
      candidate.us = it->second.median_us;
      held_.push_back(candidate);
      best_us_ = best_us_ == 0 ? candidate.us : std::min(best_us_, candidate.us);
      continue;
    }
    if (auto begun = begin_measuring(); !begun) return begun;
    report(phase, kernel_name(ranked.config.spec) + fmt::format(" G={}", ranked.config.grid), 0, 0);
    const Result<bool> passed = passes_check(candidate);
    if (!passed) return tl::unexpected(passed.error());
    if (!*passed) continue;
    batch.push_back(candidate);
    if (batch.size() == kBatch) {
      if (auto timed = time_batch(std::move(batch)); !timed) return timed;
      batch = {};
    }
  }
  return batch.empty() ? Result<void>{} : time_batch(std::move(batch));
}

Result<RoundTimes> ShapeSearch::time(std::span<const Config> configs) {
  const double begun_s = state_.backend.now_s();
  Result<RoundTimes> times = state_.backend.time(configs);
  result_.gpu_seconds += state_.backend.now_s() - begun_s;
  if (times && !times->neighbours.empty()) result_.neighbours = times->neighbours;
  return times;
}

Result<void> ShapeSearch::time_batch(std::vector<Candidate> batch) {
  std::vector<Config> configs;
  for (const Candidate& candidate : batch) configs.push_back(candidate.config);
  Result<RoundTimes> times = time(configs);
  for (int again = 0; again < 2 && times && noisy(*times); ++again) times = time(configs);
  if (!times && times.error().code == ErrorCode::interrupted) return {};
  if (!times && times.error().code == ErrorCode::launch_failed) {
    // One of them cannot be launched the way it is timed: it alone pays.
    if (batch.size() > 1) {
      for (Candidate& candidate : batch) {
        if (auto alone = time_batch({candidate}); !alone) return alone;
      }
      return {};
    }
    if (!record_condemned(batch[0]))
      record(batch[0].config, batch[0].compiled, TrialStatus::launch_fail, times.error().message, {});
    return {};
  }
  if (!times) {
    for (const Candidate& candidate : batch) {
      record(candidate.config, candidate.compiled, TrialStatus::launch_fail, times.error().message, {});
    }
    return tl::unexpected(times.error());
  }
  // The sentinel is the pure read: what slows it slows the candidates beside it.
  const double scale = times->sentinel_us > 0 && read_limit_us_ > 0 ? read_limit_us_ / times->sentinel_us : 1.0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (auto kept = keep(batch[i], times->us[i] * scale); !kept) return kept;
  }
  return {};
}

bool ShapeSearch::record_condemned(const Candidate& candidate) {
  const std::optional<CheckOutcome> outcome = state_.backend.condemned(candidate.config);
  if (!outcome) return false;
  record(candidate.config, candidate.compiled, status_of(outcome->verdict), outcome->reason, {});
  return true;
}

Result<void> ShapeSearch::keep(const Candidate& candidate, double us) {
  state_.samples.push_back({.problem = state_.request.problem,
                            .shape = shape_,
                            .config = candidate.config,
                            .resident = candidate.compiled.resident,
                            .us = us});
  if (best_us_ > 0 && us > best_us_ * kHopeless && !(candidate.config == default_)) {
    const double samples[] = {us};
    record(candidate.config, candidate.compiled, TrialStatus::pruned,
           fmt::format("{:.0f} % slower than the best so far in its first sample", (us / best_us_ - 1) * 100), samples);
    return {};
  }
  Candidate timed = candidate;
  timed.us = us;
  held_.push_back(timed);
  best_us_ = best_us_ == 0 ? us : std::min(best_us_, us);
  return {};
}

}  // namespace v1
}  // namespace leanattn
