// layers.hpp -- the winners of the user's, the site's and the shipped tuning.db, as one. Any thread; what is returned
// belongs to one thread at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/tuning/tuning_db.hpp"

namespace leanattn {
inline namespace v1 {

/// Layers of winners, first match wins: user, site (LEANATTN_SITE_DB names a file), shipped (LEANATTN_SHIPPED_DB, else
/// ../share/leanattn/tuning.db from the library's or program's directory). Missing layers are skipped; unusable ones
/// are skipped with a warning; one that is locked is waited for (2 s, LEANATTN_BUSY_TIMEOUT_MS), then skipped too. All
/// are opened read-only. `now` is what runs on this machine: a winner measured under
/// other software is stale, whichever layer it is from; nullopt leaves each layer its own view.
struct LayeredWinners {
  struct Entry {
    Winner winner;
    std::string layer;
  };
  std::vector<Entry> entries;
  std::vector<FittedModel> models;
  std::vector<std::string> warnings;
  bool locked = false;  ///< a layer is missing here because other processes kept it locked: worth another try
};
LayeredWinners load_layered_winners(const DeviceModel& device,
                                    const std::optional<std::filesystem::path>& user_directory,
                                    const std::optional<Environment>& now = std::nullopt);

/// The same winners, to be read when a problem is first met: of the hundred problems that a site has tuned, an engine
/// meets a few.
struct WinnersByProblem {
  std::vector<std::string> problems;  ///< that have winners, each once: those of the first layer first
  std::vector<FittedModel> models;
  std::vector<std::string> warnings;
  bool locked = false;  ///< as LayeredWinners::locked
  /// Winners of these problems, and what to warn about; no models. No file stays open between two calls, so each says
  /// what the files hold by then. One thread at a time. May be empty where there are no problems.
  std::function<LayeredWinners(std::span<const std::string> problems)> read;
};
WinnersByProblem open_layered_winners(const DeviceModel& device,
                                      const std::optional<std::filesystem::path>& user_directory,
                                      const std::optional<Environment>& now = std::nullopt);
/// Those that are in memory already.
WinnersByProblem by_problem(LayeredWinners winners);

}  // namespace v1
}  // namespace leanattn
