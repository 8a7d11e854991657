// winner_rule.hpp -- which of several measured configurations wins. A pure function of the set of trials: their order,
// and which database they came from, never matters. Internal to cache/. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace detail {

/// With fewer samples than this a trial that lost overrules nothing.
inline constexpr int kFewestSamples = 3;

/// One `ok` trial of one (device model, problem, shape, policy), one that lost to another configuration, or one whose
/// result was wrong.
struct MeasuredTrial {
  std::int64_t id = 0;
  std::string uuid, config, created;
  int library_version = 0;  ///< of its session
  int schema_version = 0;   ///< of the database that its session was written to
  std::string driver;       ///< and NVRTC, as one text
  std::string library;      ///< its revision
  std::string kernel;       ///< its revision; that of the library, where it is not known
  double median_us = 0, low_us = 0, high_us = 0;
  int samples = 0;
  bool lost = false;   ///< it is `pruned`: it never wins, and may overrule others
  bool wrong = false;  ///< it is `incorrect`: its configuration never wins with its kernel
};

struct ChosenTrials {
  std::int64_t winner = 0;   ///< trial id
  std::int64_t fastest = 0;  ///< trial id of the lowest median, which may have tied with the winner
};

/// 1. Only trials under the same software as the newest one count: driver, NVRTC, library revision. The newest is that
///    of the highest library version; among those, of the highest schema version; among those, the most recently
///    created one. A trial whose clock ran ahead (created after `latest_credible`) is older than all others. Those that
///    lost, or were wrong, are not asked. Whether a kernel of an older library is still the same is not known here.
/// 2. Nor does a trial count whose configuration was tried later under that software with another kernel, or ever was
///    wrong with this kernel, under that driver and NVRTC and any library: a race may give right results in between.
/// 3. A trial is overruled where its configuration lost later, with the same kernel, driver and NVRTC and in at least
///    as many samples: the lucky time of a short tuning must not outlast a longer one that compared it. Where all are
///    overruled, none is.
/// 4. A configuration tried several times is represented by its middle trial (the slower of two): neither its luckiest
///    run, as min(time) would have it, nor its unluckiest.
/// 5. The lowest median is the fastest. Those whose intervals overlap its interval, and whose medians are within
///    kTieShare of it, tie with it; the smallest config text among them wins. The bound keeps a merely noisy trial from
///    tying by its wide interval.
/// nullopt without trials that may win.
std::optional<ChosenTrials> choose_winner(std::vector<MeasuredTrial> trials, std::string_view latest_credible);

inline constexpr double kTieShare = 0.02;

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
