#include "tuner/worker/call_limit.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/lookup/cost_model.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kStartSeconds = 180;    // for the driver of a host with many GPUs, and for NVRTC and the oracle
constexpr double kCompileSeconds = 120;  // the slowest kernels take a few
constexpr double kPatienceSeconds = 30;  // added to what should take milliseconds
constexpr double kSlack = 100;           // allowed over a prediction
constexpr double kSampleUs = 600;        // what a candidate launches in a round, the part that is not timed included
constexpr double kChecks = 8;            // launches of a check, the half with dependent launches included
constexpr double kOracleRate = 1e4;      // FP64 multiplications a microsecond: a hundredth of a small GPU's
constexpr double kFillRate = 1e4;        // bytes a microsecond at which random K and V are written
constexpr double kMostHours = 24;

double oracle_us(const DecodeStep& step) {
  const DecodeProblem& problem = step.problem;
  // What a query token does not see counts, too, unless it is known how many there are. The oracle attends to the
  // contexts of all ranks.
  const double most = static_cast<double>(std::min<std::int64_t>(problem.features.q_len, step.shape.longest_context)),
               all = static_cast<double>(total_tokens(step.shape));
  const QueryMix& mix = step.shape.mix;
  const double pairs = step.is_mixed() ? all - static_cast<double>(mix.chunk_context - mix.chunk_pairs)
                                       : all * problem.features.context_parallel * most;
  return pairs * problem.q_heads * (problem.head_dim + v_head_dim(problem)) / kOracleRate;
}

double predicted_us(const DecodeStep& step, const Config& config) {
  return predict_us(default_parameters(step.device), step, config, guess_resident(step.device, config.spec));
}

double seconds_for(const WorkerCall& call) {
  double us = 0;
  switch (call.kind) {
    case WorkerCall::Kind::start: return kStartSeconds;
    case WorkerCall::Kind::compile: return kCompileSeconds;
    case WorkerCall::Kind::prepare: {
      // There are several copies of K and V, and read kernels are timed on them.
      const double bytes = static_cast<double>(call.step->bytes);
      us = bytes / kFillRate + 3.0 * static_cast<double>(call.step->device.l2_bytes) / kFillRate;
      return kStartSeconds + us * 1e-6 * kSlack;
    }
    case WorkerCall::Kind::check:
      for (const Config& config : call.configs) us += kSlack * kChecks * predicted_us(*call.step, config);
      us += oracle_us(*call.step);
      break;
    case WorkerCall::Kind::time:
      for (const Config& config : call.configs) us += kSlack * (kSampleUs + 2 * predicted_us(*call.step, config));
      break;
  }
  return kPatienceSeconds + us * 1e-6;
}

}  // namespace

std::chrono::milliseconds default_call_limit(const WorkerCall& call) {
  const double seconds = seconds_for(call);
  // A wrong prediction must not make the limit zero or infinite.
  const double kept =
      std::isfinite(seconds) ? std::clamp(seconds, kPatienceSeconds, kMostHours * 3600) : kMostHours * 3600;
  return std::chrono::milliseconds(static_cast<std::int64_t>(kept * 1000));
}

}  // namespace v1
}  // namespace leanattn
