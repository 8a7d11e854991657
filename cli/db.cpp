#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/caches.hpp"
#include "cli/commands.hpp"
#include "cli/sizes.hpp"
#include "cli/table.hpp"
#include "tuner/portfolio_fit.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

struct DbFlags {
  CLI::App* path = nullptr;
  CLI::App* stats = nullptr;
  CLI::App* check = nullptr;
  CLI::App* gc = nullptr;
  CLI::App* rebuild = nullptr;
  CLI::App* export_to = nullptr;
  CLI::App* import_from = nullptr;
  std::string file;
  std::string keep_days, max_size;
};

/// One fact: as JSON, or as the sentence.
int done(const Session& session, const Json& json, const std::string& text) {
  print(session.json ? json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text + "\n");
  return kExitOk;
}

int show_stats(const Session& session, TuningDb& db) {
  const Result<DbStats> stats = db.stats();
  if (!stats) return report_error(stats.error());
  const std::pair<const char*, std::int64_t> rows[] = {{"device_models", stats->device_models},
                                                       {"environments", stats->environments},
                                                       {"problems", stats->problems},
                                                       {"configs", stats->configs},
                                                       {"sessions", stats->sessions},
                                                       {"trials", stats->trials},
                                                       {"winners", stats->winners},
                                                       {"bytes", stats->bytes}};
  Json json;
  std::string text;
  for (const auto& [name, count] : rows) {
    json[name] = count;
    text += fmt::format("{:<14} {:>10}\n", name, count);
  }
  // Winners of one GPU model never answer for another, so they are counted apart.
  Json devices = Json::array();
  Table table{
      .headings = {"sms", "sessions", "trials", "winners", "stale", "device"}, .rows = {}, .right_aligned = "rrrrrl"};
  for (const DeviceStats& device : stats->devices) {
    devices.push_back({{"name", device.model.name},
                       {"arch", device.model.arch},
                       {"sms", device.model.sm_count},
                       {"mig_profile", device.model.mig_profile},
                       {"sessions", device.sessions},
                       {"trials", device.trials},
                       {"winners", device.winners},
                       {"stale_winners", device.stale_winners}});
    table.rows.push_back({std::to_string(device.model.sm_count), std::to_string(device.sessions),
                          std::to_string(device.trials), std::to_string(device.winners),
                          std::to_string(device.stale_winners),
                          fmt::format("{} ({})", device.model.name, device.model.arch)});
  }
  json["devices"] = std::move(devices);
  if (!table.rows.empty()) text += "\n" + to_text(table);
  text.pop_back();
  return done(session, json, text);
}

/// The command's limits, or 90 days where none was given.
Result<GarbageLimits> garbage_limits(const DbFlags& flags) {
  GarbageLimits limits;
  if (!flags.keep_days.empty()) {
    const Result<std::int64_t> days = parse_size("--keep-days", flags.keep_days, 0, 36500);
    if (!days) return tl::unexpected(days.error());
    limits.keep_days = static_cast<int>(*days);
  }
  if (!flags.max_size.empty()) {
    const Result<std::int64_t> bytes =
        parse_size("--max-size", flags.max_size, 0, std::numeric_limits<std::int64_t>::max());
    if (!bytes) return tl::unexpected(bytes.error());
    limits.max_bytes = *bytes;
  }
  if (!limits.keep_days && !limits.max_bytes) limits.keep_days = 90;
  return limits;
}

int collect_garbage(const Session& session, TuningDb& db, const GarbageLimits& limits) {
  const Result<GarbageCollected> collected = db.collect_garbage(limits);
  if (!collected) return report_error(collected.error());
  if (limits.max_bytes && collected->bytes > *limits.max_bytes) {
    note(session,
         fmt::format("{} are left: winners, and what they were chosen by, stay.", format_bytes(collected->bytes)));
  }
  return done(session, {{"dropped_trials", collected->trials}, {"bytes", collected->bytes}},
              fmt::format("dropped {} trials, {} are left", collected->trials, format_bytes(collected->bytes)));
}

int show_check(const Session& session, TuningDb& db, const std::string& directory) {
  const Result<std::vector<std::string>> findings = db.check();
  if (!findings) return report_error(findings.error());
  if (findings->empty()) return done(session, {{"sound", true}, {"findings", Json::array()}}, "sound");
  std::string text;
  for (const std::string& finding : *findings) text += (text.empty() ? "" : "\n") + finding;
  done(session, {{"sound", false}, {"findings", *findings}}, text);
  return report_error({ErrorCode::database_corrupt,
                       fmt::format("{}: {} findings", directory, findings->size()),
                       "Keep a copy of the file; the next read-write command moves a damaged one aside.",
                       {}});
}

int run(const Session& session, const DbFlags& flags) {
  const Result<GarbageLimits> limits = garbage_limits(flags);
  if (!limits) return report_error(limits.error());
  const Result<Caches> caches = open_caches(session, CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  const std::string directory = caches->directory->string();
  if (flags.path->parsed()) return done(session, {{"path", directory}}, directory);

  std::error_code ignored;
  if (flags.export_to->parsed() && !std::filesystem::exists(*caches->directory / "tuning.db", ignored)) {
    return report_error(
        {ErrorCode::not_found, fmt::format("there is no database in {}", directory), "`leanattn tune` makes one.", {}});
  }
  const bool reads = flags.stats->parsed() || flags.check->parsed() || flags.export_to->parsed();
  Result<std::unique_ptr<TuningDb>> opened =
      open_tuning(*caches, reads ? OpenMode::read_only : OpenMode::read_write, CacheNeed::durable);
  if (!opened) return report_error(opened.error());
  TuningDb& db = **opened;

  if (flags.stats->parsed()) return show_stats(session, db);
  if (flags.check->parsed()) return show_check(session, db, directory);
  if (flags.export_to->parsed()) {
    if (const Result<void> copied = db.export_to(std::filesystem::absolute(flags.file)); !copied)
      return report_error(copied.error());
    return done(session, {{"exported", flags.file}}, "exported to " + flags.file);
  }
  if (flags.import_from->parsed()) {
    const Result<std::int64_t> added = db.import_from(std::filesystem::absolute(flags.file));
    if (!added) return report_error(added.error());
    if (*added > 0) {
      if (const Result<int> fitted = refit_all(db); !fitted) return report_error(fitted.error());
    }
    return done(session, {{"imported", flags.file}, {"new_trials", *added}},
                fmt::format("{} new trials from {}", *added, flags.file));
  }
  if (flags.rebuild->parsed()) {
    if (const Result<void> rebuilt = db.rebuild_winners(); !rebuilt) return report_error(rebuilt.error());
    const Result<int> models = refit_all(db);
    if (!models) return report_error(models.error());
    const Result<DbStats> stats = db.stats();
    if (!stats) return report_error(stats.error());
    return done(session, {{"winners", stats->winners}, {"cost_models", *models}},
                fmt::format("{} winners and {} cost models from {} trials", stats->winners, *models, stats->trials));
  }
  return collect_garbage(session, db, *limits);
}

}  // namespace

Command add_db(CLI::App& program) {
  auto flags = std::make_shared<DbFlags>();
  CLI::App* app =
      program.add_subcommand("db", "The tuning database: where it is, whether it is sound, moving it about");
  app->require_subcommand(1);
  flags->path = app->add_subcommand("path", "Print the cache directory");
  flags->stats = app->add_subcommand("stats", "Rows, bytes, and what there is of each GPU model");
  flags->check = app->add_subcommand("check", "Integrity; exits 6 when something is wrong");
  flags->gc = app->add_subcommand("gc", "Drop old trials that are not winners, and shrink the file");
  flags->gc
      ->add_option("--keep-days", flags->keep_days, "Age in days from which trials go; default 90, without --max-size")
      ->type_name("N");
  flags->gc
      ->add_option("--max-size", flags->max_size, "Then the oldest go until the file has so many bytes, such as 64m")
      ->type_name("BYTES");
  flags->export_to = app->add_subcommand("export", "Write a consistent copy to a new file");
  flags->export_to->add_option("file", flags->file, "The new file; never overwritten")->required()->type_name("FILE");
  flags->import_from = app->add_subcommand("import", "Merge another database: union of trials, winners recomputed");
  flags->import_from->add_option("file", flags->file, "A tuning.db or an export")->required()->type_name("FILE");
  flags->rebuild = app->add_subcommand("rebuild", "Recompute the winners from the trials");
  return {app, [flags](const Session& session) { return run(session, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
