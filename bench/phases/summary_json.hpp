// summary_json.hpp -- summaries of samples as they stand in phases.json. Any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "tuner/measure/statistics.hpp"

namespace leanattn {

inline nlohmann::ordered_json summary_json(const std::vector<double>& samples) {
  const Summary summary = summarize(samples);
  return {{"median", summary.median}, {"low", summary.low}, {"high", summary.high}};
}

}  // namespace leanattn
