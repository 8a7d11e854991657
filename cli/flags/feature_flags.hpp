// feature_flags.hpp -- FeatureFlags: what a problem asks for beside plain dense decode, such as pages, a window or a
// one-byte cache. Main thread.
#pragma once

#include <map>
#include <string>

#include "generator/kernel_spec.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// The value of every flag that was given, as typed, by the flag ("--window"); of one without a value, "true".
using FeatureFlags = std::map<std::string, std::string>;

/// Registers the flags. `flags` must live until the program has been parsed and run.
void add_feature_flags(CLI::App& command, FeatureFlags& flags);

/// A model's features, of which every flag that was given replaces its own. Errors: invalid_argument and unsupported,
/// naming the flag and its value. Whether the features can be had together is left to validate().
Result<Features> with_flags(Features features, const FeatureFlags& flags, DType dtype);

}  // namespace v1
}  // namespace leanattn
