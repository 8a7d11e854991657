// serve_order.hpp -- the program's side of a TuningOrder, for engines that tune. The main thread.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <string_view>

#include "runtime/tuning/tuning_order.hpp"
#include "tuner/search/tune_progress.hpp"
#include "tuner/search/tune_summary.hpp"

namespace leanattn {
inline namespace v1 {

/// Carries an order out: tune_in_workers() in the program, and sessions on simulated GPUs in tests.
using CarryOut = std::function<Result<ModelSummary>(const TuningOrder& order, const ProgressSink& progress)>;

/// Reads the order, carries it out, and writes messages to `output`, each at once. From the order on, this process is
/// killed when its parent ends. Returns the error with which it ended; its message has been written, too.
Result<void> serve_order(std::string_view order, std::FILE* output, const CarryOut& carry_out);

}  // namespace v1
}  // namespace leanattn
