// winner_table.cpp -- the steps of a look-up, from an exact answer down to the default.
#include "runtime/lookup/winner_table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/lookup/decode_step.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/dependent_launch.hpp"
#include "runtime/lookup/estimate.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/prediction.hpp"
#include "runtime/lookup/shape_features.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/won_problems.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::MeasuredShape;
using detail::ProblemWinners;
using detail::Witness;

/// The shape with its contexts rounded up to the next of 16 steps of an octave, and to 4 tokens.
/// Neighbouring shapes then get the same answer, so that contexts may grow without another kernel for each length.
Shape rounded(const Shape& shape) {
  const auto up = [](std::int64_t tokens) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1));
    constexpr std::uint64_t kHuge = std::uint64_t{1} << 40, kLeastStep = 4;
    if (value >= kHuge) return tokens;
    const std::uint64_t step = std::max(kLeastStep, std::bit_ceil(value) / 32);
    return static_cast<std::int64_t>((value + step - 1) / step * step);
  };
  Shape whole = canonical(shape);
  if (whole.mix != QueryMix{}) return whole;  // of which few kernels are to be told apart
  whole.longest_context = up(shape.longest_context);
  if (whole.total_context != 0) {
    const std::int64_t most = total_tokens({.batch = shape.batch, .longest_context = whole.longest_context});
    const std::int64_t average = up(total_tokens(shape) / shape.batch);
    const std::int64_t total = total_tokens({.batch = shape.batch, .longest_context = average});
    whole.total_context = std::clamp(total, whole.longest_context, most);
  }
  return whole;
}

// So many of the nearest winners have a say.
constexpr std::size_t kMostWitnesses = 48;

/// The power of two to which each size is rounded up: a winner for 8192 tokens speaks for 4097 to 8192.
std::array<int, 4> bucket_of(const Shape& shape) {
  const auto octave = [](std::int64_t value) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
  };
  const std::int64_t average = std::max<std::int64_t>(1, total_tokens(shape) / shape.batch);
  const int chunks = shape.mix == QueryMix{} ? 0 : octave(chunk_tokens(canonical(shape)));
  return {octave(shape.batch), octave(shape.longest_context), octave(average), chunks};
}

/// How far two problems are from each other by their features, in octaves. What changes the rows and bytes that a
/// kernel streams counts most.
double distance(const Features& a, const Features& b) {
  if (a == b) return 0;
  const auto octaves = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  const auto differ = [](bool different, double by) { return different ? by : 0.0; };
  return octaves(a.q_len, b.q_len) + octaves(kv_encoding(a).bits, kv_encoding(b).bits) +
         differ((a.page_size > 0) != (b.page_size > 0), 0.5) + differ(a.page_size != b.page_size, 0.1) +
         differ(a.kv_format != b.kv_format || a.kv_scale != b.kv_scale, 0.1) +
         differ(transforms_scores(a) != transforms_scores(b), 0.2) + differ(a.v_head_dim != b.v_head_dim, 0.2) +
         differ(has_selection(a) != has_selection(b), 0.5) +
         differ(a.selection_block != b.selection_block || a.selection_in_pool != b.selection_in_pool ||
                    a.second_cache != b.second_cache,
                0.1) +
         0.05;
}

/// How far two problems with the same heads are from each other, in octaves.
double distance(const DecodeProblem& a, const DecodeProblem& b) {
  return (a.layout != b.layout ? 0.5 : 0.0) + (a.pdl != b.pdl ? 0.1 : 0.0) + (a.lse != b.lse ? 0.05 : 0.0) +
         (a.dtype != b.dtype ? 0.02 : 0.0) + distance(a.features, b.features);
}

int group_of(const DecodeProblem& problem) { return problem.q_heads / problem.kv_heads; }

/// Kernels do not depend on the number of KV heads. It only multiplies output tiles, which are among the features of a
/// shape.
bool share_kernels(const DecodeProblem& a, const DecodeProblem& b) {
  return a.head_dim == b.head_dim && group_of(a) == group_of(b);
}

/// Whether two problems differ at most in what kernels do beside their stream of KV: the LSE, which 16-bit type q has,
/// appended and rotated rows, and sink logits. The fastest configuration for one is then nearly the fastest one for the
/// other.
bool stream_alike(const DecodeProblem& a, const DecodeProblem& b) {
  if (a.q_heads != b.q_heads || a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.layout != b.layout ||
      a.pdl != b.pdl)
    return false;
  const auto streamed = [](Features features) {
    features.append = features.sink_logits = false;
    features.rope = Rope::none, features.rope_dim = 0;
    return features;
  };
  return streamed(a.features) == streamed(b.features);
}

/// Whether kernels read both caches in the same way. V of a latent cache is a part of K, and its rows are converted if
/// they have a format of their own or elements of one byte, so that neither kernels nor costs are a guide to the other
/// kind.
bool read_alike(const DecodeProblem& a, const DecodeProblem& b) {
  const auto kind = [](const Features& f) { return std::pair(row_format(f), f.latent && has_one_byte_elements(f)); };
  return a.features.latent == b.features.latent && kind(a.features) == kind(b.features);
}

/// Whether the model chooses where nothing was measured for the step. The one kernel of a batch-invariant problem may
/// not be exchanged. And where it is not known which query tokens a step with prefill has, its shape says too little.
bool is_predicted(const DecodeStep& step) {
  const Features& features = step.problem.features;
  return !features.batch_invariant && (step.is_mixed() || !has_prefill(features));
}

/// How far any two problems are from each other, in octaves.
double distance_of_any(const DecodeProblem& a, const DecodeProblem& b) {
  const double heads = std::abs(std::log2(static_cast<double>(a.head_dim) / b.head_dim)) +
                       std::abs(std::log2(static_cast<double>(group_of(a)) / group_of(b)));
  return distance(a, b) + 2.0 * heads;
}

}  // namespace

struct WinnerTable::Impl {
  /// A winner and the problem for which it was measured; or nothing.
  struct Found {
    const DecodeProblem* problem = nullptr;
    const MeasuredShape* measured = nullptr;
    explicit operator bool() const { return measured != nullptr; }
  };
  Impl(const DeviceFacts& facts, WinnersByProblem source) : device(facts), problems(facts, std::move(source)) {}

  DeviceFacts device;
  detail::WonProblems problems;

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

  /// The winners of the `wanted` ones among the problems that can say something about this one.
  template <class Wanted>
  std::vector<const ProblemWinners*> winners_for(const DecodeProblem& problem, Wanted wanted) const {
    return problems.find_all([&](const DecodeProblem& candidate) {
      // The one kernel of a batch-invariant problem has LeanTiles that are too long for others, and the times of a
      // group have the exchange in them.
      return !candidate.features.batch_invariant && !has_part_of_context(candidate.features) &&
             has_prefill(candidate.features) == has_prefill(problem.features) && read_alike(candidate, problem) &&
             wanted(candidate);
    });
  }

  /// The problem as its winners are stored: of a group whose link is not known, with the first link that has winners.
  DecodeProblem stored(const DecodeProblem& asked) const {
    DecodeProblem problem = as_launched(asked, device.arch);
    if (!in_group(problem.features) || problem.group_link != GroupLink::unknown) return problem;
    for (const GroupLink link : {GroupLink::nvlink, GroupLink::pcie, GroupLink::same_gpu}) {
      DecodeProblem linked = problem;
      linked.group_link = link;
      if (problems.find(linked) != nullptr) return linked;
    }
    return problem;
  }

  /// The closest winner of these problems. further(problem) is added to the distance of its shapes.
  template <class Further>
  static Found find_closest(std::span<const ProblemWinners* const> candidates, const ShapeFeatures& here,
                            Further further) {
    return cheapest(candidates, [&](const DecodeProblem& candidate) {
      return [&here, octaves = further(candidate)](const MeasuredShape& measured) {
        return distance(measured.shape_features, here) + octaves;
      };
    });
  }

  /// The winners of these problems that are closest to the shape, nearest first. Warm ones speak where there is no cold
  /// one.
  template <class Further>
  static std::vector<Witness> witnesses_of(std::span<const ProblemWinners* const> candidates, const ShapeFeatures& here,
                                           Further further) {
    std::vector<Witness> witnesses;
    for (const L2Policy policy : {L2Policy::cold, L2Policy::warm}) {
      if (!witnesses.empty()) break;
      for (const ProblemWinners* winners : candidates) {
        const double octaves = further(winners->problem());
        for (const MeasuredShape& measured : winners->shapes(policy)) {
          const double away = distance(measured.shape_features, here);
          if (std::isfinite(away)) witnesses.push_back({&measured, octaves, octaves + away});
        }
      }
    }
    if (witnesses.size() > kMostWitnesses) {
      std::vector<double> distances(witnesses.size());
      std::transform(witnesses.begin(), witnesses.end(), distances.begin(), [](const Witness& w) { return w.away; });
      std::nth_element(distances.begin(), distances.begin() + kMostWitnesses, distances.end());
      const double most = distances[kMostWitnesses];
      const auto beyond = [most](const Witness& witness) { return witness.away > most; };
      witnesses.erase(std::remove_if(witnesses.begin(), witnesses.end(), beyond), witnesses.end());
    }
    const auto closer = [](const Witness& a, const Witness& b) { return a.away < b.away; };
    std::stable_sort(witnesses.begin(), witnesses.end(), closer);
    witnesses.resize(std::min(witnesses.size(), kMostWitnesses));
    return witnesses;
  }

  /// The winner of this very shape for the problem that is closest to this one among those that stream KV alike, the
  /// problem itself left out; or nothing.
  Found find_alike(const DecodeStep& step) const {
    Found best;
    double least = std::numeric_limits<double>::infinity();
    const auto wanted = [&](const DecodeProblem& candidate) { return stream_alike(candidate, step.problem); };
    for (const ProblemWinners* winners : winners_for(step.problem, wanted)) {
      const auto exact = find_exact(winners, step.shape);
      const double away = distance(winners->problem(), step.problem);
      if (exact && away < least) best = exact, least = away;
    }
    return best;
  }

  /// A winner of this shape for a problem that streams KV alike, or for a rank's part alone, as the configuration for
  /// this problem, if its tunables fit and, in a group, its CTAs are surely resident at once. Only the start and the
  /// end of such a launch differ from what was measured.
  std::optional<Choice> carried_over(const Found& found, const DecodeStep& step) const {
    if (!found) return std::nullopt;
    Choice choice = found.measured->choice;
    const auto spec = with_tunables_of(step.base, choice.config.spec);
    if (!spec) return std::nullopt;
    if (in_group(step.problem.features) && (family_of(*spec).exchange_order != order_of_group(device, step.problem) ||
                                            choice.config.grid > resident_grid(device, *spec)))
      return std::nullopt;
    choice.config.spec = *spec;
    choice.provenance = Provenance::nearest;
    choice.predicted_us = choice.tuned_us;
    choice.taken_over = true;
    return choice;
  }

  /// What answers for a shape without a winner of its own: the configuration that is predicted to be fastest. `found`
  /// is the winner on which the answer rests, or nothing. `step` is the one that was asked, with its shape rounded().
  /// Where launches are dependent, `ordinary` is the answer for launches that are not. Kernels `without` are not
  /// considered.
  Choice estimate(const Found& found, Provenance provenance, const DecodeStep& asked, const DecodeStep& step,
                  std::span<const Witness> witnesses, const Config* ordinary,
                  std::span<const KernelSpec> without) const {
    std::vector<EstimatedKernel> kernels = detail::estimated_kernels(step, witnesses);
    std::erase_if(kernels, [&](const EstimatedKernel& kernel) {
      return std::find(without.begin(), without.end(), kernel.spec) != without.end();
    });
    Choice choice;
    std::vector<std::int64_t> also;  // grids
    std::optional<DecodeStep> tuned;
    if (found) {
      choice = found.measured->choice;
      choice.provenance = provenance;
      tuned.emplace(device, *found.problem, choice.tuned_shape);
      if (provenance == Provenance::model) {
        choice.tuned_us = 0;
      } else if (const auto spec = with_tunables_of(step.base, choice.config.spec)) {
        also.push_back(carry_grid_over(*tuned, choice.config, step, *spec));
      }
    }
    std::optional<PredictedConfig> best = best_predicted(kernels, step, also);
    // Where even the default kernel has no finite prediction.
    if (!best) best = PredictedConfig{.config = default_config(step), .us = 0, .doubtful_us = 0};
    if (tuned) best->config.l2_promotion = carry_l2_promotion_over(*tuned, choice.config, step, best->config.spec);
    if (ordinary != nullptr && best->us > 0) best = detail::or_ordinary(*best, *ordinary, step, kernels);
    if (found || step.is_mixed()) choice.predicted_us = best->us;
    choice.config = best->config;
    choice.config.grid = std::min(choice.config.grid, lean_tiles(asked, choice.config.spec));
    if (choice.config.segment_cost > 0) choice.config = with_fitting_fix_up(step, choice.config);
    return choice;
  }

  /// The answer for a shape that neither this problem nor one that streams KV alike has a winner for. The problem is
  /// stored(), and is not batch-invariant; `ordinary` and `without` are as in estimate().
  Choice infer(const DecodeStep& asked, const Config* ordinary = nullptr,
               std::span<const KernelSpec> without = {}) const {
    const DecodeProblem& problem = asked.problem;
    const Shape& shape = asked.shape;
    const DecodeStep step(device, problem, rounded(shape));
    const ShapeFeatures here = shape_features_of(step);
    const ProblemWinners* winners = problems.find(problem);
    const auto further = [&](const DecodeProblem& candidate) { return distance(candidate, problem); };
    const auto answer = [&](const Found& found, Provenance provenance,
                            std::span<const ProblemWinners* const> candidates) {
      return estimate(found, provenance, asked, step, witnesses_of(candidates, here, further), ordinary, without);
    };
    if (const auto found = find_bucket(winners, shape, here)) return answer(found, Provenance::bucket, {&winners, 1});
    // A kernel that streams well also does so when it may start earlier. So this is a better guess than another shape.
    if (problem.pdl) {
      const ProblemWinners* ordinary_winners = problems.find(stored(without_pdl(problem)));
      auto found = find_exact(ordinary_winners, shape);
      if (!found) found = find_bucket(ordinary_winners, shape, here);
      if (found) {
        std::vector<const ProblemWinners*> both{ordinary_winners};
        if (winners != nullptr) both.push_back(winners);
        return answer(found, Provenance::without_pdl, both);
      }
    }
    // A rank streams its part as a launch without a group does. So this is a better guess than other heads and
    // features.
    if (has_part_of_context(problem.features)) {
      const ProblemWinners* part = problems.find(without_group(problem));
      auto found = find_exact(part, shape);
      if (auto carried = carried_over(found, step); carried && without.empty()) return *carried;
      if (!found) found = find_bucket(part, shape, here);
      if (found) {
        std::vector<const ProblemWinners*> both{part};
        if (winners != nullptr) both.push_back(winners);
        return answer(found, Provenance::nearest, both);
      }
    }
    const auto same_kernels =
        winners_for(problem, [&](const DecodeProblem& candidate) { return share_kernels(candidate, problem); });
    if (const auto found = find_closest(same_kernels, here, further))
      return answer(found, Provenance::nearest, same_kernels);
    // Of problems with other heads only tunables and costs are a guide, not the grid and the time.
    const auto further_by_heads = [&](const DecodeProblem& candidate) { return distance_of_any(candidate, problem); };
    const auto all = winners_for(problem, [](const DecodeProblem&) { return true; });
    const auto found = find_closest(all, here, further_by_heads);
    return estimate(found, found ? Provenance::model : Provenance::fallback, asked, step,
                    witnesses_of(all, here, further_by_heads), ordinary, without);
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

Choice WinnerTable::find(const DecodeProblem& asked, const Shape& shape) const {
  const DecodeProblem problem = impl_->stored(asked);
  if (const auto exact = Impl::find_exact(impl_->problems.find(problem), shape)) return exact.measured->choice;
  const DecodeStep step(impl_->device, problem, shape);
  if (!is_predicted(step)) {
    Choice choice;
    choice.config = default_config(step);
    return choice;
  }
  if (auto taken = impl_->carried_over(impl_->find_alike(step), step)) return *std::move(taken);
  if (!problem.pdl) return impl_->infer(step);
  const Config ordinary = find(without_pdl(problem), shape).config;
  return impl_->infer(step, &ordinary);
}

std::vector<Choice> WinnerTable::launch_order(const DecodeProblem& asked, const Shape& shape) const {
  const DecodeStep step(impl_->device, impl_->stored(asked), shape);
  std::vector<Choice> order{find(asked, shape)};
  const auto add = [&](Choice choice) {
    const auto same = [&](const Choice& before) { return before.config == choice.config; };
    if (std::none_of(order.begin(), order.end(), same)) order.push_back(std::move(choice));
  };
  if (const auto exact = Impl::find_exact(impl_->problems.find(step.problem), shape); exact && exact.measured->next)
    add(*exact.measured->next);
  if (is_predicted(step)) {
    std::vector<KernelSpec> without(order.size());
    std::ranges::transform(order, without.begin(), [](const Choice& choice) { return choice.config.spec; });
    add(impl_->infer(step, nullptr, without));
  }
  for (const Config& config : default_configs(step))
    add({.config = config, .tuned_shape = {}, .layer = {}, .tuned_nvrtc = {}});
  return order;
}

std::span<const RecurrentWinner> WinnerTable::recurrent_winners(const RecurrentProblem& problem) const {
  return impl_->problems.find(problem);
}

std::size_t WinnerTable::size() const { return impl_->problems.size(); }
std::size_t WinnerTable::skipped() const { return impl_->problems.skipped(); }
bool WinnerTable::locked() const { return impl_->problems.locked(); }
std::vector<std::string> WinnerTable::warnings() const { return impl_->problems.warnings(); }

}  // namespace v1
}  // namespace leanattn
