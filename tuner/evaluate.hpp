// evaluate.hpp -- how good the tuner itself is: its search beside an exhaustive one, its answers for shapes that nobody
// tuned beside a full sweep, and one tuning beside another. On any TuneBackend; one thread, as a tuning session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/lookup.hpp"
#include "tuner/statistics.hpp"
#include "tuner/tune.hpp"
#include "tuner/tune_backend.hpp"
#include "tuner/tune_session.hpp"

namespace leanattn {
inline namespace v1 {

/// What an evaluation runs on. Everything referred to outlives the call.
struct EvaluationSetup {
  const DeviceFacts& device;
  Environment environment;
  TuneBackend& backend;
  TuneRequest request;       ///< problem, shapes, policy, compile threads, command; no budget
  SearchEffort effort;       ///< of an ordinary tuning
  SearchEffort exhaustive;   ///< of the exhaustive search or full sweep beside it
  TuningDb* keep = nullptr;  ///< where the trials of exhaustive searches are kept; null: nowhere
  ProgressSink progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;
};

/// Gets what there is after every case, marked as interrupted until the last: for callers that keep it, since an
/// evaluation takes minutes and may end in an error.
template <class Evaluation>
using EvaluationSink = std::function<void(const Evaluation&)>;

/// Two configurations of one shape in one interleaved race.
struct Duel {
  PairedRatio ratio;  ///< of the first over the second; 1 without pairs when they are the same
  double first_us = 0, second_us = 0;
  std::string noise;  ///< why it should be doubted
};
/// `backend` has begun the shape. 16 to 40 rounds, until the ratio's interval is narrower than 0.5 %. Errors:
/// wrong_result (one of them disagrees with the oracle), those of the backend.
Result<Duel> duel(TuneBackend& backend, const Config& first, const Config& second);

/// One shape, searched both ways.
struct SearchCase {
  Shape shape;
  TunedShape searched, exhaustive;
  Duel duel;  ///< the search's winner over the exhaustive one's

  double share_of_gpu_time() const;
};
struct SearchEvaluation {
  std::vector<SearchCase> cases;
  bool interrupted = false;

  double share_of_gpu_time() const;  ///< over all shapes
  double worst_ratio() const;
};
/// Tunes all shapes in one session that knows nothing, then each one exhaustively.
Result<SearchEvaluation> evaluate_search(const EvaluationSetup& setup,
                                         const EvaluationSink<SearchEvaluation>& case_done = nullptr);

/// One shape that was looked up, and swept.
struct RegretCase {
  Shape shape;
  Choice choice;
  TunedShape swept;
  Duel duel;  ///< the choice over the sweep's winner

  /// Time lost by not having tuned this shape: 0 when the choice is what the sweep found, or better.
  double regret() const { return duel.ratio.ratio > 1 ? duel.ratio.ratio - 1 : 0; }
};
struct RegretEvaluation {
  std::vector<RegretCase> cases;
  bool interrupted = false;

  double median_regret() const;
  double largest_regret() const;
};
/// For every shape of the request: what `table` answers beside the best of a sweep.
Result<RegretEvaluation> evaluate_regret(const EvaluationSetup& setup, const WinnerTable& table,
                                         const EvaluationSink<RegretEvaluation>& case_done = nullptr);

/// Different shapes of this problem, none of them among `known`: batch and context log-uniform, K and V of at most
/// kMostRandomKvBytes. with_ragged: every fifth one has one long request among shorter ones. The same arguments always
/// give the same shapes.
std::vector<Shape> random_shapes(const DecodeProblem& problem, std::size_t count, std::uint64_t seed, bool with_ragged,
                                 const std::vector<Shape>& known);
inline constexpr std::int64_t kMostRandomKvBytes = std::int64_t{4} << 30;

/// One shape, tuned twice.
struct RepeatCase {
  Shape shape;
  TunedShape first, second;
  double predicted_ratio = 1;  ///< of the first winner over the second, by the model fitted to both tunings
  Duel duel;                   ///< the first winner over the second

  bool same() const { return first.winner == second.winner; }
};
struct RepeatEvaluation {
  std::vector<RepeatCase> cases;
  bool interrupted = false;

  std::size_t differing() const;
  double largest_difference() const;  ///< |ratio - 1| of winners that differ
};
/// Tunes all shapes twice, each time knowing nothing, and lets winners that differ race each other.
Result<RepeatEvaluation> evaluate_repeat(const EvaluationSetup& setup,
                                         const EvaluationSink<RepeatEvaluation>& case_done = nullptr);

/// One JSON document each, schema_version 1, with device, environment and command.
std::string to_json(const EvaluationSetup& setup, const SearchEvaluation& evaluation);
std::string to_json(const EvaluationSetup& setup, const RegretEvaluation& evaluation, std::uint64_t seed);
std::string to_json(const EvaluationSetup& setup, const RepeatEvaluation& evaluation);

}  // namespace v1
}  // namespace leanattn
