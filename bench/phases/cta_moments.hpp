// cta_moments.hpp -- CtaMoments: when the CTAs of a launch reach each moment, from the stamps that they left. Pure
// functions; any thread; no GPU.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "templates/stamps.cuh"

namespace leanattn {

std::string_view to_string(LeanMoment moment);

class CtaMoments {
 public:
  /// Takes the stamps of one replay of a graph of `launches` launches: LeanStamp[launch][CTA][kMoments].
  void add(std::span<const LeanStamp> stamps, std::size_t launches);

  /// How far the CTAs of a launch lie apart, as standard deviations in nanoseconds: what a CTA is late by in every
  /// launch, and the rest, which changes from launch to launch.
  struct Spread {
    double always_ns = 0, now_ns = 0;
  };
  /// Of the moment at which the states of a CTA's warps are gathered. None of fewer than two launches or CTAs.
  std::optional<Spread> gathered_spread() const;

  /// "moments" of a row in phases.json: medians over launches. Moments that no CTA reached are left out.
  nlohmann::ordered_json json() const;

 private:
  /// Of one moment: nanoseconds from the start of the launch's first CTA to its earliest, middle and latest CTA's, a
  /// value a launch; and cycles from the CTA's own start, a value a CTA and launch.
  struct Times {
    std::vector<double> earliest, middle, latest, cycles;
  };
  std::array<Times, kMoments> times_;
  std::vector<std::vector<double>> gathered_ns_;  ///< [launch][CTA]
};

}  // namespace leanattn
