// evaluation.hpp -- measures how good the tuner is: its search against an exhaustive one, its look-ups of untuned
// shapes against a full sweep, and one tuning session against another. On any backend; one thread, as a tuning session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tuner/backend/backend.hpp"
#include "tuner/evaluate/duel.hpp"
#include "tuner/search/session.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// What an evaluation runs on. All references and pointers must stay valid during the call.
struct EvaluationSetup {
  const DeviceFacts& device;
  Environment environment;
  TuneBackend& backend;
  TuneRequest request;       ///< problem, shapes, policy, compile threads, command; a budget not for searches
  SearchEffort effort;       ///< of an ordinary tuning session
  SearchEffort exhaustive;   ///< of an exhaustive search or full sweep
  TuningDb* keep = nullptr;  ///< keeps the trials of exhaustive searches; null: they are not kept
  ProgressSink progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;
};

/// Gets the evaluation after every case, so that a caller can keep it even if a later case ends in an error. It is
/// marked as interrupted until the last case.
template <class Evaluation>
using EvaluationSink = std::function<void(const Evaluation&)>;

/// One shape that an ordinary tuning session and an exhaustive search have tuned.
struct SearchCase {
  Shape shape;
  TunedShape searched, exhaustive;
  Duel duel;  ///< the ordinary session's winner over the exhaustive search's

  /// The ordinary session's GPU time over the exhaustive search's.
  double share_of_gpu_time() const;
};
struct SearchEvaluation {
  std::vector<SearchCase> cases;
  bool interrupted = false;

  double share_of_gpu_time() const;  ///< of all shapes together
  double worst_ratio() const;
};
/// Tunes all shapes in one session with an empty database, and then searches each of them exhaustively. Errors: those
/// of the backend, the database and duel().
Result<SearchEvaluation> evaluate_search(const EvaluationSetup& setup,
                                         const EvaluationSink<SearchEvaluation>& case_done = nullptr);

/// One shape that was looked up and then swept, or tuned.
struct RegretCase {
  DecodeProblem problem;
  Shape shape;
  Choice choice;
  TunedShape swept;
  Duel duel;  ///< the looked-up configuration over the sweep's winner

  /// How much longer the looked-up configuration takes, minus 1; 0 when it is as fast as the sweep's winner or faster.
  double regret() const { return duel.ratio.ratio > 1 ? duel.ratio.ratio - 1 : 0; }
};
struct RegretEvaluation {
  std::vector<RegretCase> cases;
  bool interrupted = false;
  bool several_problems = false;  ///< the cases may be of different problems

  double median_regret() const;
  double high_regret() const;  ///< the 95th percentile: the least value that at least 95 % of the cases do not exceed
  double largest_regret() const;
};
/// Looks up every shape of the request in `table` and sweeps it with the exhaustive effort. A budget in the request is
/// that of each shape. Errors: those of the backend, the database and duel();
/// not_found (no candidate of a shape can be measured).
Result<RegretEvaluation> evaluate_regret(const EvaluationSetup& setup, const WinnerTable& table,
                                         const EvaluationSink<RegretEvaluation>& case_done = nullptr);

/// One shape that was tuned twice.
struct RepeatCase {
  Shape shape;
  TunedShape first, second;
  double predicted_ratio = 1;  ///< the first winner over the second, by a cost model of both sessions' trials
  Duel duel;                   ///< the first winner over the second; not raced if both are the same

  bool same() const { return first.winner == second.winner; }
};
struct RepeatEvaluation {
  std::vector<RepeatCase> cases;
  bool interrupted = false;

  std::size_t differing() const;
  double largest_difference() const;  ///< the largest |ratio - 1| of winners that differ
};
/// Tunes all shapes twice, each time with an empty database, and races winners that differ. With a budget in the
/// request, which is that of a session, the second session compiles its kernels anew, because a budget is spent on
/// compiling as well. Errors: those of the backend, the database and duel().
Result<RepeatEvaluation> evaluate_repeat(const EvaluationSetup& setup,
                                         const EvaluationSink<RepeatEvaluation>& case_done = nullptr);

/// Each evaluation as one JSON document of schema_version 1, with device, environment and command.
std::string to_json(const EvaluationSetup& setup, const SearchEvaluation& evaluation);
std::string to_json(const EvaluationSetup& setup, const RegretEvaluation& evaluation, std::uint64_t seed);
std::string to_json(const EvaluationSetup& setup, const RepeatEvaluation& evaluation);

}  // namespace v1
}  // namespace leanattn
