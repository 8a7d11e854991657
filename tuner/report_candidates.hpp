// report_candidates.hpp -- what the trials of one shape say beside who won: rivals, spread, what each parameter is
// worth. For report.cpp. Pure functions; any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/parsed_texts.hpp"
#include "tuner/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A configuration that was timed for a shape.
struct TimedConfig {
  Config config;
  double median_us = 0;
  std::vector<double> samples;  ///< empty where the trial does not hold them
  int sample_count = 0;
  int registers = 0;
};

/// The timed trials among `trials` that are of the same `software`, each configuration once: by its trial with the most
/// samples, the later of equals. Trials this version cannot read are left out. Fastest first.
std::vector<TimedConfig> timed_configs(std::span<const Trial* const> trials, const Environment& software,
                                       ParsedTexts<Config>& configs);

/// Fills runner_up, flash_attention2, flash_decoding and candidates; default_config where `device` is known.
void add_rivals(ReportedWinner& winner, std::span<const TimedConfig> timed, const DeviceFacts* device);

/// Over the shapes of one problem; `timed[i]` belongs to `winners[i]`.
std::vector<ParameterSensitivity> sensitivity(std::span<const ReportedWinner* const> winners,
                                              std::span<const std::vector<TimedConfig>* const> timed);

/// Trials that are neither ok nor pruned, grouped.
std::vector<FailureGroup> failure_groups(const std::vector<Trial>& trials, ParsedTexts<Config>& configs);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
