#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cache/cubin_db.hpp"
#include "cache/database.hpp"
#include "cache/files.hpp"
#include "cache/paths.hpp"
#include "cache/tuning_db.hpp"
#include "cli/doctor.hpp"
#include "cli/sizes.hpp"
#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kLittleSpace = std::int64_t{64} << 20;

Finding damaged(std::string subject, const std::vector<std::string>& problems, std::string hint) {
  return bad(std::move(subject), {ErrorCode::database_corrupt, problems.front(), std::move(hint), {}});
}

/// Whether it may be written: reading is allowed where writing is refused.
std::optional<Finding> look_at_file(const std::filesystem::path& file) {
  const Result<detail::FileState> state = detail::check_file(file);
  if (state) return std::nullopt;
  Finding finding = bad(file.filename().string(), state.error());
  finding.hint = fmt::format("It has to be a regular file of yours: chown and chmod 600 {}", file.string());
  return finding;
}

Findings look_at_directory(const std::filesystem::path& directory) {
  Findings findings{good("cache", directory.string())};
  const detail::OpenPolicy policy = detail::open_policy(directory, 0);
  if (policy.network_filesystem) {
    findings.push_back(doubtful("cache", "on a network file system: locking there is unreliable",
                                "Point LEANATTN_CACHE_DIR at a local disk."));
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (!error && static_cast<std::int64_t>(space.available) < kLittleSpace) {
    findings.push_back(doubtful("cache",
                                fmt::format("only {} left on its disk: neither trials nor kernels can be kept",
                                            format_bytes(static_cast<std::int64_t>(space.available))),
                                "Free some space, or point LEANATTN_CACHE_DIR elsewhere."));
  }
  std::int64_t aside = 0, bytes = 0;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().find(".corrupt-") == std::string::npos) continue;
    std::error_code unknown;
    const std::uintmax_t size = entry->file_size(unknown);
    ++aside, bytes += unknown ? 0 : static_cast<std::int64_t>(size);
  }
  if (aside > 0) {
    findings.push_back(doubtful(
        "cache", fmt::format("{} damaged file{} put aside, {}", aside, aside == 1 ? "" : "s", format_bytes(bytes)),
        "What could be read of them is in the new databases; delete *.corrupt-* when you do "
        "not need them. A disk that damages files deserves a look."));
  }
  const int version = policy.sqlite_version;
  findings.push_back(
      good("SQLite", fmt::format("{}.{}.{}, {}", version / 1000000, version / 1000 % 1000, version % 1000,
                                 detail::may_use_wal(policy) ? "write-ahead log" : "rollback journal")));
  return findings;
}

Findings look_at_tuning_db(const std::filesystem::path& directory) {
  std::string warning;
  const Result<std::unique_ptr<TuningDb>> db = TuningDb::open(directory, OpenMode::read_only, &warning);
  if (!db) {
    const bool absent = db.error().code == ErrorCode::not_found;
    return {absent ? good("tuning.db", "not there yet; `leanattn tune` makes it") : bad("tuning.db", db.error())};
  }
  Findings findings;
  if (!warning.empty()) findings.push_back(doubtful("tuning.db", warning, {}));
  const Result<std::vector<std::string>> problems = (*db)->check();
  if (!problems) {
    findings.push_back(bad("tuning.db", problems.error()));
  } else if (!problems->empty()) {
    findings.push_back(damaged("tuning.db", *problems,
                               "`leanattn db check` lists everything; `leanattn db rebuild` moves the file aside and "
                               "keeps every trial that can still be read."));
  } else if (const Result<DbStats> stats = (*db)->stats()) {
    findings.push_back(good("tuning.db", fmt::format("sound, {} trials, {} winners, {}", stats->trials, stats->winners,
                                                     format_bytes(stats->bytes))));
  } else {
    findings.push_back(bad("tuning.db", stats.error()));
  }
  return findings;
}

Finding look_at_cubin_db(const std::filesystem::path& directory) {
  const Result<CubinDbStats> stats = cubin_db_stats(directory);
  if (!stats) {
    const bool absent = stats.error().code == ErrorCode::not_found;
    return absent ? good("cubin.db", "not there yet; the first compile makes it") : bad("cubin.db", stats.error());
  }
  const Result<std::vector<std::string>> problems = check_cubin_db(directory);
  if (!problems) return bad("cubin.db", problems.error());
  if (!problems->empty()) {
    return damaged("cubin.db", *problems,
                   "Delete the file if you like: it is made anew, and what is damaged is compiled again.");
  }
  return good("cubin.db", fmt::format("sound, {} kernels, {} of at most {}", stats->entries,
                                      format_bytes(stats->stored_bytes), format_bytes(stats->limit_bytes)));
}

/// What the layers know of one GPU model, as an engine would read them.
Finding look_at_winners(const DeviceFacts& device, const LayeredWinners& known) {
  const std::string subject = fmt::format("winners of {}", device.name);
  if (known.entries.empty()) {
    return good(subject, "none: look-ups answer with defaults",
                "`leanattn tune --model NAME` finds some, `leanattn db import FILE` takes those of an equal GPU.");
  }
  std::map<std::string, int> layers;
  int stale = 0;
  for (const LayeredWinners::Entry& entry : known.entries) ++layers[entry.layer], stale += entry.winner.stale ? 1 : 0;
  std::string text = std::to_string(known.entries.size()) + ":";
  for (const auto& [layer, count] : layers) text += fmt::format(" {} from the {} database", count, layer);
  if (stale == 0) return good(subject, std::move(text));
  return doubtful(subject, fmt::format("{}; {} stale: measured under another driver, NVRTC or library", text, stale),
                  "`leanattn tune --revalidate` measures them, and those close to them, again.");
}

}  // namespace

Findings look_at_caches(const Session& session, const std::vector<DeviceFacts>& devices) {
  Findings findings;
  const auto add = [&](Findings more) { findings.insert(findings.end(), more.begin(), more.end()); };
  std::optional<std::filesystem::path> directory;
  if (const Result<std::filesystem::path> found = cache_directory(session.db)) {
    directory = *found;
    add(look_at_directory(*directory));
    for (const char* name : {"tuning.db", "cubin.db"}) {
      if (auto unsafe = look_at_file(*directory / name)) findings.push_back(*std::move(unsafe));
    }
    add(look_at_tuning_db(*directory));
    findings.push_back(look_at_cubin_db(*directory));
  } else {
    findings.push_back(bad("cache", found.error()));
  }
  // Without a GPU the site's and the shipped database are opened all the same, for a model that nobody has.
  std::vector<std::string> warnings;
  std::vector<DeviceModel> seen;
  if (devices.empty()) warnings = load_layered_winners(DeviceModel{}, std::nullopt).warnings;
  for (const DeviceFacts& device : devices) {
    const DeviceModel model = device_model(device);
    if (std::find(seen.begin(), seen.end(), model) != seen.end()) continue;
    seen.push_back(model);
    LayeredWinners known = load_layered_winners(model, directory, current_software(device));
    findings.push_back(look_at_winners(device, known));
    if (seen.size() == 1) warnings = std::move(known.warnings);
  }
  for (std::string& warning : warnings) {
    if (warning.starts_with("the user database")) continue;  // said above, with a hint
    findings.push_back(doubtful("layers", std::move(warning),
                                "Let LEANATTN_SITE_DB or LEANATTN_SHIPPED_DB name a readable tuning.db, or unset it."));
  }
  return findings;
}

}  // namespace v1
}  // namespace leanattn
