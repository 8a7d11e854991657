// evaluation_sessions.cpp -- runs the tuning sessions of an evaluation on databases of their own, and then the duels.
#include <algorithm>
#include <memory>

#include "runtime/lookup/device_identity.hpp"
#include "tuner/evaluate/compile_once.hpp"
#include "tuner/evaluate/evaluation.hpp"
#include "tuner/model/cost_model_fit.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

bool cancelled(const EvaluationSetup& setup) { return setup.cancel != nullptr && setup.cancel->load(); }

/// An empty database in memory.
Result<std::unique_ptr<TuningDb>> scratch() { return TuningDb::open(std::nullopt, OpenMode::read_write, nullptr); }

/// One tuning session over `shapes`, recorded in `db`.
Result<TuneSummary> session(const EvaluationSetup& setup, TuneBackend& backend, const SearchEffort& effort,
                            std::vector<Shape> shapes, TuningDb& db) {
  TuneRequest request = setup.request;
  request.shapes = std::move(shapes);
  request.resume = false;
  return run_session(request, setup.device, setup.environment, backend, db, effort, setup.progress, setup.cancel);
}

/// Tunes one shape in a session of its own. The backend's begun shape is this one afterwards.
Result<TunedShape> search_shape(const EvaluationSetup& setup, TuneBackend& backend, const SearchEffort& effort,
                                const Shape& shape) {
  std::unique_ptr<TuningDb> own;
  if (setup.keep == nullptr) {
    auto opened = scratch();
    if (!opened) return tl::unexpected(opened.error());
    own = std::move(*opened);
  }
  Result<TuneSummary> summary = session(setup, backend, effort, {shape}, own ? *own : *setup.keep);
  if (!summary) return tl::unexpected(summary.error());
  if (summary->shapes[0].median_us <= 0 && !summary->interrupted)
    return fail(ErrorCode::not_found, "no candidate could be measured for " + to_json(shape));
  return std::move(summary->shapes[0]);
}

/// Hands the evaluation to `case_done`, marked as interrupted as long as shapes of the request are missing.
template <class Evaluation>
void tell(const EvaluationSetup& setup, Evaluation& evaluation, const EvaluationSink<Evaluation>& case_done) {
  evaluation.interrupted = evaluation.cases.size() < setup.request.shapes.size();
  if (case_done) case_done(evaluation);
}

}  // namespace

Result<SearchEvaluation> evaluate_search(const EvaluationSetup& setup,
                                         const EvaluationSink<SearchEvaluation>& case_done) {
  SearchEvaluation evaluation;
  CompileOnce backend(setup.backend);
  const auto db = scratch();
  if (!db) return tl::unexpected(db.error());
  const Result<TuneSummary> searched = session(setup, backend, setup.effort, setup.request.shapes, **db);
  if (!searched) return tl::unexpected(searched.error());
  for (const TunedShape& found : searched->shapes) {
    if (cancelled(setup)) break;
    Result<TunedShape> exhaustive = search_shape(setup, backend, setup.exhaustive, found.shape);
    if (!exhaustive) return tl::unexpected(exhaustive.error());
    if (cancelled(setup)) break;
    Result<Duel> compared = duel(backend, found.winner, exhaustive->winner);
    if (!compared) return tl::unexpected(compared.error());
    evaluation.cases.push_back({found.shape, found, std::move(*exhaustive), std::move(*compared)});
    tell(setup, evaluation, case_done);
  }
  evaluation.interrupted = evaluation.cases.size() < setup.request.shapes.size();
  return evaluation;
}

Result<RegretEvaluation> evaluate_regret(const EvaluationSetup& setup, const WinnerTable& table,
                                         const EvaluationSink<RegretEvaluation>& case_done) {
  RegretEvaluation evaluation;
  CompileOnce backend(setup.backend);
  for (const Shape& shape : setup.request.shapes) {
    const Choice choice = table.find(setup.request.problem, shape);
    Result<TunedShape> swept = search_shape(setup, backend, setup.exhaustive, shape);
    if (!swept) return tl::unexpected(swept.error());
    if (cancelled(setup)) break;
    // The sweep may not have compiled this kernel.
    if (const auto compiled = backend.compile(choice.config.spec); !compiled) return tl::unexpected(compiled.error());
    Result<Duel> compared = duel(backend, choice.config, swept->winner);
    if (!compared) return tl::unexpected(compared.error());
    evaluation.cases.push_back({setup.request.problem, shape, choice, *swept, std::move(*compared)});
    tell(setup, evaluation, case_done);
  }
  evaluation.interrupted = evaluation.cases.size() < setup.request.shapes.size();
  return evaluation;
}

Result<RepeatEvaluation> evaluate_repeat(const EvaluationSetup& setup,
                                         const EvaluationSink<RepeatEvaluation>& case_done) {
  RepeatEvaluation evaluation;
  CompileOnce backend(setup.backend);
  std::vector<TuneSummary> tunings;
  std::vector<ModelSample> samples;  // of both sessions, to which a cost model is fitted
  for (int time = 0; time < 2 && !cancelled(setup); ++time) {
    const auto own = scratch();
    if (!own) return tl::unexpected(own.error());
    TuningDb& db = time == 0 && setup.keep != nullptr ? *setup.keep : **own;
    TuneBackend& of_session = setup.request.budget ? setup.backend : backend;
    Result<TuneSummary> tuned = session(setup, of_session, setup.effort, setup.request.shapes, db);
    if (!tuned) return tl::unexpected(tuned.error());
    const auto more = measured_samples(db, device_model(setup.device), setup.device, setup.request.problem,
                                       to_string(setup.request.policy));
    if (!more) return tl::unexpected(more.error());
    samples.insert(samples.end(), more->begin(), more->end());
    tunings.push_back(std::move(*tuned));
  }
  evaluation.interrupted = cancelled(setup);
  if (evaluation.interrupted) return evaluation;
  const CostModel model = fit_model(default_parameters(setup.device), setup.device, samples, {});
  const auto predicted = [&](const Shape& shape, const Config& config) {
    const auto same = [&](const ModelSample& sample) { return sample.config.spec == config.spec; };
    const auto sample = std::find_if(samples.begin(), samples.end(), same);
    return predict_us(model.of(config.spec), {setup.device, setup.request.problem, shape}, config,
                      sample != samples.end() ? sample->resident : 1);
  };
  const std::vector<TunedShape>&first = tunings[0].shapes, &second = tunings[1].shapes;
  for (std::size_t i = 0; i < first.size() && !cancelled(setup); ++i) {
    const TunedShape &once = first[i], &again = second[i];
    RepeatCase one{.shape = once.shape,
                   .first = once,
                   .second = again,
                   .predicted_ratio = predicted(once.shape, once.winner) / predicted(once.shape, again.winner),
                   .duel = {}};
    if (once.winner == again.winner) {
      one.duel = {.ratio = {.pairs = 0, .ratio = 1, .low = 1, .high = 1},
                  .first_us = once.median_us,
                  .second_us = again.median_us,
                  .noise = {}};
    } else {
      if (const auto begun = backend.begin_shape(canonical(once.shape)); !begun) return tl::unexpected(begun.error());
      Result<Duel> compared = duel(backend, once.winner, again.winner);
      if (!compared) return tl::unexpected(compared.error());
      one.duel = std::move(*compared);
    }
    evaluation.cases.push_back(std::move(one));
    tell(setup, evaluation, case_done);
  }
  evaluation.interrupted = evaluation.cases.size() < setup.request.shapes.size();
  return evaluation;
}

}  // namespace v1
}  // namespace leanattn
