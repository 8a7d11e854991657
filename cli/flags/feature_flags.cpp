#include "cli/flags/feature_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <type_traits>

#include "cli/flags/aliases.hpp"
#include "cli/flags/sizes.hpp"
#include "generator/feature_table.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Errors name the flag and its value.
template <class T>
Result<void> read_value(const char* flag, const std::string& text, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    out = text;
  } else if constexpr (std::is_same_v<T, bool>) {
    out = true;
  } else if constexpr (std::is_same_v<T, int>) {
    const Result<std::int64_t> value = parse_size(flag, text, 0, std::numeric_limits<int>::max());
    if (!value) return tl::unexpected(value.error());
    out = static_cast<int>(*value);
  } else if constexpr (std::is_same_v<T, double>) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size())
      return fail(ErrorCode::invalid_argument, fmt::format("{} '{}' is not a number", flag, text));
  } else {
    Result<T> parsed = parse_enumerator<T>(without_alias(text));
    if (!parsed) {
      parsed.error().message = fmt::format("{} {}: {}", flag, text, parsed.error().message);
      return tl::unexpected(std::move(parsed.error()));
    }
    out = *parsed;
  }
  return {};
}

/// Reads the type of the KV cache, which is a one-byte format or the type of the query.
Result<void> read_kv_dtype(const char* flag, const std::string& text, DType dtype, KvFormat& out) {
  const std::string name = without_alias(text);
  if (name == to_string(dtype)) {
    out = KvFormat::same;
    return {};
  }
  if (parse_dtype(name)) {
    return fail(ErrorCode::unsupported,
                fmt::format("{} {} cannot be had, because the cache of a {} query has that type or one-byte elements",
                            flag, text, to_string(dtype)),
                fmt::format("Leave {} out, or change --dtype.", flag));
  }
  return read_value(flag, text, out);
}

}  // namespace

void add_feature_flags(CLI::App& command, FeatureFlags& flags) {
  for_each_feature([&]<class T>(const Feature<T>& row) {
    const char* const name = row.flag.name;
    if (name == nullptr) return;
    if constexpr (std::is_same_v<T, bool>) {
      command
          .add_flag_callback(
              name, [&flags, name] { flags[name] = "true"; }, row.flag.help)
          ->group("Features");
    } else {
      const auto keep = [&flags, name](const std::string& text) { flags[name] = text; };
      command.add_option_function<std::string>(name, keep, row.flag.help)
          ->group("Features")
          ->type_name(row.flag.placeholder);
    }
  });
}

Result<Features> with_flags(Features features, const FeatureFlags& flags, DType dtype) {
  Result<void> ok;
  for_each_feature([&]<class T>(const Feature<T>& row) {
    if (!ok || row.flag.name == nullptr) return;
    const auto given = flags.find(row.flag.name);
    if (given == flags.end() || given->second.empty()) return;
    T& value = features.*row.member;
    if constexpr (std::is_same_v<T, KvFormat>) {
      ok = read_kv_dtype(row.flag.name, given->second, dtype, value);
    } else {
      ok = read_value(row.flag.name, given->second, value);
    }
  });
  if (!ok) return tl::unexpected(ok.error());
  const auto scale = flags.find("--kv-scale");
  if (scale == flags.end() || scale->second.empty()) {
    features.kv_scale = asked_scale(features);
  } else if (!has_scales(features)) {
    return fail(
        ErrorCode::invalid_argument,
        fmt::format(
            "--kv-scale {} cannot be had, because only a cache of one-byte or four-bit elements has scales beside it",
            scale->second),
        "Give --kv-dtype fp8_e4m3, fp8_e5m2, int8, int4 or nvfp4.");
  }
  return features;
}

}  // namespace v1
}  // namespace leanattn
