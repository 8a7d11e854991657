#include "bench/phases/cta_moments.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tuner/measure/statistics.hpp"

namespace leanattn {
namespace {

/// The GPU's timer when the first CTA of a launch started. It wraps around at 2^32.
unsigned first_start(const LeanStamp* launch, std::size_t ctas) {
  unsigned first = launch[0].timer;
  for (std::size_t cta = 1; cta < ctas; ++cta) {
    const unsigned timer = launch[cta * kMoments].timer;
    if (static_cast<int>(timer - first) < 0) first = timer;
  }
  return first;
}

}  // namespace

std::string_view to_string(LeanMoment moment) {
  constexpr std::array<std::string_view, kMoments> kNames = {"started",  "placed",   "requested", "streamed",
                                                             "gathered", "finished", "done"};
  return kNames[moment];
}

void CtaMoments::add(std::span<const LeanStamp> stamps, std::size_t launches) {
  const std::size_t ctas = stamps.size() / launches / kMoments;
  for (std::size_t i = 0; i < launches; ++i) {
    const LeanStamp* const launch = &stamps[i * ctas * kMoments];
    const unsigned begin = first_start(launch, ctas);
    for (std::size_t moment = 0; moment < kMoments; ++moment) {
      Times& times = times_[moment];
      std::vector<double> ns;
      for (std::size_t cta = 0; cta < ctas; ++cta) {
        const LeanStamp& stamp = launch[cta * kMoments + moment];
        if (stamp.clock == 0 && stamp.timer == 0) continue;  // this kernel or CTA does not have this moment
        ns.push_back(static_cast<double>(stamp.timer - begin));
        times.cycles.push_back(static_cast<double>(stamp.clock - launch[cta * kMoments].clock));
      }
      if (ns.empty()) continue;
      times.earliest.push_back(*std::min_element(ns.begin(), ns.end()));
      times.middle.push_back(median(ns));
      times.latest.push_back(*std::max_element(ns.begin(), ns.end()));
      if (moment == kGathered && ns.size() == ctas) gathered_ns_.push_back(std::move(ns));
    }
  }
}

std::optional<CtaMoments::Spread> CtaMoments::gathered_spread() const {
  if (gathered_ns_.size() < 2 || gathered_ns_.front().size() < 2) return std::nullopt;
  // Components of variance of a two-way layout (launches, CTAs), both without bias.
  const auto launches = static_cast<double>(gathered_ns_.size()),
             ctas = static_cast<double>(gathered_ns_.front().size());
  std::vector<double> of_cta(gathered_ns_.front().size(), 0.0), of_launch;
  for (const auto& launch : gathered_ns_) {
    of_launch.push_back(std::accumulate(launch.begin(), launch.end(), 0.0) / ctas);
    for (std::size_t cta = 0; cta < launch.size(); ++cta) of_cta[cta] += (launch[cta] - of_launch.back()) / launches;
  }
  double between = 0, within = 0;
  for (const double late : of_cta) between += late * late / (ctas - 1);
  for (std::size_t launch = 0; launch < gathered_ns_.size(); ++launch) {
    for (std::size_t cta = 0; cta < of_cta.size(); ++cta) {
      const double rest = gathered_ns_[launch][cta] - of_launch[launch] - of_cta[cta];
      within += rest * rest / ((ctas - 1) * (launches - 1));
    }
  }
  return Spread{std::sqrt(std::max(0.0, between - within / launches)), std::sqrt(within)};
}

nlohmann::ordered_json CtaMoments::json() const {
  auto moments = nlohmann::ordered_json::array();
  for (std::size_t moment = 0; moment < kMoments; ++moment) {
    const Times& times = times_[moment];
    if (times.middle.empty()) continue;
    moments.push_back({{"moment", to_string(static_cast<LeanMoment>(moment))},
                       {"cycles", median(times.cycles)},
                       {"earliest_ns", median(times.earliest)},
                       {"median_ns", median(times.middle)},
                       {"latest_ns", median(times.latest)}});
  }
  return moments;
}

}  // namespace leanattn
