#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "generator/kernel_spec.hpp"
#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Reads object[key] as T into `out`; the first failure is kept and later reads do nothing.
class Reader {
 public:
  explicit Reader(const nlohmann::json& object) : object_(object) {}

  template <class T>
  void read(const char* key, T& out) {
    if (!ok_) return;
    const auto it = object_.find(key);
    const bool typed = it != object_.end() && (std::is_same_v<T, bool>          ? it->is_boolean()
                                               : std::is_same_v<T, std::string> ? it->is_string()
                                                                                : it->is_number_integer());
    if (!typed)
      return set(
          fail(ErrorCode::invalid_argument, fmt::format("kernel spec: '{}' is missing or has the wrong type", key)));
    if constexpr (std::is_same_v<T, int>) {
      const std::optional<int> value = integer_of<int>(*it);
      if (!value || *value < -kMaxInt)
        return set(fail(ErrorCode::invalid_argument, fmt::format("kernel spec: '{}' is out of range", key)));
      out = *value;
    } else {
      out = it->get<T>();
    }
  }

  template <class T, class Parse>
  void read(const char* key, T& out, Parse parse) {
    std::string text;
    read(key, text);
    if (!ok_) return;
    if (auto parsed = parse(text)) {
      out = *parsed;
    } else {
      set(tl::unexpected(parsed.error()));
    }
  }

  Result<void> result() && { return std::move(ok_); }

 private:
  static constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

  void set(tl::unexpected<Error> error) { ok_ = std::move(error); }

  const nlohmann::json& object_;
  Result<void> ok_;
};

}  // namespace

std::string to_json(const KernelSpec& spec) {
  // nlohmann::json keeps object keys sorted, which makes the text canonical.
  nlohmann::json json{{"arch", to_string(spec.arch)},
                      {"head_dim", spec.head_dim},
                      {"group", spec.group},
                      {"dtype", to_string(spec.dtype)},
                      {"layout", to_string(spec.layout)},
                      {"lse", spec.lse},
                      {"load", to_string(spec.load)},
                      {"fixup", to_string(spec.fixup)},
                      {"tile", spec.tile},
                      {"warp_tokens", spec.warp_tokens},
                      {"warps", spec.warps},
                      {"stages", spec.stages},
                      {"ctas_per_sm", spec.ctas_per_sm},
                      {"pdl", spec.pdl}};
  if (!is_plain(spec.features)) json["features"] = nlohmann::json::parse(to_json(spec.features));
  return json.dump();
}

Result<KernelSpec> kernel_spec_from_json(std::string_view text) {
  const nlohmann::json object = parse_json(text);
  if (!object.is_object()) return fail(ErrorCode::invalid_argument, "kernel spec: not a JSON object");
  KernelSpec spec;
  Reader reader(object);
  reader.read("arch", spec.arch, parse_arch);
  reader.read("head_dim", spec.head_dim);
  reader.read("group", spec.group);
  reader.read("dtype", spec.dtype, parse_dtype);
  reader.read("layout", spec.layout, parse_kv_layout);
  reader.read("lse", spec.lse);
  reader.read("load", spec.load, parse_load_path);
  reader.read("fixup", spec.fixup, parse_fix_up);
  reader.read("tile", spec.tile);
  reader.read("warp_tokens", spec.warp_tokens);
  reader.read("warps", spec.warps);
  reader.read("stages", spec.stages);
  reader.read("ctas_per_sm", spec.ctas_per_sm);
  reader.read("pdl", spec.pdl);
  if (auto ok = std::move(reader).result(); !ok) return tl::unexpected(ok.error());
  if (const auto it = object.find("features"); it != object.end()) {
    auto features = features_from_json(it->dump());
    if (!features) return tl::unexpected(features.error());
    spec.features = std::move(*features);
  }
  return spec;
}

}  // namespace v1
}  // namespace leanattn
