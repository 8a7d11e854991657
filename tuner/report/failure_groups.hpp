// failure_groups.hpp -- a device's failed trials, grouped by the reason that they share. Internal to tuner/report. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/lookup/parsed_texts.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The trials that are neither ok nor pruned. Reasons that differ only in kernels' names and in numbers form one group;
/// the group with the most trials comes first. Trials are given oldest first.
std::vector<FailureGroup> failure_groups(const std::vector<Trial>& trials, ParsedTexts<Config>& configs);

/// What a status means for a candidate: "gave a wrong result".
std::string_view cause_name(std::string_view status);
/// What the trials of a group have in common: "load ldg, ctas_per_sm 4"; empty if nothing.
std::string common_name(const FailureGroup& group);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
