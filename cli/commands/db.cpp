#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "runtime/lookup/device_identity.hpp"

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

/// Prints one fact, as JSON or as text. Returns the exit code.
int done(const Console& console, const Json& json, const std::string& text) {
  if (console.json) {
    print_json(json);
  } else {
    print_text(text + "\n");
  }
  return kExitOk;
}

int show_stats(const Console& console, TuningDb& db) {
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
  // Winners of one device model never answer for another, so they are counted apart.
  Json devices = Json::array();
  Table table{
      .headings = {"sms", "sessions", "trials", "winners", "stale", "device"}, .rows = {}, .right_aligned = "rrrrrl"};
  for (const DeviceStats& device : stats->devices) {
    const Result<std::vector<Winner>> winners = db.winners(device.model, std::nullopt, with_kernels({}));
    if (!winners) return report_error(winners.error());
    const auto stale =
        std::count_if(winners->begin(), winners->end(), [](const Winner& winner) { return winner.stale; });
    devices.push_back({{"name", device.model.name},
                       {"arch", device.model.arch},
                       {"sms", device.model.sm_count},
                       {"mig_profile", device.model.mig_profile},
                       {"sessions", device.sessions},
                       {"trials", device.trials},
                       {"winners", device.winners},
                       {"stale_winners", stale}});
    table.rows.push_back({std::to_string(device.model.sm_count), std::to_string(device.sessions),
                          std::to_string(device.trials), std::to_string(device.winners), std::to_string(stale),
                          fmt::format("{} ({})", device.model.name, device.model.arch)});
  }
  json["devices"] = std::move(devices);
  if (!table.rows.empty()) text += "\n" + to_text(table, terminal_columns(stdout));
  text.pop_back();
  return done(console, json, text);
}

/// The limits that the flags give; 90 days when they give none.
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

int collect_garbage(const Console& console, TuningDb& db, const GarbageLimits& limits) {
  const Result<GarbageCollected> collected = db.collect_garbage(limits);
  if (!collected) return report_error(collected.error());
  if (limits.max_bytes && collected->bytes > *limits.max_bytes) {
    note(console, fmt::format("{} are left, because winners and the trials that decide them are never dropped.",
                              format_bytes(collected->bytes)));
  }
  return done(console, {{"dropped_trials", collected->trials}, {"bytes", collected->bytes}},
              fmt::format("{} trials were dropped, {} are left", collected->trials, format_bytes(collected->bytes)));
}

/// What is wrong with tuning.db, and with cubin.db if there is one. Errors: as of TuningDb::check and check_cubin_db.
Result<std::vector<std::string>> find_damage(TuningDb& db, const std::filesystem::path& directory) {
  Result<std::vector<std::string>> findings = db.check();
  if (!findings) return findings;
  Result<std::vector<std::string>> cubins = check_cubin_db(directory);
  if (!cubins && cubins.error().code == ErrorCode::not_found) return findings;
  if (!cubins && cubins.error().code != ErrorCode::database_corrupt) return cubins;
  if (!cubins) cubins = std::vector<std::string>{cubins.error().message};
  for (const std::string& finding : *cubins) findings->push_back("cubin.db: " + finding);
  return findings;
}

int show_check(const Console& console, TuningDb& db, const std::string& directory) {
  const Result<std::vector<std::string>> findings = find_damage(db, directory);
  if (!findings) return report_error(findings.error());
  if (findings->empty()) return done(console, {{"sound", true}, {"findings", Json::array()}}, "the database is sound");
  std::string text;
  for (const std::string& finding : *findings) text += (text.empty() ? "" : "\n") + finding;
  done(console, {{"sound", false}, {"findings", *findings}}, text);
  return report_error(
      {ErrorCode::database_corrupt,
       fmt::format("the database in {} is damaged: {} findings", directory, findings->size()),
       fmt::format("`leanattn db rebuild --db {}` puts a damaged tuning.db aside, keeps every trial that can still be "
                   "read, and derives the winners anew. A damaged cubin.db can be deleted: kernels are compiled again.",
                   directory),
       {}});
}

/// The error of an export in words about the file, because the database that is exported is sound.
Error cannot_export(const std::string& file, Error error) {
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return {ErrorCode::invalid_argument,
            fmt::format("{} cannot be written: there is no folder {}", file, folder.string()),
            "Make the folder, or name a file in another one.",
            {}};
  }
  return error;
}

/// The error of an import. Commands that mend a database mean the one of the cache, not this file.
Error cannot_import(const std::string& file, Error error) {
  if (error.code == ErrorCode::database_corrupt && error.message.starts_with(std::filesystem::absolute(file).string()))
    error.hint = "Ask for another copy, or mend it: name it tuning.db and run `leanattn db rebuild --db ITS_FOLDER`.";
  return error;
}

int run(const Console& console, const DbFlags& flags) {
  const Result<GarbageLimits> limits = garbage_limits(flags);
  if (!limits) return report_error(limits.error());
  const bool reads =
      flags.path->parsed() || flags.stats->parsed() || flags.check->parsed() || flags.export_to->parsed();
  const CacheNeed need = reads ? CacheNeed::readable : CacheNeed::durable;
  const Result<Caches> caches = open_caches(console, need);
  if (!caches) return report_error(caches.error());
  const std::string directory = caches->directory->string();
  if (flags.path->parsed()) return done(console, {{"path", directory}}, directory);

  std::error_code ignored;
  if (flags.export_to->parsed() && !std::filesystem::exists(*caches->directory / "tuning.db", ignored)) {
    return report_error({ErrorCode::not_found,
                         fmt::format("there is no database in {}", directory),
                         "`leanattn tune` makes a database.",
                         {}});
  }
  const bool works_on_trials = flags.rebuild->parsed() || flags.gc->parsed();
  Result<std::unique_ptr<TuningDb>> opened = open_tuning(*caches,
                                                         reads             ? OpenMode::read_only
                                                         : works_on_trials ? OpenMode::maintain
                                                                           : OpenMode::read_write,
                                                         need);
  if (!opened) return report_error(opened.error());
  TuningDb& db = **opened;

  if (flags.stats->parsed()) return show_stats(console, db);
  if (flags.check->parsed()) return show_check(console, db, directory);
  if (flags.export_to->parsed()) {
    if (const Result<void> copied = db.export_to(std::filesystem::absolute(flags.file)); !copied)
      return report_error(cannot_export(flags.file, copied.error()));
    return done(console, {{"exported", flags.file}}, "exported to " + flags.file);
  }
  if (flags.import_from->parsed()) {
    const Result<std::int64_t> added = db.import_from(std::filesystem::absolute(flags.file));
    if (!added) return report_error(cannot_import(flags.file, added.error()));
    return done(console, {{"imported", flags.file}, {"new_trials", *added}},
                fmt::format("{} new trials were imported from {}", *added, flags.file));
  }
  if (flags.rebuild->parsed()) {
    if (const Result<void> rebuilt = db.rebuild_winners(); !rebuilt) return report_error(rebuilt.error());
    const Result<DbStats> stats = db.stats();
    if (!stats) return report_error(stats.error());
    return done(console, {{"winners", stats->winners}},
                fmt::format("{} winners were derived from {} trials", stats->winners, stats->trials));
  }
  return collect_garbage(console, db, *limits);
}

}  // namespace

Command add_db(CLI::App& program) {
  auto flags = std::make_shared<DbFlags>();
  CLI::App* app = program.add_subcommand("db", "Inspect, check, shrink, export and import the tuning database");
  app->require_subcommand(1);
  flags->path = app->add_subcommand("path", "Print the cache directory");
  flags->stats = app->add_subcommand("stats", "Count rows and bytes, and what there is of each device model");
  flags->check = app->add_subcommand("check", "Look for damage; exits 6 when there is some");
  flags->gc = app->add_subcommand("gc", "Drop old trials that are not winners, and shrink the file");
  flags->gc
      ->add_option("--keep-days", flags->keep_days,
                   "Drop trials that are older than so many days; default 90 when --max-size is not given")
      ->type_name("N");
  flags->gc
      ->add_option("--max-size", flags->max_size,
                   "Drop the oldest trials until the file has at most so many bytes, such as 64m")
      ->type_name("BYTES");
  flags->export_to = app->add_subcommand("export", "Write a consistent copy to a new file");
  flags->export_to->add_option("file", flags->file, "The new file; an existing file is never overwritten")
      ->required()
      ->type_name("FILE");
  flags->import_from = app->add_subcommand("import", "Add the trials of another database and derive the winners anew");
  flags->import_from->add_option("file", flags->file, "A tuning.db or an exported copy of one")
      ->required()
      ->type_name("FILE");
  flags->rebuild = app->add_subcommand("rebuild", "Derive the winners anew from the trials");
  const Example check = {"Look for damage", "leanattn db check"};
  const Example exporting = {"Write a copy that other machines can import", "leanattn db export tuned.db"};
  const Example importing = {"Add what another machine has measured", "leanattn db import tuned.db"};
  set_examples(*flags->path, {{"List the files", "ls -l \"$(leanattn db path)\""}});
  set_examples(*flags->stats, {{"Count as JSON", "leanattn db stats --json"}});
  set_examples(*flags->check, {check});
  set_examples(*flags->gc, {{"Keep the last month's trials", "leanattn db gc --keep-days 30"},
                            {"Keep at most 64 MiB", "leanattn db gc --max-size 64m"}});
  set_examples(*flags->export_to, {exporting});
  set_examples(*flags->import_from, {importing});
  set_examples(*flags->rebuild, {{"Mend a damaged database", "leanattn db rebuild"}});
  set_examples(*app, {check, exporting, importing});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
