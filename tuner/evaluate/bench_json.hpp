// bench_json.hpp -- the part of a JSON document that bench and the paper's sweeps share. Internal to tuner/evaluate.
// Any thread.
#pragma once

#include <nlohmann/json.hpp>

#include "tuner/evaluate/bench.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// One line of a bench report, with its raw samples.
nlohmann::ordered_json line_json(const BenchLine& line);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
