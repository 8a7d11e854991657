// winner_table.cpp -- the steps of a look-up, from an exact answer down to the default.
#include "runtime/lookup/winner_table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/parsed_texts.hpp"
#include "runtime/lookup/portfolio.hpp"
#include "runtime/lookup/shape_features.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/won_problems.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::MeasuredShape;
using detail::ProblemWinners;

/// The power of two to which each size is rounded up: a winner for 8192 tokens speaks for 4097 to 8192.
std::array<int, 3> bucket_of(const Shape& shape) {
  const auto octave = [](std::int64_t value) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
  };
  const std::int64_t average = std::max<std::int64_t>(1, total_tokens(shape) / shape.batch);
  return {octave(shape.batch), octave(shape.longest_context), octave(average)};
}

/// How far two problems are from each other by their features, in octaves. What changes the rows and bytes that a
/// kernel streams counts most.
double distance(const Features& a, const Features& b) {
  if (a == b) return 0;
  const auto octaves = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  const auto differ = [](bool different, double by) { return different ? by : 0.0; };
  return octaves(a.q_len, b.q_len) + octaves(kv_element_bytes(a), kv_element_bytes(b)) +
         differ((a.page_size > 0) != (b.page_size > 0), 0.5) + differ(a.page_size != b.page_size, 0.1) +
         differ(a.kv_format != b.kv_format || a.kv_scale != b.kv_scale, 0.1) +
         differ(transforms_scores(a) != transforms_scores(b), 0.2) + differ(a.v_head_dim != b.v_head_dim, 0.2) +
         differ(a.latent != b.latent, 2) + differ(has_selection(a) != has_selection(b), 0.5) +
         differ(a.selection_block != b.selection_block || a.selection_in_pool != b.selection_in_pool, 0.1) + 0.05;
}

/// How far two problems with the same heads are from each other, in octaves.
double distance(const DecodeProblem& a, const DecodeProblem& b) {
  return (a.layout != b.layout ? 0.5 : 0.0) + (a.pdl != b.pdl ? 0.1 : 0.0) + (a.lse != b.lse ? 0.05 : 0.0) +
         (a.dtype != b.dtype ? 0.02 : 0.0) + distance(a.features, b.features);
}

int group_of(const DecodeProblem& problem) { return problem.q_heads / problem.kv_heads; }

}  // namespace

struct WinnerTable::Impl {
  /// A winner and the problem for which it was measured; or nothing.
  struct Found {
    const DecodeProblem* problem = nullptr;
    const MeasuredShape* measured = nullptr;
    explicit operator bool() const { return measured != nullptr; }
  };
  /// A portfolio, parsed when a look-up first considers it.
  struct Model {
    Model(const DecodeProblem& of, std::string text) : problem(of), json(std::move(text)) {}
    /// Null for a portfolio that another version wrote, or that was fitted to too few shapes.
    const Portfolio* get() {
      std::call_once(once, [this] {
        if (auto parsed = portfolio_from_json(json); parsed && parsed->shapes >= kFewestPortfolioShapes)
          portfolio = *std::move(parsed);
        json = {};
      });
      return portfolio ? &*portfolio : nullptr;
    }

    DecodeProblem problem;
    std::string json;
    std::once_flag once;
    std::optional<Portfolio> portfolio;
  };

  Impl(const DeviceFacts& facts, WinnersByProblem source)
      : device(facts), models(models_of(source)), problems(facts, std::move(source)) {}

  DeviceFacts device;
  mutable std::deque<Model> models;  ///< cold ones first
  detail::WonProblems problems;

  static std::deque<Model> models_of(const WinnersByProblem& source) {
    std::deque<Model> models;
    ParsedTexts<DecodeProblem> problems(problem_from_json);
    for (const L2Policy policy : {L2Policy::cold, L2Policy::warm}) {
      for (const FittedModel& row : source.models) {
        if (row.policy != to_string(policy)) continue;
        const auto& problem = problems(row.problem);
        if (problem && !problem->features.batch_invariant) models.emplace_back(*problem, row.json);
      }
    }
    return models;
  }

  /// The problem without pdl where the GPU has no dependent launches.
  DecodeProblem heeded(DecodeProblem problem) const {
    problem.pdl = problem.pdl && has_dependent_launch(device.arch);
    return problem;
  }

  /// The winner of these problems with the least cost(problem)(winner). Cold ones go before warm ones, and earlier ones
  /// before later ones. A winner of infinite cost is none.
  template <class Cost>
  static Found cheapest(std::span<const ProblemWinners* const> candidates, Cost cost) {
    Found best;
    double best_cost = std::numeric_limits<double>::infinity();
    for (const L2Policy policy : {L2Policy::cold, L2Policy::warm}) {
      for (const ProblemWinners* winners : candidates) {
        const auto cost_here = cost(winners->problem());
        for (const MeasuredShape& measured : winners->shapes(policy)) {
          const double now = cost_here(measured);
          if (now >= best_cost) continue;
          best_cost = now;
          best = {&winners->problem(), &measured};
        }
      }
    }
    return best;
  }

  static Found find_exact(const ProblemWinners* winners, const Shape& shape) noexcept {
    const MeasuredShape* measured = winners != nullptr ? winners->find(shape) : nullptr;
    return measured != nullptr ? Found{&winners->problem(), measured} : Found{};
  }

  /// The closest of these winners in the shape's bucket.
  static Found find_bucket(const ProblemWinners* winners, const Shape& shape, const ShapeFeatures& here) {
    if (winners == nullptr) return {};
    const auto bucket = bucket_of(shape);
    return cheapest({&winners, 1}, [&](const DecodeProblem&) {
      return [&](const MeasuredShape& measured) {
        const bool same = bucket_of(measured.choice.tuned_shape) == bucket;
        return same ? distance(measured.shape_features, here) : std::numeric_limits<double>::infinity();
      };
    });
  }

  /// The closest winner of all the problems that are `wanted`. further(problem) is added to the distance of its shapes.
  template <class Wanted, class Further>
  Found find_closest(const ShapeFeatures& here, Wanted wanted, Further further) const {
    const auto candidates = problems.find_all([&](const DecodeProblem& candidate) {
      // The one kernel of a batch-invariant problem has LeanTiles that are too long for others.
      return !candidate.features.batch_invariant && wanted(candidate);
    });
    return cheapest(candidates, [&](const DecodeProblem& candidate) {
      return [&here, octaves = further(candidate)](const MeasuredShape& measured) {
        return distance(measured.shape_features, here) + octaves;
      };
    });
  }

  /// The portfolio of this problem, or of the closest one with the same kernels that is less than `octaves` away; or
  /// null.
  const Portfolio* portfolio_for(const DecodeProblem& problem, double octaves) const {
    const Portfolio* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (Model& model : models) {
      if (model.problem.head_dim != problem.head_dim || group_of(model.problem) != group_of(problem) ||
          model.problem.features.q_len != problem.features.q_len)
        continue;
      const double away = distance(model.problem, problem);
      if (away >= octaves) continue;
      const double heads = std::abs(std::log2(static_cast<double>(model.problem.kv_heads) / problem.kv_heads));
      const double now = away + 0.01 * heads;
      if (now >= least) continue;
      if (const Portfolio* portfolio = model.get()) least = now, best = portfolio;
    }
    return best;
  }

  /// The answer of adapt(). Where the portfolio of a problem exists that is closer than the winner, kernel and grid are
  /// the best ones that it predicts for this shape.
  std::optional<Choice> predict(const Found& found, Provenance provenance, const DecodeProblem& problem,
                                const Shape& shape) const {
    std::optional<Choice> choice = adapt(found, provenance, problem, shape);
    if (choice && provenance != Provenance::model) take_prediction(found, problem, shape, *choice);
    if (choice) choice->config = with_fitting_fix_up(device, problem, shape, choice->config);
    return choice;
  }

  /// Replaces the choice by what the portfolio predicts, where there is one that is closer than the winner.
  void take_prediction(const Found& found, const DecodeProblem& problem, const Shape& shape, Choice& choice) const {
    const ShapeFeatures here = shape_features_of(problem, shape, base_spec(device.arch, problem));
    const double octaves = distance(found.measured->shape_features, here) + distance(*found.problem, problem);
    const Portfolio* portfolio = portfolio_for(problem, octaves);
    if (portfolio == nullptr) return;
    if (const auto best = best_predicted(*portfolio, device, problem, shape)) {
      choice.config = best->config;
      choice.predicted_us = best->us;
    }
  }

  /// The winner made to fit this problem and shape; nullopt when it cannot be.
  std::optional<Choice> adapt(const Found& found, Provenance provenance, const DecodeProblem& problem,
                              const Shape& shape) const {
    const Choice& tuned = found.measured->choice;
    const auto spec = with_tunables_of(base_spec(device.arch, problem), tuned.config.spec);
    if (!spec) return std::nullopt;
    Choice choice = tuned;
    choice.provenance = provenance;
    choice.config.spec = *spec;
    choice.config.l2_promotion =
        carry_l2_promotion_over(*found.problem, tuned.tuned_shape, tuned.config, problem, shape, *spec);
    const bool other_rows = found.problem->features.q_len != problem.features.q_len;
    // A load path that would read the cache more often than the default does is no guide.
    if ((provenance == Provenance::model || other_rows) &&
        row_blocks(*spec) > row_blocks(default_config(device, problem, shape).spec)) {
      return std::nullopt;
    }
    if (provenance == Provenance::model) {
      choice.tuned_us = 0;
      choice.config.grid = cheapest_grid(device, problem, shape, *spec);
    } else {
      choice.config.grid =
          carry_grid_over(device, *found.problem, tuned.tuned_shape, tuned.config, problem, shape, *spec);
    }
    const double raggedness = shape_features_of(problem, shape, *spec).raggedness;
    if (raggedness > found.measured->shape_features.raggedness + kRaggedOctaves) {
      choice.config.spec.fixup = FixUp::ticket;
      choice.config.grid = ragged_grid(device, problem, shape, choice.config.spec);
      choice.config.segment_cost = segment_cost(device, choice.config.spec);
    }
    return choice;
  }
};

std::string_view to_string(Provenance p) {
  switch (p) {
    case Provenance::exact: return "exact";
    case Provenance::bucket: return "bucket";
    case Provenance::nearest: return "nearest";
    case Provenance::model: return "model";
    case Provenance::fallback: return "fallback";
    case Provenance::without_pdl: return "without_pdl";
  }
  return "fallback";
}

int rank(Provenance p) {
  switch (p) {
    case Provenance::exact: return 0;
    case Provenance::bucket: return 1;
    case Provenance::without_pdl: return 2;
    case Provenance::nearest: return 3;
    case Provenance::model: return 4;
    case Provenance::fallback: return 5;
  }
  return 5;
}

WinnerTable::WinnerTable(const DeviceFacts& device, WinnersByProblem winners)
    : impl_(std::make_unique<Impl>(device, std::move(winners))) {}
WinnerTable::WinnerTable(WinnerTable&&) noexcept = default;
WinnerTable& WinnerTable::operator=(WinnerTable&&) noexcept = default;
WinnerTable::~WinnerTable() = default;

WinnerTable WinnerTable::build(const DeviceFacts& device, LayeredWinners winners) {
  WinnerTable table(device, by_problem(std::move(winners)));
  table.impl_->problems.find_all([](const DecodeProblem&) { return true; });
  return table;
}

const Choice* WinnerTable::find_exact(const DecodeProblem& problem, const Shape& shape) const {
  const auto exact = Impl::find_exact(impl_->problems.find(impl_->heeded(problem)), shape);
  return exact ? &exact.measured->choice : nullptr;
}

Choice WinnerTable::find(const DecodeProblem& asked, const Shape& shape) const {
  const DecodeProblem problem = impl_->heeded(canonical(asked));
  const ProblemWinners* winners = impl_->problems.find(problem);
  if (const auto exact = Impl::find_exact(winners, shape)) return exact.measured->choice;
  if (problem.features.batch_invariant) {  // its one kernel may not be exchanged
    Choice choice;
    choice.config = default_config(impl_->device, problem, shape);
    return choice;
  }
  const ShapeFeatures here = shape_features_of(problem, shape, base_spec(impl_->device.arch, problem));

  if (const auto found = Impl::find_bucket(winners, shape, here)) {
    if (auto choice = impl_->predict(found, Provenance::bucket, problem, shape)) return *std::move(choice);
  }
  // A kernel that streams well also does so when it may start earlier. So this is a better guess than another shape.
  if (problem.pdl) {
    DecodeProblem ordinary = problem;
    ordinary.pdl = false;
    const ProblemWinners* ordinary_winners = impl_->problems.find(ordinary);
    auto found = Impl::find_exact(ordinary_winners, shape);
    if (!found) found = Impl::find_bucket(ordinary_winners, shape, here);
    if (found) {
      if (auto choice = impl_->predict(found, Provenance::without_pdl, problem, shape)) return *std::move(choice);
    }
  }
  // Kernels do not depend on the number of KV heads. It only multiplies output tiles, which are among the features of a
  // shape.
  const auto same_kernel = [&](const DecodeProblem& candidate) {
    return candidate.head_dim == problem.head_dim && group_of(candidate) == group_of(problem);
  };
  const auto further = [&](const DecodeProblem& candidate) { return distance(candidate, problem); };
  if (const auto found = impl_->find_closest(here, same_kernel, further)) {
    if (auto choice = impl_->predict(found, Provenance::nearest, problem, shape)) return *std::move(choice);
  }
  // Of problems with other heads only the tunables are a guide, not the grid and the time.
  const auto any = [](const DecodeProblem&) { return true; };
  const auto further_by_heads = [&](const DecodeProblem& candidate) {
    const double heads = std::abs(std::log2(static_cast<double>(candidate.head_dim) / problem.head_dim)) +
                         std::abs(std::log2(static_cast<double>(group_of(candidate)) / group_of(problem)));
    return distance(candidate, problem) + 2.0 * heads;
  };
  if (const auto found = impl_->find_closest(here, any, further_by_heads)) {
    if (auto choice = impl_->predict(found, Provenance::model, problem, shape)) return *std::move(choice);
  }
  Choice choice;
  choice.config = default_config(impl_->device, problem, shape);
  return choice;
}

std::size_t WinnerTable::size() const { return impl_->problems.size(); }
std::size_t WinnerTable::skipped() const { return impl_->problems.skipped(); }
bool WinnerTable::locked() const { return impl_->problems.locked(); }
std::vector<std::string> WinnerTable::warnings() const { return impl_->problems.warnings(); }

}  // namespace v1
}  // namespace leanattn
