// layer_files.hpp -- where the layers below the process lie: user, site, shipped. Internal to cache/. Any thread; reads
// the environment once per call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct Layer {
  std::string name;            ///< "user", "site" or "shipped"
  std::filesystem::path file;  ///< of winners, whether or not it is there
  bool asked_for;              ///< somebody named it: its absence is worth a warning
  bool installed = false;      ///< with the library: nobody writes it where it lies

  /// The compiled kernels, beside the winners.
  std::filesystem::path cubins() const;
};

/// In their order, without the user's where `user_directory` is nullopt. Site: LEANATTN_SITE_DB; shipped:
/// LEANATTN_SHIPPED_DB, else installed_database, and none where the variable is "none". Both variables name a tuning.db
/// or a directory.
std::vector<Layer> layers(const std::optional<std::filesystem::path>& user_directory);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
