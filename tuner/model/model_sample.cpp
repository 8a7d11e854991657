#include "tuner/model/model_sample.hpp"

#include <algorithm>

#include "generator/kernel_layout.hpp"
#include "runtime/lookup/parsed_texts.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kMostSamples = 50000;  // the latest ones

}  // namespace

Result<std::vector<ModelSample>> measured_samples(TuningDb& db, const DeviceModel& model, const DeviceFacts& device,
                                                  const DecodeProblem& problem, std::string_view policy) {
  const Result<std::vector<Trial>> trials = db.trials(model, to_json(problem), "", policy);
  if (!trials) return tl::unexpected(trials.error());
  ParsedTexts<Shape> shapes(shape_from_json);
  ParsedTexts<Config> configs(config_from_json);
  std::vector<ModelSample> samples;
  const std::size_t first = trials->size() - std::min(trials->size(), kMostSamples);
  for (std::size_t i = first; i < trials->size(); ++i) {
    const Trial& trial = (*trials)[i];
    if (trial.median_us <= 0) continue;
    const auto& shape = shapes(trial.shape);
    const auto& config = configs(trial.config);
    if (!shape || !config) continue;
    const int resident = resident_ctas_per_sm(device, trial.registers, layout_of(config->spec).threads,
                                              layout_of(config->spec).shared_bytes);
    samples.push_back({.problem = problem,
                       .shape = *shape,
                       .config = *config,
                       .resident = std::max(resident, 1),
                       .us = trial.median_us});
  }
  return samples;
}

}  // namespace v1
}  // namespace leanattn
