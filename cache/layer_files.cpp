#include "cache/layer_files.hpp"

#include "cache/cubin/rows.hpp"
#include "cache/environment_variable.hpp"
#include "cache/layers.hpp"
#include "cache/paths.hpp"
#include "cache/tuning/schema.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

std::filesystem::path Layer::cubins() const { return file.parent_path() / cubin_schema().file_name; }

std::vector<Layer> layers(const std::optional<std::filesystem::path>& user_directory) {
  const auto file_in = [](const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error) ? path / tuning_schema().file_name : path;
  };
  std::vector<Layer> layers;
  if (user_directory) layers.push_back({"user", *user_directory / tuning_schema().file_name, false});
  if (const std::string site = environment_variable("LEANATTN_SITE_DB"); !site.empty())
    layers.push_back({"site", file_in(site), true});
  const std::string shipped = environment_variable("LEANATTN_SHIPPED_DB");
  if (shipped == "none") return layers;
  if (!shipped.empty()) {
    layers.push_back({"shipped", file_in(shipped), true});
  } else if (const std::filesystem::path self = own_directory(); !self.empty()) {
    layers.push_back({"shipped", installed_database(self), false, true});
  }
  return layers;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
