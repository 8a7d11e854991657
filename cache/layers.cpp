#include "cache/layers.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cache/layer_files.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/schema.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::Layer;
using detail::layers;

constexpr int kBusyTimeoutMs = 2000;  ///< an engine that starts should not wait long for a tuner that writes

/// What is said of the layers, and whether one of them was locked.
struct Remarks {
  std::vector<std::string>& warnings;
  bool& locked;
};

void skip(const Layer& layer, const Error& why, Remarks remarks) {
  remarks.warnings.push_back("the " + layer.name + " database was skipped: " + why.message);
  remarks.locked = remarks.locked || why.code == ErrorCode::database_busy;
}

Result<std::unique_ptr<TuningDb>> try_to_open(const Layer& layer) {
  detail::OpenPolicy policy = detail::open_policy(layer.file.parent_path(), kBusyTimeoutMs);
  policy.immutable = layer.installed;
  return detail::open_tuning_file(layer.file, policy);
}

/// Null where the layer cannot be used.
std::unique_ptr<TuningDb> open_layer(const Layer& layer, Remarks remarks) {
  auto db = try_to_open(layer);
  if (db) return *std::move(db);
  // A layer may have compiled kernels alone.
  std::error_code ignored;
  const bool missing = db.error().code == ErrorCode::not_found;
  if (!missing || (layer.asked_for && !std::filesystem::exists(layer.cubins(), ignored)))
    skip(layer, db.error(), remarks);
  return nullptr;
}

/// How far from `now` the software is that a winner was measured under. The smaller, the better: a driver changes
/// times, and other kernels may also change which configuration is fastest.
std::pair<int, int> software_distance(const Winner& winner, const Software& now) {
  if (same_software(winner, now)) return {0, 0};
  if (same_kernel(winner, now)) return {1, 0};
  return {2, -winner.library_version};
}

/// Appends the winners of a layer that no layer before it has, and replaces those that are farther from `now`.
void add_winners(std::vector<Winner> winners, const Layer& layer, const Software& now, LayeredWinners& result) {
  result.entries.reserve(result.entries.size() + winners.size());  // what follows looks into the entries' texts
  using Key = std::tuple<std::string_view, std::string_view, std::string_view>;
  std::map<Key, std::size_t> taken;
  for (std::size_t i = 0; i < result.entries.size(); ++i) {
    const Winner& winner = result.entries[i].winner;
    taken.emplace(Key(winner.problem, winner.shape, winner.policy), i);
  }
  for (Winner& winner : winners) {
    const auto known = taken.find(Key(winner.problem, winner.shape, winner.policy));
    if (known == taken.end()) {
      result.entries.push_back({std::move(winner), layer.name});
      continue;
    }
    LayeredWinners::Entry& entry = result.entries[known->second];
    if (!now.environment || software_distance(entry.winner, now) <= software_distance(winner, now)) continue;
    taken.erase(known);  // its texts go
    entry = {std::move(winner), layer.name};
  }
}

/// The winners of one problem, or of all, and what the database has to say about them; nullopt where it cannot be read.
std::optional<std::vector<Winner>> winners_of(TuningDb& db, const Layer& layer, const DeviceModel& device,
                                              std::optional<std::string_view> problem, const Software& now,
                                              Remarks remarks) {
  auto winners = db.winners(device, problem, now);
  if (!winners) {
    skip(layer, winners.error(), remarks);
    return std::nullopt;
  }
  if (auto warning = db.take_warning()) remarks.warnings.push_back(*std::move(warning));
  return *std::move(winners);
}

/// Errors: those of the database.
Result<std::vector<LayerContents::Device>> devices_of(TuningDb& db, const Software& now) {
  const auto models = db.device_models();
  if (!models) return tl::unexpected(models.error());
  std::vector<LayerContents::Device> devices;
  for (const DeviceModel& model : *models) {
    auto environments = db.environments(model);
    if (!environments) return tl::unexpected(environments.error());
    const auto winners = db.winners(model, std::nullopt, now);
    if (!winners) return tl::unexpected(winners.error());
    devices.push_back({.model = model,
                       .winners = std::ssize(*winners),
                       .changed = std::count_if(winners->begin(), winners->end(),
                                                [&](const Winner& winner) { return !same_kernel(winner, now); }),
                       .newest = environments->empty() ? Environment{} : std::move(environments->back())});
  }
  return devices;
}

}  // namespace

std::filesystem::path installed_database(const std::filesystem::path& directory) {
  const std::filesystem::path beside = directory.parent_path();
  std::vector<std::filesystem::path> prefixes{directory, beside};
  if (beside.filename().native().starts_with("lib")) prefixes.push_back(beside.parent_path());
  const auto below = [](const std::filesystem::path& prefix) {
    return prefix / "share" / "leanattn" / detail::tuning_schema().file_name;
  };
  std::error_code error;
  for (const std::filesystem::path& prefix : prefixes) {
    if (std::filesystem::exists(below(prefix), error)) return below(prefix);
  }
  return below(beside);
}

std::vector<LayerContents> layer_contents(const std::optional<std::filesystem::path>& user_directory,
                                          const Software& now) {
  std::vector<LayerContents> all;
  for (Layer& layer : layers(user_directory)) {
    LayerContents& contents = all.emplace_back();
    auto db = try_to_open(layer);
    auto devices = db ? devices_of(**db, now) : tl::unexpected(db.error());
    if (devices) {
      contents.devices = *std::move(devices);
    } else {
      contents.error = std::move(devices.error());
    }
    contents.layer = std::move(layer.name), contents.file = std::move(layer.file), contents.installed = layer.installed;
  }
  return all;
}

LayeredWinners load_layered_winners(const DeviceModel& device,
                                    const std::optional<std::filesystem::path>& user_directory, const Software& now) {
  LayeredWinners result;
  const Remarks remarks{result.warnings, result.locked};
  for (const Layer& layer : layers(user_directory)) {
    const auto db = open_layer(layer, remarks);
    if (!db) continue;
    auto winners = winners_of(*db, layer, device, std::nullopt, now, remarks);
    if (!winners) continue;
    add_winners(*std::move(winners), layer, now, result);
  }
  return result;
}

WinnersByProblem open_layered_winners(const DeviceModel& device,
                                      const std::optional<std::filesystem::path>& user_directory, const Software& now) {
  WinnersByProblem result;
  const Remarks remarks{result.warnings, result.locked};
  std::vector<Layer> usable;
  std::set<std::string> known;
  for (Layer& layer : layers(user_directory)) {
    const auto db = open_layer(layer, remarks);
    if (!db) continue;
    auto problems = db->won_problems(device);
    if (!problems) {
      skip(layer, problems.error(), remarks);
      continue;
    }
    for (std::string& problem : *problems) {
      if (known.insert(problem).second) result.problems.push_back(std::move(problem));
    }
    layer.asked_for = true;  // it was there: should it be gone later, that is worth a warning
    usable.push_back(std::move(layer));
  }
  result.read = [usable = std::move(usable), device, now](std::span<const std::string> problems) {
    LayeredWinners read;
    for (const Layer& layer : usable) {
      const Remarks said{read.warnings, read.locked};
      const auto db = open_layer(layer, said);
      if (!db) continue;
      std::vector<Winner> winners;
      for (const std::string& problem : problems) {
        auto more = winners_of(*db, layer, device, problem, now, said);
        if (!more) break;
        std::move(more->begin(), more->end(), std::back_inserter(winners));
      }
      add_winners(std::move(winners), layer, now, read);
    }
    return read;
  };
  return result;
}

WinnersByProblem by_problem(LayeredWinners winners) {
  WinnersByProblem result{
      .problems = {}, .warnings = std::move(winners.warnings), .locked = winners.locked, .read = {}};
  std::map<std::string, std::vector<LayeredWinners::Entry>> entries;
  for (LayeredWinners::Entry& entry : winners.entries) {
    auto& of_problem = entries[entry.winner.problem];
    if (of_problem.empty()) result.problems.push_back(entry.winner.problem);
    of_problem.push_back(std::move(entry));
  }
  result.read = [entries = std::move(entries)](std::span<const std::string> problems) {
    LayeredWinners read;
    for (const std::string& problem : problems) {
      if (const auto found = entries.find(problem); found != entries.end())
        read.entries.insert(read.entries.end(), found->second.begin(), found->second.end());
    }
    return read;
  };
  return result;
}

}  // namespace v1
}  // namespace leanattn
