// bench_json.hpp -- the pieces of a measurement's JSON that bench, the paper's sweeps and bench/ share. Internal to
// this project. Any thread.
#pragma once

#include <nlohmann/json.hpp>

#include "tuner/bench.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// GPU, driver, compiler and clocks as they are now.
nlohmann::ordered_json device_json(const DeviceFacts& device);
nlohmann::ordered_json line_json(const BenchLine& line);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
