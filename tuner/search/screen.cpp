#include "tuner/search/screen.hpp"

#include <algorithm>
#include <limits>
#include <map>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kEnoughToTime = 8;   // candidates that are gathered before they are timed
constexpr std::size_t kEnoughToFit = 120;  // samples from which a fitted model is believed

/// The kernels in the order to be screened, with the model's least prediction for any of them.
struct SpecOrder {
  std::vector<KernelSpec> specs;
  double least_predicted_us = 0;
};

SpecOrder spec_order(const ShapeContext& context, const SessionKnowledge& knowledge) {
  // The list was ordered by the prior. Once something was measured, the fitted model knows better.
  SpecOrder order{.specs = knowledge.specs};
  if (knowledge.samples.empty()) return order;
  std::map<std::string, double> predicted;
  for (const KernelSpec& spec : order.specs) {
    const auto* result = context.session.compiles.find(spec);
    const int resident =
        result != nullptr && *result ? (*result)->resident : guess_resident(context.session.device, spec);
    const auto ranked = context.ranked_grids(knowledge.model, spec, resident);
    predicted[kernel_name(spec)] =
        ranked.empty() ? std::numeric_limits<double>::infinity() : ranked.front().predicted_us;
  }
  for (const auto& [name, us] : predicted)
    order.least_predicted_us = order.least_predicted_us > 0 ? std::min(order.least_predicted_us, us) : us;
  std::stable_sort(order.specs.begin(), order.specs.end(), [&](const KernelSpec& a, const KernelSpec& b) {
    return predicted.at(kernel_name(a)) < predicted.at(kernel_name(b));
  });
  return order;
}

Result<void> try_configs_to_beat(const ShapeContext& context, const EarlierResults& earlier, const CostModel& model,
                                 Measurer& measurer, double until_s, TimedCandidates& timed) {
  std::vector<Config> first = earlier.incumbents;
  first.push_back(context.default_config);
  first.insert(first.end(), earlier.relatives.begin(), earlier.relatives.end());
  for (const Config& config : first) {
    const auto ready = measurer.compiled(config.spec, model, until_s);
    if (!ready) continue;
    const RankedConfig ranked{config, predict_us(model.of(config.spec), context.step, config, ready->resident)};
    if (auto done = measurer.try_configs({&ranked, 1}, "screen", until_s, timed); !done) return done;
  }
  return {};
}

}  // namespace

Result<Screened> screen(const ShapeContext& context, const EarlierResults& earlier, const SessionKnowledge& knowledge,
                        Measurer& measurer, TimedCandidates timed, double until_s) {
  const SearchEffort& effort = context.session.effort;
  CostModel model = knowledge.model;
  Screened screened{.timed = std::move(timed)};
  if (auto done = try_configs_to_beat(context, earlier, model, measurer, until_s, screened.timed); !done)
    return tl::unexpected(done.error());
  screened.trust.fitted = knowledge.samples.size() >= kEnoughToFit;
  const SpecOrder order = spec_order(context, knowledge);
  screened.trust.least_predicted_us = order.least_predicted_us;
  const std::vector<KernelSpec>& specs = order.specs;
  std::vector<RankedConfig> batch;
  for (std::size_t i = 0; i < specs.size() && !context.stopped(until_s); ++i) {
    const double best_us = screened.timed.best_us();
    context.report("screen", kernel_name(specs[i]), static_cast<int>(i), static_cast<int>(specs.size()), best_us);
    if (const auto ready = measurer.compiled(specs[i], model, until_s)) {
      const auto ranked = context.ranked_grids(model, specs[i], ready->resident);
      const auto chosen = effort.every_grid ? within_reach(ranked, effort.reach)
                                            : screened.trust.promising(spread(ranked, effort.grids_per_spec), best_us);
      batch.insert(batch.end(), chosen.begin(), chosen.end());
    }
    if (batch.size() < kEnoughToTime && i + 1 < specs.size()) continue;
    if (auto done = measurer.try_configs(batch, "screen", until_s, screened.timed); !done)
      return tl::unexpected(done.error());
    batch.clear();
    if (!screened.trust.fitted && knowledge.samples.size() >= kEnoughToFit) {
      model = knowledge.fitted(context.session.device);
      screened.trust.fitted = true;
    }
  }
  return screened;
}

}  // namespace v1
}  // namespace leanattn
