#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <set>
#include <tuple>

#include "cache/tuning_open.hpp"
#include "cache/tuning_schema.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kBusyTimeoutMs = 2000;  ///< an engine that starts should not wait long for a tuner that writes

std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Where the file with this very code lies: the shared library, or the program it is linked into.
std::filesystem::path own_directory() {
  Dl_info info{};
  static const char anchor = 0;
  std::error_code error;
  std::filesystem::path self;
  if (::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).find('/') != std::string_view::npos) {
    self = std::filesystem::canonical(info.dli_fname, error);
  }
  if (self.empty() || error) self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self.parent_path();
}

struct Layer {
  std::string name;
  std::filesystem::path file;
  bool asked_for;  ///< somebody named it: its absence is worth a warning
};

std::vector<Layer> layers(const std::optional<std::filesystem::path>& user_directory) {
  const auto file_in = [](std::filesystem::path path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error) ? path / detail::tuning_schema().file_name : path;
  };
  std::vector<Layer> layers;
  if (user_directory) layers.push_back({"user", *user_directory / detail::tuning_schema().file_name, false});
  if (const std::string site = environment("LEANATTN_SITE_DB"); !site.empty())
    layers.push_back({"site", file_in(site), true});
  if (const std::string shipped = environment("LEANATTN_SHIPPED_DB"); !shipped.empty()) {
    layers.push_back({"shipped", file_in(shipped), true});
  } else if (const std::filesystem::path self = own_directory(); !self.empty()) {
    layers.push_back({"shipped", self.parent_path() / "share" / "leanattn" / detail::tuning_schema().file_name, false});
  }
  return layers;
}

}  // namespace

LayeredWinners load_layered_winners(const DeviceModel& device,
                                    const std::optional<std::filesystem::path>& user_directory,
                                    const std::optional<Environment>& now) {
  LayeredWinners result;
  std::set<std::tuple<std::string, std::string, std::string>> taken;
  std::set<std::pair<std::string, std::string>> fitted;
  for (const Layer& layer : layers(user_directory)) {
    const auto skip = [&](const std::string& why) {
      result.warnings.push_back("the " + layer.name + " database was skipped: " + why);
    };
    auto db = detail::open_tuning_file(layer.file, detail::open_policy(layer.file.parent_path(), kBusyTimeoutMs));
    if (!db) {
      if (db.error().code != ErrorCode::not_found || layer.asked_for) skip(db.error().message);
      continue;
    }
    auto winners = (*db)->winners(device);
    if (!winners) {
      skip(winners.error().message);
      continue;
    }
    if (auto warning = (*db)->take_warning()) result.warnings.push_back(std::move(*warning));
    for (Winner& winner : *winners) {
      if (!taken.emplace(winner.problem, winner.shape, winner.policy).second) continue;
      if (now) winner.stale = !same_software(winner.environment, *now);
      result.entries.push_back({std::move(winner), layer.name});
    }
    auto models = (*db)->cost_models(device);
    if (!models) continue;  // only look-ups of shapes that nobody tuned suffer
    for (FittedModel& model : *models) {
      if (fitted.emplace(model.problem, model.policy).second) result.models.push_back(std::move(model));
    }
  }
  return result;
}

}  // namespace v1
}  // namespace leanattn
