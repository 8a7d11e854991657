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

/// Layers of winners: user, site (LEANATTN_SITE_DB names a file), shipped (LEANATTN_SHIPPED_DB, else
/// installed_database; "none": no such layer). Missing layers are skipped; unusable ones are skipped with a warning;
/// one that is locked is waited for (2 s, LEANATTN_BUSY_TIMEOUT_MS), then skipped too. All are opened read-only, and
/// the installed one without locks. `now` is what runs on this machine: a winner measured under other software is
/// stale, whichever layer it is from; without an environment in it, each layer has its own view of driver and NVRTC. Of
/// several layers that know a key, the one answers whose software is closest to `now`: that with the same driver, NVRTC
/// and kernel, else that with the same kernel, else that of the highest library version. Of equally close ones, and
/// without an environment, it is the first. So a winner of an older library does not hide one that came with the newer
/// library.
struct LayeredWinners {
  struct Entry {
    Winner winner;
    std::string layer;
  };
  std::vector<Entry> entries;
  std::vector<std::string> warnings;
  bool locked = false;  ///< a layer is missing here because other processes kept it locked: worth another try
};
LayeredWinners load_layered_winners(const DeviceModel& device,
                                    const std::optional<std::filesystem::path>& user_directory,
                                    const Software& now = {});

/// The same winners, to be read when a problem is first met: of the hundred problems that a site has tuned, an engine
/// meets a few.
struct WinnersByProblem {
  std::vector<std::string> problems;  ///< that have winners, each once: those of the first layer first
  std::vector<std::string> warnings;
  bool locked = false;  ///< as LayeredWinners::locked
  /// Winners of these problems, and what to warn about. No file stays open between two calls, so each says what the
  /// files hold by then. One thread at a time. May be empty where there are no problems.
  std::function<LayeredWinners(std::span<const std::string> problems)> read;
};
WinnersByProblem open_layered_winners(const DeviceModel& device,
                                      const std::optional<std::filesystem::path>& user_directory,
                                      const Software& now = {});
/// Those that are in memory already.
WinnersByProblem by_problem(LayeredWinners winners);

/// The database that is installed with this library or program, whether or not it is there. `directory` is
/// own_directory(). It is share/leanattn/tuning.db below the directory (a Python package), beside it (lib, bin), or,
/// from lib/x86_64-linux-gnu, beside the directory of libraries that it is in. Where none of these is there: beside.
std::filesystem::path installed_database(const std::filesystem::path& directory);

/// What one layer has.
struct LayerContents {
  struct Device {
    DeviceModel model;
    std::int64_t winners = 0;  ///< under all L2 policies
    std::int64_t changed = 0;  ///< of these, whose kernel is another one now
    Environment newest = {};   ///< what its sessions were last measured under; empty without sessions
  };
  std::string layer;  ///< "user", "site" or "shipped"
  std::filesystem::path file;
  bool installed = false;      ///< it came with the library; no variable or flag named it
  std::optional<Error> error;  ///< why it cannot be used; not_found: it does not exist
  std::vector<Device> devices;
};
/// Of every layer, in their order, those that cannot be used included.
std::vector<LayerContents> layer_contents(const std::optional<std::filesystem::path>& user_directory,
                                          const Software& now = {});

}  // namespace v1
}  // namespace leanattn
