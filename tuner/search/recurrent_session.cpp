#include "tuner/search/recurrent_session.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "generator/recurrent/recurrent_json.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {

RecurrentTrial trial_of(const RecurrentSpec& spec, int batch, TrialStatus status, std::string reason) {
  return {.batch = batch,
          .config = to_json(spec),
          .kernel_revision = kernel_revision(spec),
          .status = status,
          .reason = std::move(reason)};
}

void keep(const RecurrentSession& session, RecurrentTrial of) {
  const Summary summary = summarize(of.samples);
  Trial trial;
  trial.problem = to_json(session.request.problem), trial.shape = batch_to_json(of.batch);
  trial.policy = to_string(session.request.policy);
  trial.config = std::move(of.config), trial.kernel_revision = std::move(of.kernel_revision);
  trial.status = of.status, trial.reason = std::move(of.reason);
  trial.samples = summary.samples, trial.median_us = summary.median, trial.mad_us = summary.mad;
  trial.low_us = summary.low, trial.high_us = summary.high;
  if (!of.samples.empty()) trial.samples_json = fmt::format("[{:.3f}]", fmt::join(of.samples, ","));
  trial.throttle = std::move(of.noise);
  trial.registers = of.registers;
  session.trials.add(std::move(trial));
}

}  // namespace v1
}  // namespace leanattn
