// tune_shape.cpp -- ShapeSearch from start to answer; the phases themselves are in tune_screen.cpp and tune_decide.cpp.
#include "tuner/tune_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/lookup.hpp"
#include "runtime/lookup_grid.hpp"
#include "runtime/parsed_texts.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Shares of a shape's time by which the phases end.
constexpr double kScreenEnds = 0.45, kSweepEnds = 0.6, kRefineEnds = 0.75;

// Rough shares of the work that is done when a phase starts, for the estimate of what is left.
double work_done(std::string_view phase) {
  if (phase == "screen") return 0;
  if (phase == "sweep") return 0.45;
  if (phase == "refine") return 0.65;
  if (phase == "race") return 0.85;
  return 0.95;
}

double work_of(std::string_view phase) { return phase == "screen" ? 0.45 : phase == "confirm" ? 0.05 : 0.2; }

bool same_problem(const KernelSpec& spec, const KernelSpec& base) {
  return spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group &&
         spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse && spec.pdl == base.pdl &&
         spec.features == base.features;
}

/// How far apart two launches are, in octaves of output tiles and of tokens a request.
double octaves_between(const DecodeProblem& a, const Shape& at_a, const DecodeProblem& b, const Shape& at_b) {
  const auto octaves = [](double x, double y) { return std::abs(std::log2(x / y)); };
  return octaves(static_cast<double>(a.kv_heads) * at_a.batch, static_cast<double>(b.kv_heads) * at_b.batch) +
         octaves(static_cast<double>(at_a.longest_context), static_cast<double>(at_b.longest_context));
}

/// The same problem, launched the other way.
DecodeProblem with_other_launch(DecodeProblem problem) {
  problem.pdl = !problem.pdl;
  return problem;
}

}  // namespace

ShapeSearch::ShapeSearch(SessionState& state, int index, double deadline_s)
    : state_(state),
      index_(index),
      shape_(canonical(state.request.shapes[static_cast<std::size_t>(index)])),
      problem_json_(to_json(state.request.problem)),
      shape_json_(to_json(shape_)),
      started_s_(state.backend.now_s()),
      deadline_s_(deadline_s) {
  result_.shape = state.request.shapes[static_cast<std::size_t>(index)];
  default_ = default_config(state.device, state.request.problem, shape_);
  result_.winner = default_;
}

double ShapeSearch::phase_end(double share) const { return started_s_ + (deadline_s_ - started_s_) * share; }

bool ShapeSearch::fits(const Config& config) const {
  return same_problem(config.spec, base_spec(state_.device.arch, state_.request.problem)) &&
         validate(config.spec).has_value();
}

Result<TunedShape> ShapeSearch::run() {
  if (state_.request.revalidate) {
    const Result<bool> confirmed = revalidate();
    if (!confirmed) return tl::unexpected(confirmed.error());
    if (!*confirmed) {
      if (auto committed = state_.trials.drain(); !committed) return tl::unexpected(committed.error());
      return known_answer(state_.request, state_.device, result_.shape, state_.db);
    }
    if (auto done = answer(); !done) return tl::unexpected(done.error());
    return result_;
  }
  if (auto loaded = load_known(); !loaded) return tl::unexpected(loaded.error());
  if (finished_earlier()) {
    if (auto done = answer(); !done) return tl::unexpected(done.error());
    return result_;
  }
  std::vector<KernelSpec> first{default_.spec};
  for (const Config& incumbent : incumbents_) first.push_back(incumbent.spec);
  for (const Config& relative : relatives_) first.push_back(relative.spec);
  state_.compiles.enqueue(first, /*urgent=*/true);
  state_.compiles.enqueue(state_.specs);

  if (auto done = screen(phase_end(kScreenEnds)); !done) return tl::unexpected(done.error());
  if (stopped(phase_end(kScreenEnds))) result_.finished = false;
  state_.model = fit_model(state_.prior, state_.device, state_.samples, state_.read_limits);
  if (auto done = sweep(phase_end(kSweepEnds)); !done) return tl::unexpected(done.error());
  if (auto done = refine(phase_end(kRefineEnds)); !done) return tl::unexpected(done.error());
  if (stopped(phase_end(kRefineEnds))) result_.finished = false;

  const auto tried_default =
      std::find_if(held_.begin(), held_.end(), [&](const Candidate& c) { return c.config == default_; });
  if (tried_default != held_.end()) result_.default_us = tried_default->us;
  if (auto done = decide(); !done) return tl::unexpected(done.error());
  if (auto done = answer(); !done) return tl::unexpected(done.error());
  return result_;
}

Result<void> ShapeSearch::load_known() {
  if (auto committed = state_.trials.drain(); !committed) return committed;
  const Result<std::vector<Winner>> winners = state_.db.winners(state_.device_model);
  if (!winners) return tl::unexpected(winners.error());
  const KernelSpec base = base_spec(state_.device.arch, state_.request.problem);
  const std::string other_json = to_json(with_other_launch(state_.request.problem));
  for (const Winner& winner : *winners) {
    const bool other = winner.problem == other_json;
    if (!(other || winner.problem == problem_json_) || winner.shape != shape_json_ || winner.policy != state_.policy())
      continue;
    Result<Config> config = config_from_json(winner.config);
    if (!config) continue;
    // What won with the other kind of launch is where a look-up would begin here: it has to be beaten, too.
    if (other) config->spec.pdl = base.pdl;
    const bool known = std::find(incumbents_.begin(), incumbents_.end(), *config) != incumbents_.end();
    if (fits(*config) && !known && !(*config == default_)) incumbents_.push_back(*config);
  }
  find_relatives(*winners);
  if (!state_.request.resume) return {};
  Result<std::vector<Trial>> trials =
      state_.db.trials(state_.device_model, problem_json_, shape_json_, state_.policy());
  if (!trials) return tl::unexpected(trials.error());
  for (Trial& trial : *trials) {
    if (same_software(trial.environment, state_.environment)) known_.insert_or_assign(trial.config, std::move(trial));
  }
  return {};
}

void ShapeSearch::find_relatives(const std::vector<Winner>& winners) {
  constexpr std::size_t kMost = 8;
  constexpr double kFarthest = 3;  // octaves
  const DecodeProblem& problem = state_.request.problem;
  if (problem.features.batch_invariant) return;  // one kernel for all shapes, and it is the default's
  const KernelSpec base = base_spec(state_.device.arch, problem);
  std::vector<std::pair<double, Config>> found;
  ParsedTexts<DecodeProblem> problems(problem_from_json);
  ParsedTexts<Config> configs(config_from_json);
  for (const Winner& winner : winners) {
    if (winner.policy != state_.policy()) continue;
    const auto& other = problems(winner.problem);
    if (!other || other->head_dim != problem.head_dim || other->q_heads / other->kv_heads != base.group) continue;
    const auto shape = shape_from_json(winner.shape);
    const auto& config = configs(winner.config);
    if (!shape || !config) continue;
    const double octaves = octaves_between(*other, *shape, problem, shape_);
    if (octaves > kFarthest) continue;
    const auto spec = detail::with_tunables_of(base, config->spec);
    if (!spec) continue;
    Config relative{.spec = *spec, .grid = config->grid, .segment_cost = config->segment_cost};
    if (octaves > 0) {
      const auto ranked = rank_grids(state_.model.of(*spec), state_.device, problem, shape_, *spec,
                                     guess_resident(state_.device, *spec));
      if (ranked.empty()) continue;
      relative = ranked.front().config;
    }
    found.emplace_back(octaves, relative);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& entry : found) {
    if (relatives_.size() == kMost) break;
    const Config& relative = entry.second;
    const auto same = [&](const Config& config) { return config.spec == relative.spec; };
    if (!same(default_) && std::none_of(relatives_.begin(), relatives_.end(), same) &&
        std::none_of(incumbents_.begin(), incumbents_.end(), same))
      relatives_.push_back(relative);
  }
}

bool ShapeSearch::finished_earlier() {
  bool finished = false;
  for (const auto& [config, trial] : known_) {
    finished = finished || (trial.status == TrialStatus::ok && trial.samples >= state_.effort.confirm_rounds_min);
    if (config == to_json(default_)) result_.default_us = trial.median_us;
  }
  if (finished) result_.candidates = static_cast<int>(known_.size());
  return finished;
}

Result<void> ShapeSearch::begin_measuring() {
  if (measuring_) return {};
  const Result<double> read_limit = state_.backend.begin_shape(shape_);
  if (!read_limit) return tl::unexpected(read_limit.error());
  measuring_ = true;
  read_limit_us_ = *read_limit;
  return {};
}

void ShapeSearch::record(const Config& config, const CompiledSpec& compiled, TrialStatus status, std::string reason,
                         std::span<const double> samples, const std::string& throttle) {
  const Summary summary = summarize(samples);
  Trial trial;
  trial.problem = problem_json_, trial.shape = shape_json_, trial.policy = state_.policy(),
  trial.config = to_json(config);
  trial.status = status, trial.reason = std::move(reason);
  trial.samples = summary.samples, trial.median_us = summary.median, trial.mad_us = summary.mad;
  trial.low_us = summary.low, trial.high_us = summary.high;
  if (!samples.empty()) trial.samples_json = fmt::format("[{:.3f}]", fmt::join(samples, ","));
  trial.throttle = throttle;
  trial.registers = compiled.registers, trial.compile_ms = compiled.compile_ms;
  trial.bytes = kv_bytes(state_.request.problem, shape_);
  state_.trials.add(std::move(trial));
}

void ShapeSearch::report(const char* phase, const std::string& candidate, int done, int total) {
  if (!state_.progress) return;
  const double now = state_.backend.now_s();
  const int count = static_cast<int>(state_.request.shapes.size());
  const double part =
      work_done(phase) + work_of(phase) * (total > 0 ? std::min(1.0, static_cast<double>(done) / total) : 0.5);
  const double share = (index_ + part) / count, elapsed = now - state_.started_s;
  const double eta = share > 0.02 ? elapsed * (1 - share) / share : 0;
  state_.progress({.shape = result_.shape,
                   .shape_index = index_,
                   .shape_count = count,
                   .phase = phase,
                   .candidate = candidate,
                   .done = done,
                   .total = total,
                   .best_us = best_us_,
                   .elapsed_s = elapsed,
                   .eta_s = std::clamp(eta, 0.0, std::max(state_.ends_s - now, 0.0))});
}

Result<TunedShape> tune_shape(SessionState& state, int index, double deadline_s) {
  return ShapeSearch(state, index, deadline_s).run();
}

}  // namespace v1
}  // namespace leanattn
