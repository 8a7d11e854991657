#include "tuner/search/shape_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "tuner/measure/rotation.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/confirm.hpp"
#include "tuner/search/earlier_results.hpp"
#include "tuner/search/group_screen.hpp"
#include "tuner/search/looked_up.hpp"
#include "tuner/search/race.hpp"
#include "tuner/search/refine.hpp"
#include "tuner/search/revalidate.hpp"
#include "tuner/search/screen.hpp"
#include "tuner/search/sweep.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Shares of a shape's time by which the phases end.
constexpr double kScreenEnds = 0.45, kSweepEnds = 0.6, kRefineEnds = 0.75;

/// Asks the compiler for the kernels that have to be beaten, then for all others. The screen of a group chooses the
/// others itself.
void enqueue_kernels(const ShapeContext& context, const EarlierResults& earlier, std::span<const KernelSpec> specs) {
  const bool group = in_group(context.step.problem.features);
  std::vector<KernelSpec> first{context.session.looked_up[static_cast<std::size_t>(context.index)].front().spec,
                                context.default_config.spec};
  for (const Config& incumbent : earlier.incumbents) first.push_back(incumbent.spec);
  if (!group) {
    for (const Config& relative : earlier.relatives) first.push_back(relative.spec);
  }
  context.session.compiles.enqueue(first, /*urgent=*/true);
  if (!group) context.session.compiles.enqueue(specs);
}

/// All candidates that are worth a race.
struct Searched {
  TimedCandidates timed;
  bool finished = true;  ///< false: no time was left for some of them
};

/// Screen, sweep and refinement. The candidates begin with `first`.
Result<Searched> find_candidates(const ShapeContext& context, const EarlierResults& earlier,
                                 SessionKnowledge& knowledge, Measurer& measurer, TimedCandidates first) {
  const double screen_ends = context.phase_end(kScreenEnds), refine_ends = context.phase_end(kRefineEnds);
  Result<Screened> screened = screen(context, earlier, knowledge, measurer, std::move(first), screen_ends);
  if (!screened) return tl::unexpected(screened.error());
  bool finished = !context.stopped(screen_ends);
  knowledge.model = knowledge.fitted(context.session.device);
  const CostModel& model = knowledge.model;
  Result<TimedCandidates> timed =
      sweep(context, model, measurer, std::move(screened->timed), context.phase_end(kSweepEnds));
  if (timed) timed = refine(context, model, screened->trust, measurer, *std::move(timed), refine_ends);
  if (timed) timed = try_segment_costs(context, measurer, *std::move(timed), refine_ends);
  if (timed) timed = try_l2_promotions(context, measurer, *std::move(timed), refine_ends);
  if (!timed) return tl::unexpected(timed.error());
  finished = finished && !context.stopped(refine_ends);
  return Searched{.timed = *std::move(timed), .finished = finished};
}

/// The same for a group: a screen of what is best for the part alone.
Result<Searched> find_group_candidates(const ShapeContext& context, const EarlierResults& earlier,
                                       SessionKnowledge& knowledge, Measurer& measurer, TimedCandidates first) {
  const double ends = context.phase_end(kRefineEnds);
  Result<TimedCandidates> timed = screen_in_group(context, earlier, knowledge, measurer, std::move(first), ends);
  if (!timed) return tl::unexpected(timed.error());
  return Searched{.timed = *std::move(timed), .finished = !context.stopped(ends)};
}

/// Race and confirmation.
Result<Decision> decide(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                        const Searched& searched) {
  const TimedCandidates& timed = searched.timed;
  const Result<Raced> raced = race(context, earlier, measurer, timed);
  if (!raced) return tl::unexpected(raced.error());
  Result<std::optional<Decision>> confirmed =
      confirm(context, measurer, timed, raced->finalists, searched.finished && raced->finished);
  if (!confirmed) return tl::unexpected(confirmed.error());
  Decision decision =
      *confirmed ? *std::move(*confirmed) : settle_early(context, measurer, raced->entrants, raced->race);
  decision.raced = static_cast<int>(raced->entrants.size());
  decision.finished = decision.finished && searched.finished && raced->finished;
  return decision;
}

/// Why a search stores no new winner, and what helps. `compared`: what look-ups answer was timed, or cannot run.
std::string why_no_winner(const ShapeContext& context, const Measurer& measurer, bool compared) {
  const bool cancelled = context.session.cancelled();
  if (!cancelled && context.session.backend.now_s() < context.deadline_s)
    return fmt::format("{} failed so: {}", compared ? "no candidate is left; the last one" : "what look-ups answer",
                       measurer.counts().failure);
  const std::string before =
      !compared ? "the configuration that look-ups answer was compiled and timed, so that nothing could be compared "
                  "with it"
      : context.looked_up
          ? fmt::format("any candidate had {} rounds beside the configuration that look-ups answer", kFewestRounds)
          : "any candidate was timed";
  return cancelled ? fmt::format("the session was interrupted before {}.", before)
                   : fmt::format("the time was over before {}. Give a larger budget.", before);
}

void take_decision(const Decision& decision, TunedShape& tuned) {
  tuned.raced = decision.raced;
  tuned.finished = tuned.finished && decision.finished;
  if (decision.default_us) tuned.default_us = *decision.default_us;
  if (decision.looked_up_us) tuned.looked_up_us = *decision.looked_up_us;
  if (!decision.winner) return;
  tuned.winner = *decision.winner;
  tuned.median_us = decision.median_us, tuned.low_us = decision.low_us, tuned.high_us = decision.high_us;
}

void take_counts(const Measurer& measurer, TunedShape& tuned) {
  const SearchCounts& counts = measurer.counts();
  tuned.candidates = counts.candidates, tuned.compiled = counts.compiled, tuned.rejected = counts.rejected;
  tuned.incorrect = counts.incorrect;
  tuned.gpu_seconds = counts.gpu_seconds;
  tuned.neighbours = counts.neighbours;
  tuned.read_limit_us = measurer.read_limit_us();
}

/// Stores the read limit, if it was measured of all bytes, and the winner.
Result<TunedShape> answer(const ShapeContext& context, SessionKnowledge& knowledge, TunedShape tuned) {
  const SessionSetup& session = context.session;
  if (auto committed = session.trials.drain(); !committed) return tl::unexpected(committed.error());
  // Lists that select the same tokens again and again read more in all than a copy of the cache has, and the reading
  // kernels read at most one copy. That time must not be taken for the time of all bytes.
  const KvFootprint kv = kv_footprint(context.step.problem, context_lengths_of(context.step.shape));
  if (tuned.read_limit_us > 0 && kv.read <= kv.allocated) {
    knowledge.read_limits.emplace_back(context.step.bytes, tuned.read_limit_us);
    if (auto kept =
            session.db.set_read_limit(session.device_model, session.policy(), context.step.bytes, tuned.read_limit_us);
        !kept)
      return tl::unexpected(kept.error());
  }
  return stored_answer(session.db, {session.device_model, context.problem_json, context.shape_json, session.policy()},
                       std::move(tuned));
}

Result<TunedShape> revalidate_shape(ShapeContext& context, SessionKnowledge& knowledge, TunedShape tuned) {
  const KnownTrials nothing_known;
  Measurer measurer(context, nothing_known, knowledge.samples);
  const Result<std::optional<Decision>> decision = revalidate(context, knowledge.model, measurer);
  if (!decision) return tl::unexpected(decision.error());
  if (!*decision) {
    const SessionSetup& session = context.session;
    if (auto committed = session.trials.drain(); !committed) return tl::unexpected(committed.error());
    return known_answer(session.request, session.device, context.requested, session.db);
  }
  take_counts(measurer, tuned);
  take_decision(**decision, tuned);
  return answer(context, knowledge, std::move(tuned));
}

}  // namespace

Result<TunedShape> tune_shape(const SessionSetup& session, SessionKnowledge& knowledge, int index, double deadline_s) {
  ShapeContext context = shape_context(session, index, deadline_s);
  TunedShape tuned{.shape = context.requested, .winner = context.default_config};
  if (session.request.revalidate) return revalidate_shape(context, knowledge, std::move(tuned));

  const Result<EarlierResults> earlier = earlier_results(context, knowledge.model);
  if (!earlier) return tl::unexpected(earlier.error());
  tuned.default_us = earlier->us_of(context.default_config).value_or(0);
  if (earlier->finished(session.effort)) {
    tuned.candidates = static_cast<int>(earlier->known.size());
    return answer(context, knowledge, std::move(tuned));
  }
  enqueue_kernels(context, *earlier, knowledge.specs);
  const bool group = in_group(context.step.problem.features);
  // Times with the exchange in them say nothing about the costs of the part.
  std::vector<ModelSample> of_group;
  Measurer measurer(context, earlier->known, group ? of_group : knowledge.samples);
  TimedCandidates first;
  const Result<bool> looked_up = try_looked_up(context, knowledge.model, measurer, first);
  if (!looked_up) return tl::unexpected(looked_up.error());
  if (!*looked_up) {
    tuned.finished = false;
    tuned.no_winner = why_no_winner(context, measurer, false);
    take_counts(measurer, tuned);
    return answer(context, knowledge, std::move(tuned));
  }
  const Result<Searched> searched =
      group ? find_group_candidates(context, *earlier, knowledge, measurer, std::move(first))
            : find_candidates(context, *earlier, knowledge, measurer, std::move(first));
  if (!searched) return tl::unexpected(searched.error());
  const TimedCandidates& timed = searched->timed;
  // What proved itself here is worth a look for the other shapes.
  for (const KernelSpec& spec : timed.best_specs(session.effort.refine_specs)) {
    if (std::find(knowledge.specs.begin(), knowledge.specs.end(), spec) == knowledge.specs.end())
      knowledge.specs.push_back(spec);
  }
  tuned.finished = searched->finished;
  if (const Candidate* usual = timed.find(context.default_config)) tuned.default_us = usual->us;
  if (timed.anything_new()) {
    const Result<Decision> decision = decide(context, *earlier, measurer, *searched);
    if (!decision) return tl::unexpected(decision.error());
    take_decision(*decision, tuned);
    if (!decision->winner) tuned.no_winner = why_no_winner(context, measurer, true);
  } else if (timed.empty()) {
    tuned.no_winner = why_no_winner(context, measurer, true);
  }
  take_counts(measurer, tuned);
  return answer(context, knowledge, std::move(tuned));
}

}  // namespace v1
}  // namespace leanattn
