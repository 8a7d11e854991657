#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cache/cubin/cubin_db.hpp"
#include "cache/files.hpp"
#include "cache/layers.hpp"
#include "cache/paths.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "cli/commands/doctor.hpp"
#include "cli/flags/sizes.hpp"
#include "generator/generator.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kLittleSpace = std::int64_t{64} << 20;

Finding damaged(std::string subject, const std::vector<std::string>& problems, std::string hint) {
  return bad(std::move(subject), {ErrorCode::database_corrupt, problems.front(), std::move(hint), {}});
}

/// A failure when the file may not be written. Reading is allowed in more cases.
std::optional<Finding> look_at_file(const std::filesystem::path& file) {
  const Result<detail::FileState> state = detail::check_file(file);
  if (state) return std::nullopt;
  Finding finding = bad(file.filename().string(), state.error());
  finding.hint =
      fmt::format("It has to be a regular file that only you can write. Use chown and chmod 600 on {}.", file.string());
  return finding;
}

Findings look_at_directory(const std::filesystem::path& directory) {
  Findings findings{good("cache", directory.string())};
  const detail::OpenPolicy policy = detail::open_policy(directory, 0);
  if (policy.network_filesystem) {
    findings.push_back(doubtful("cache", "the directory is on a network file system, where locking is unreliable",
                                "Point LEANATTN_CACHE_DIR at a local disk."));
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (!error && static_cast<std::int64_t>(space.available) < kLittleSpace) {
    findings.push_back(doubtful("cache",
                                fmt::format("only {} are free on its disk, too little to keep trials and kernels",
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
        "cache",
        fmt::format("{} damaged file{} put aside, {} in all", aside, aside == 1 ? "" : "s", format_bytes(bytes)),
        "What could be read of them is in the new databases. Delete *.corrupt-* when you do "
        "not need them, and check the disk."));
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
    return {absent ? good("tuning.db", "does not exist yet; `leanattn tune` makes it") : bad("tuning.db", db.error())};
  }
  Findings findings;
  if (!warning.empty()) findings.push_back(doubtful("tuning.db", warning, {}));
  const Result<std::vector<std::string>> problems = (*db)->check();
  if (!problems) {
    findings.push_back(bad("tuning.db", problems.error()));
  } else if (!problems->empty()) {
    findings.push_back(
        damaged("tuning.db", *problems,
                fmt::format("`leanattn db check --db {0}` lists all damage. `leanattn db rebuild --db {0}` "
                            "moves the file aside and keeps every trial that can still be read.",
                            directory.string())));
  } else if (const Result<DbStats> stats = (*db)->stats()) {
    findings.push_back(good("tuning.db", fmt::format("is sound and has {} trials and {} winners in {}", stats->trials,
                                                     stats->winners, format_bytes(stats->bytes))));
  } else {
    findings.push_back(bad("tuning.db", stats.error()));
  }
  return findings;
}

Finding look_at_cubin_db(const std::filesystem::path& directory) {
  const Result<CubinDbStats> stats = cubin_db_stats(directory);
  if (!stats) {
    const bool absent = stats.error().code == ErrorCode::not_found;
    return absent ? good("cubin.db", "does not exist yet; the first compilation makes it")
                  : bad("cubin.db", stats.error());
  }
  const Result<std::vector<std::string>> problems = check_cubin_db(directory);
  if (!problems) return bad("cubin.db", problems.error());
  if (!problems->empty()) {
    return damaged("cubin.db", *problems,
                   "You may delete the file. It is made anew, and damaged kernels are compiled again.");
  }
  return good("cubin.db", fmt::format("is sound and has {} kernels in {} of at most {}", stats->entries,
                                      format_bytes(stats->stored_bytes), format_bytes(stats->limit_bytes)));
}

/// What the layers know of one device model, as an engine would read them.
Finding look_at_winners(const DeviceFacts& device, const LayeredWinners& known) {
  const std::string subject = fmt::format("winners of {}", device.name);
  if (known.entries.empty()) {
    return good(subject, "there are none, so look-ups answer with defaults",
                "`leanattn tune --model NAME` finds winners. `leanattn db import FILE` adds those of an equal GPU.");
  }
  std::map<std::string, int> layers;
  int stale = 0, shipped_stale = 0;
  for (const LayeredWinners::Entry& entry : known.entries) {
    ++layers[entry.layer];
    if (entry.winner.stale) ++(entry.layer == "shipped" ? shipped_stale : stale);
  }
  std::string text = std::to_string(known.entries.size()) + ":";
  for (const auto& [layer, count] : layers)
    text += fmt::format("{} {} from the {} database", layer == layers.begin()->first ? "" : ",", count, layer);
  // What was shipped has seldom met this machine's driver and NVRTC. That is nothing to mend.
  if (shipped_stale > 0)
    text += fmt::format("; {} of the shipped under another driver, NVRTC or kernel", shipped_stale);
  if (stale == 0) return good(subject, std::move(text));
  return doubtful(
      subject,
      fmt::format("{}; {} {} stale, measured with another driver, NVRTC or kernel", text, stale,
                  stale == 1 ? "is" : "are"),
      "`leanattn tune --revalidate` measures them and their closest rivals again; those of recurrent states are "
      "for `leanattn recurrent tune`.");
}

/// The winners of a layer for each device model, and what they were measured under.
std::string describe(const LayerContents& layer) {
  std::string text;
  for (const LayerContents::Device& device : layer.devices) {
    if (device.winners == 0) continue;
    const Environment& newest = device.newest;
    text += fmt::format("{}{} for {} ({}, {} SMs{}{})", text.empty() ? "" : ", ", device.winners, device.model.name,
                        device.model.arch, device.model.sm_count, device.model.mig_profile.empty() ? "" : ", MIG ",
                        device.model.mig_profile);
    text += fmt::format(", measured with driver {} and NVRTC {}",
                        newest.driver_release.empty() ? "unknown" : newest.driver_release,
                        newest.nvrtc_version.empty() ? "unknown" : newest.nvrtc_version);
    if (device.changed > 0) text += fmt::format("; {} with kernels that have changed since", device.changed);
  }
  return fmt::format("{}, in {}", text.empty() ? "none" : text, layer.file.string());
}

/// What the site's and the shipped database have. Those that cannot be read are warned of elsewhere.
Findings look_at_layers(const std::vector<LayerContents>& layers) {
  Findings findings;
  bool shipped = false;
  for (const LayerContents& layer : layers) {
    shipped = shipped || layer.layer == "shipped";
    if (layer.layer == "user") continue;  // look_at_tuning_db()
    if (!layer.error) {
      findings.push_back(good(layer.layer + " winners", describe(layer)));
    } else if (layer.installed && layer.error->code == ErrorCode::not_found) {
      findings.push_back(good("shipped winners", fmt::format("none: there is no {}", layer.file.string())));
    }
  }
  if (!shipped) findings.push_back(good("shipped winners", "none are looked for, as LEANATTN_SHIPPED_DB says"));
  return findings;
}

/// The compiled kernels of the site's and the shipped layer.
Findings look_at_kernels(const std::vector<LayerContents>& layers) {
  Findings findings;
  std::string unusable;
  open_cubin_db(std::nullopt, &unusable);
  if (!unusable.empty()) {
    findings.push_back(doubtful("layers", unusable,
                                "Kernels are machine code. Let root own the file and its directory, and run `chmod "
                                "a+rX,go-w` on both."));
  }
  for (const LayerContents& layer : layers) {
    const std::filesystem::path directory = layer.file.parent_path();
    if (layer.layer == "user" || unusable.find(directory.string()) != std::string::npos) continue;
    if (const Result<CubinDbStats> stats = cubin_db_stats(directory)) {
      findings.push_back(good(layer.layer + " kernels", fmt::format("{} in {}", stats->entries, directory.string())));
    }
  }
  return findings;
}

/// How to mend what the layers warn of.
std::string cure_of(const std::string& warning, const std::vector<LayerContents>& layers) {
  const bool installed = std::any_of(layers.begin(), layers.end(), [&](const LayerContents& layer) {
    return layer.installed && warning.find(layer.file.string()) != std::string::npos;
  });
  return installed ? "Install leanattn again, or set LEANATTN_SHIPPED_DB=none, which leaves this file out."
                   : "Let LEANATTN_SITE_DB or LEANATTN_SHIPPED_DB name a readable tuning.db, or unset it.";
}

}  // namespace

Findings look_at_caches(const Console& console, const std::vector<DeviceFacts>& devices) {
  Findings findings;
  const auto add = [&](Findings more) { findings.insert(findings.end(), more.begin(), more.end()); };
  std::optional<std::filesystem::path> directory;
  if (const Result<std::filesystem::path> found = cache_directory(console.db, Access::read)) {
    directory = *found;
    if (const Result<std::filesystem::path> writable = cache_directory(console.db); !writable)
      add({doubtful("cache", writable.error().message + "; what is in it is used, but nothing is added",
                    writable.error().hint)});
    add(look_at_directory(*directory));
    for (const char* name : {"tuning.db", "cubin.db"}) {
      if (auto unsafe = look_at_file(*directory / name)) findings.push_back(*std::move(unsafe));
    }
    add(look_at_tuning_db(*directory));
    findings.push_back(look_at_cubin_db(*directory));
  } else {
    findings.push_back(bad("cache", found.error()));
  }
  Environment library;
  library.library_revision = generator_revision();
  const std::vector<LayerContents> layers = layer_contents(directory, with_kernels(library));
  add(look_at_layers(layers));
  add(look_at_kernels(layers));
  // Without a GPU, the site's and the shipped database are opened for an empty device model, to see whether they can
  // be.
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
    if (warning.starts_with("the user database")) continue;  // look_at_tuning_db() says it, with a hint
    std::string cure = cure_of(warning, layers);
    findings.push_back(doubtful("layers", std::move(warning), std::move(cure)));
  }
  return findings;
}

}  // namespace v1
}  // namespace leanattn
