#include "tuner/model/portfolio_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kNearBest =
    1.1;  // the model is judged by a kernel's grids that take up to this many times its best time
constexpr double kOfInterest = 1.5;   // the same for held-out samples and the best time of their shape
constexpr double kWorthwhile = 1e-4;  // a kernel is added for at least this mean relative gain
constexpr std::size_t kFolds = 6;

using Samples = std::vector<const ModelSample*>;

struct KernelAtShape {
  Samples samples;
  double best_us = std::numeric_limits<double>::infinity();
};
/// What was measured at one shape, by kernel.
struct MeasuredShape {
  Shape shape;
  std::map<std::string, KernelAtShape> kernels;
  double best_us = std::numeric_limits<double>::infinity();
};

std::vector<MeasuredShape> by_shape(std::span<const ModelSample> samples) {
  std::map<std::string, MeasuredShape> shapes;
  for (const ModelSample& sample : samples) {
    if (!(sample.us > 0)) continue;
    MeasuredShape& at = shapes[to_json(sample.shape)];
    at.shape = sample.shape;
    at.best_us = std::min(at.best_us, sample.us);
    KernelAtShape& kernel = at.kernels[kernel_name(sample.config.spec)];
    kernel.samples.push_back(&sample);
    kernel.best_us = std::min(kernel.best_us, sample.us);
  }
  std::vector<MeasuredShape> list;
  list.reserve(shapes.size());
  for (auto& [json, at] : shapes) list.push_back(std::move(at));
  return list;
}

/// Chooses greedily: the next kernel is the one that lowers the shapes' mean of (best chosen time / best time) most.
std::vector<std::string> choose_kernels(std::span<const MeasuredShape* const> shapes) {
  constexpr double kWithout = 2.0;  // stands for that ratio at a shape where no chosen kernel was measured
  std::set<std::string> names;
  for (const MeasuredShape* at : shapes) {
    for (const auto& [name, kernel] : at->kernels) names.insert(name);
  }
  std::vector<std::string> chosen;
  std::vector<double> behind(shapes.size(), kWithout);
  while (chosen.size() < kMostPortfolioKernels) {
    const std::string* best = nullptr;
    double most = kWorthwhile * static_cast<double>(shapes.size());
    for (const std::string& name : names) {
      double gain = 0;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto kernel = shapes[i]->kernels.find(name);
        if (kernel != shapes[i]->kernels.end())
          gain += std::max(0.0, behind[i] - kernel->second.best_us / shapes[i]->best_us);
      }
      if (gain > most) most = gain, best = &name;
    }
    if (best == nullptr) break;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto kernel = shapes[i]->kernels.find(*best);
      if (kernel != shapes[i]->kernels.end())
        behind[i] = std::min(behind[i], kernel->second.best_us / shapes[i]->best_us);
    }
    chosen.push_back(*best);
    names.erase(*best);
  }
  return chosen;
}

/// Predictions are not good to more digits, and every engine reads the JSON that they would make longer.
double rounded(double value) { return std::round(value * 1e4) / 1e4; }

/// One kernel's times at one shape with grids of one kind.
struct TimesOfKind {
  std::vector<std::pair<double, double>> times;  ///< measured and modelled
  double best_us = std::numeric_limits<double>::infinity();
};

std::map<GridKind, TimesOfKind> by_kind(const ModelParameters& parameters, const DeviceFacts& device,
                                        const Samples& samples) {
  std::map<GridKind, TimesOfKind> kinds;
  for (const ModelSample* s : samples) {
    const ModelFeatures features = model_features(parameters, device, s->problem, s->shape, s->config, s->resident);
    TimesOfKind& of_kind = kinds[kind_of(features)];
    of_kind.times.emplace_back(s->us, predict_us(parameters, features));
    of_kind.best_us = std::min(of_kind.best_us, s->us);
  }
  return kinds;
}

/// Whether two kernels move and use KV in the same way, so that they differ in LeanTile and launch bounds only.
bool streams_alike(const KernelSpec& a, const KernelSpec& b) {
  return a.load == b.load && a.warps == b.warps && a.warp_tokens == b.warp_tokens && a.stages == b.stages &&
         a.fixup == b.fixup;
}

/// How far the kernel's model is off at one shape, for each kind of grid. A search does not time every kernel with
/// every kind of grid: where it left this kernel out, kernels that stream alike speak for it.
std::vector<SeenShape> seen_at(const PortfolioKernel& kernel, const DeviceFacts& device, const MeasuredShape& at) {
  Samples own, relatives;
  for (const auto& [name, measured] : at.kernels) {
    const KernelSpec& spec = measured.samples.front()->config.spec;
    if (!streams_alike(spec, kernel.spec)) continue;
    Samples& list = spec == kernel.spec ? own : relatives;
    list.insert(list.end(), measured.samples.begin(), measured.samples.end());
  }
  std::map<GridKind, TimesOfKind> kinds = by_kind(kernel.parameters, device, own);
  kinds.merge(by_kind(kernel.parameters, device, relatives));
  if (kinds.empty()) return {};
  const DecodeProblem& problem = (own.empty() ? relatives : own).front()->problem;
  ShapeFeatures here = shape_features_of(problem, at.shape, base_spec(device.arch, problem));
  for (double* octaves : {&here.outputs, &here.tokens_per_output, &here.raggedness}) *octaves = rounded(*octaves);
  std::vector<SeenShape> seen;
  for (const auto& [kind, of_kind] : kinds) {
    std::vector<double> ratios;
    for (const auto& [us, modelled] : of_kind.times) {
      if (us <= kNearBest * of_kind.best_us) ratios.push_back(std::log(us / modelled));
    }
    seen.push_back({.shape_features = here, .kind = kind, .log_ratio = rounded(median(ratios))});
  }
  return seen;
}

Portfolio portfolio_of(const DeviceFacts& device, std::span<const MeasuredShape* const> shapes,
                       std::span<const std::pair<std::int64_t, double>> read_limits) {
  std::vector<ModelSample> samples;
  for (const MeasuredShape* at : shapes) {
    for (const auto& [name, kernel] : at->kernels) {
      for (const ModelSample* sample : kernel.samples) samples.push_back(*sample);
    }
  }
  const CostModel model = fit_model(default_parameters(device), device, samples, read_limits);
  Portfolio portfolio{
      .kernels = {}, .samples = static_cast<int>(samples.size()), .shapes = static_cast<int>(shapes.size())};
  for (const std::string& name : choose_kernels(shapes)) {
    PortfolioKernel kernel;
    for (const MeasuredShape* at : shapes) {
      const auto found = at->kernels.find(name);
      if (found == at->kernels.end()) continue;
      const ModelSample& any = *found->second.samples.front();
      kernel.spec = any.config.spec, kernel.resident = any.resident, kernel.parameters = model.of(any.config.spec);
      break;
    }
    for (const MeasuredShape* at : shapes) {
      const std::vector<SeenShape> seen = seen_at(kernel, device, *at);
      kernel.seen.insert(kernel.seen.end(), seen.begin(), seen.end());
    }
    portfolio.kernels.push_back(std::move(kernel));
  }
  return portfolio;
}

/// How good a portfolio is at a shape that it was not fitted to.
struct HeldOut {
  std::vector<double> errors;
  double regret = 0;
};

HeldOut judge(const Portfolio& portfolio, const DeviceFacts& device, const MeasuredShape& at) {
  HeldOut held_out;
  double least = std::numeric_limits<double>::infinity(), chosen_us = at.best_us;
  for (const PortfolioKernel& kernel : portfolio.kernels) {
    const auto found = at.kernels.find(kernel_name(kernel.spec));
    if (found == at.kernels.end()) continue;
    for (const ModelSample* sample : found->second.samples) {
      const Prediction predicted = predict(kernel, device, sample->problem, sample->shape, sample->config);
      if (sample->us <= kOfInterest * at.best_us) held_out.errors.push_back(std::abs(predicted.us / sample->us - 1));
      if (predicted.doubtful_us < least) least = predicted.doubtful_us, chosen_us = sample->us;
    }
  }
  held_out.regret = chosen_us / at.best_us - 1;
  return held_out;
}

}  // namespace

Portfolio fit_portfolio(const DeviceFacts& device, std::span<const ModelSample> samples,
                        std::span<const std::pair<std::int64_t, double>> read_limits) {
  const std::vector<MeasuredShape> measured = by_shape(samples);
  std::vector<const MeasuredShape*> all;
  all.reserve(measured.size());
  for (const MeasuredShape& at : measured) all.push_back(&at);
  Portfolio portfolio = portfolio_of(device, all, read_limits);
  const std::size_t folds = std::min(kFolds, measured.size());
  std::vector<double> errors, regrets;
  for (std::size_t fold = 0; fold < folds && measured.size() > kFewestPortfolioShapes; ++fold) {
    std::vector<const MeasuredShape*> seen, unseen;
    for (std::size_t i = 0; i < measured.size(); ++i) (i % folds == fold ? unseen : seen).push_back(&measured[i]);
    const Portfolio without = portfolio_of(device, seen, read_limits);
    for (const MeasuredShape* at : unseen) {
      const HeldOut held_out = judge(without, device, *at);
      errors.insert(errors.end(), held_out.errors.begin(), held_out.errors.end());
      regrets.push_back(held_out.regret);
    }
  }
  if (!errors.empty()) {
    portfolio.held_out_error = median(errors);
    portfolio.held_out_median_regret = median(regrets);
    portfolio.held_out_largest_regret = *std::max_element(regrets.begin(), regrets.end());
  }
  return portfolio;
}

Result<void> refit(TuningDb& db, const DeviceFacts& device, const DecodeProblem& problem, std::string_view policy) {
  // One kernel and one way to launch it; and times with the exchange of a group in them.
  if (problem.features.batch_invariant || has_part_of_context(problem.features)) return {};
  const DeviceModel model = device_model(device);
  const auto samples = measured_samples(db, model, device, problem, policy);
  if (!samples) return tl::unexpected(samples.error());
  const auto read_limits = db.read_limits(model, policy);
  if (!read_limits) return tl::unexpected(read_limits.error());
  const Portfolio portfolio = fit_portfolio(device, *samples, *read_limits);
  if (portfolio.shapes < kFewestPortfolioShapes) return {};
  return db.set_cost_model(model,
                           {.problem = to_json(problem), .policy = std::string(policy), .json = to_json(portfolio)});
}

Result<int> refit_all(TuningDb& db) {
  const auto models = db.device_models();
  if (!models) return tl::unexpected(models.error());
  int kept = 0;
  for (const DeviceModel& model : *models) {
    const auto arch = parse_arch(model.arch);
    Result<DeviceFacts> device = arch ? facts_for_arch(*arch, model.sm_count) : tl::unexpected(arch.error());
    if (!device) continue;
    device->name = model.name, device->l2_bytes = model.l2_bytes, device->memory_bytes = model.memory_bytes;
    const auto winners = db.winners(model);
    if (!winners) return tl::unexpected(winners.error());
    std::set<std::pair<std::string, std::string>> problems;
    for (const Winner& winner : *winners) problems.emplace(winner.problem, winner.policy);
    for (const auto& [json, policy] : problems) {
      const auto problem = problem_from_json(json);
      if (!problem) continue;
      if (auto fitted = refit(db, *device, *problem, policy); !fitted) return tl::unexpected(fitted.error());
    }
    const auto fitted = db.cost_models(model);
    if (!fitted) return tl::unexpected(fitted.error());
    kept += static_cast<int>(fitted->size());
  }
  return kept;
}

}  // namespace v1
}  // namespace leanattn
