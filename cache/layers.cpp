#include "cache/layers.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cache/environment_variable.hpp"
#include "cache/paths.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/schema.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kBusyTimeoutMs = 2000;  ///< an engine that starts should not wait long for a tuner that writes

struct Layer {
  std::string name;
  std::filesystem::path file;
  bool asked_for;  ///< somebody named it: its absence is worth a warning
};

std::vector<Layer> layers(const std::optional<std::filesystem::path>& user_directory) {
  const auto file_in = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error) ? path / detail::tuning_schema().file_name : path;
  };
  std::vector<Layer> layers;
  if (user_directory) layers.push_back({"user", *user_directory / detail::tuning_schema().file_name, false});
  if (const std::string site = environment_variable("LEANATTN_SITE_DB"); !site.empty())
    layers.push_back({"site", file_in(site), true});
  if (const std::string shipped = environment_variable("LEANATTN_SHIPPED_DB"); !shipped.empty()) {
    layers.push_back({"shipped", file_in(shipped), true});
  } else if (const std::filesystem::path self = own_directory(); !self.empty()) {
    layers.push_back({"shipped", self.parent_path() / "share" / "leanattn" / detail::tuning_schema().file_name, false});
  }
  return layers;
}

/// What is said of the layers, and whether one of them was locked.
struct Remarks {
  std::vector<std::string>& warnings;
  bool& locked;
};

void skip(const Layer& layer, const Error& why, Remarks remarks) {
  remarks.warnings.push_back("the " + layer.name + " database was skipped: " + why.message);
  remarks.locked = remarks.locked || why.code == ErrorCode::database_busy;
}

/// Null where the layer cannot be used.
std::unique_ptr<TuningDb> open_layer(const Layer& layer, Remarks remarks) {
  auto db = detail::open_tuning_file(layer.file, detail::open_policy(layer.file.parent_path(), kBusyTimeoutMs));
  if (db) return *std::move(db);
  if (db.error().code != ErrorCode::not_found || layer.asked_for) skip(layer, db.error(), remarks);
  return nullptr;
}

/// Appends the winners of a layer that no layer before it has.
void add_winners(std::vector<Winner> winners, const Layer& layer, const std::optional<Environment>& now,
                 LayeredWinners& result) {
  result.entries.reserve(result.entries.size() + winners.size());  // what follows looks into the entries' texts
  std::set<std::tuple<std::string_view, std::string_view, std::string_view>> taken;
  for (const auto& [winner, name] : result.entries) taken.emplace(winner.problem, winner.shape, winner.policy);
  for (Winner& winner : winners) {
    if (taken.contains({winner.problem, winner.shape, winner.policy})) continue;
    if (now) winner.stale = !same_software(winner.environment, *now);
    result.entries.push_back({std::move(winner), layer.name});
  }
}

/// Likewise cost models.
void add_models(TuningDb& db, const DeviceModel& device, std::vector<FittedModel>& result, Remarks remarks) {
  auto models = db.cost_models(device);
  if (!models) {  // only look-ups of shapes that nobody tuned suffer
    remarks.locked = remarks.locked || models.error().code == ErrorCode::database_busy;
    return;
  }
  if (auto warning = db.take_warning()) remarks.warnings.push_back(*std::move(warning));
  for (FittedModel& model : *models) {
    const bool taken = std::any_of(result.begin(), result.end(), [&](const FittedModel& known) {
      return known.problem == model.problem && known.policy == model.policy;
    });
    if (!taken) result.push_back(std::move(model));
  }
}

/// The winners of one problem, or of all, and what the database has to say about them; nullopt where it cannot be read.
std::optional<std::vector<Winner>> winners_of(TuningDb& db, const Layer& layer, const DeviceModel& device,
                                              std::optional<std::string_view> problem, Remarks remarks) {
  auto winners = db.winners(device, problem);
  if (!winners) {
    skip(layer, winners.error(), remarks);
    return std::nullopt;
  }
  if (auto warning = db.take_warning()) remarks.warnings.push_back(*std::move(warning));
  return *std::move(winners);
}

}  // namespace

LayeredWinners load_layered_winners(const DeviceModel& device,
                                    const std::optional<std::filesystem::path>& user_directory,
                                    const std::optional<Environment>& now) {
  LayeredWinners result;
  const Remarks remarks{result.warnings, result.locked};
  for (const Layer& layer : layers(user_directory)) {
    const auto db = open_layer(layer, remarks);
    if (!db) continue;
    auto winners = winners_of(*db, layer, device, std::nullopt, remarks);
    if (!winners) continue;
    add_winners(*std::move(winners), layer, now, result);
    add_models(*db, device, result.models, remarks);
  }
  return result;
}

WinnersByProblem open_layered_winners(const DeviceModel& device,
                                      const std::optional<std::filesystem::path>& user_directory,
                                      const std::optional<Environment>& now) {
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
    add_models(*db, device, result.models, remarks);
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
        auto more = winners_of(*db, layer, device, problem, said);
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
  WinnersByProblem result{.problems = {},
                          .models = std::move(winners.models),
                          .warnings = std::move(winners.warnings),
                          .locked = winners.locked,
                          .read = {}};
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
