// candidates.hpp -- what the trials of one shape say beside its winner: the rivals, how far candidates spread, and what
// each parameter is worth. Internal to tuner/report. Pure functions; any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/parsed_texts.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A configuration that was timed for a shape.
struct TimedConfig {
  Config config;
  double median_us = 0;
  std::vector<double> samples;  ///< empty: the trial does not have them
  int sample_count = 0;
  int registers = 0;
};

/// The trial of this `software` that each configuration counts by: the timed one with the most samples, and the later
/// of equals. By the configuration's text; trials are given oldest first.
std::map<std::string, const Trial*> counted_trials(std::span<const Trial* const> trials, const Environment& software);

/// The timed trials of this `software`, the fastest first, those of counted_trials(). Trials that this version cannot
/// read are left out.
std::vector<TimedConfig> timed_configs(std::span<const Trial* const> trials, const Environment& software,
                                       ParsedTexts<Config>& configs);

/// Fills runner_up, flash_attention2, flash_decoding and candidates of a winner, and default_config if `device` is not
/// null.
void add_rivals(ReportedWinner& winner, std::span<const TimedConfig> timed, const DeviceFacts* device);

/// What each parameter is worth over the shapes of one problem. `timed[i]` belongs to `winners[i]`.
std::vector<ParameterSensitivity> sensitivity(std::span<const ReportedWinner* const> winners,
                                              std::span<const std::vector<TimedConfig>* const> timed);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
