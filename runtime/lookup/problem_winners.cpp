// problem_winners.cpp -- parses winners and keeps them in a flat hash map by shape.
#include "runtime/lookup/problem_winners.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// Whether a config can have been measured for a problem on this device. A row that another version wrote, or that was
/// edited by hand, may have any.
bool belongs(const DeviceFacts& device, const DecodeProblem& problem, const Config& config) {
  const KernelSpec base = base_spec(device.arch, problem);
  const KernelSpec& spec = config.spec;
  return differ_in_tunables_only(spec, base) && problem.pdl == base.pdl &&
         (!waits(spec) || config.grid <= most_resident(device, spec)) &&
         // Ranks may launch different kernels, which send columns in one order.
         (!in_group(problem.features) || family_of(spec).exchange_order == order_of_group(device, problem)) &&
         // A batch-invariant problem has one kernel for all shapes, because bits depend on the kernel. For the same
         // reason its line has no segment costs.
         (!problem.features.batch_invariant ||
          (spec == default_config({device, problem, {}}).spec && config.segment_cost == 0));
}

/// Whether a grid can have been tuned for this shape: no larger than its LeanTiles, or than twice what can ever be
/// resident at once. A workspace for more could take all memory.
bool fits(const DecodeStep& step, const Config& config) {
  constexpr std::int64_t kMostResidentCtas = 32;  // on one SM (CUDA programming guide, compute capabilities)
  const std::int64_t two_waves = 2 * kMostResidentCtas * std::max(1, step.device.sm_count);
  return config.grid <= std::max({two_waves, lean_tiles(step, config.spec), output_tiles(step, config.spec)});
}

}  // namespace

ProblemWinners::ProblemWinners(const DeviceFacts& device, const DecodeProblem& problem,
                               std::span<const LayeredWinners::Entry* const> rows)
    : problem_(problem), slots_(std::bit_ceil(2 * rows.size() + 2)) {
  shapes_.reserve(rows.size());
  // Thousands of winners share some dozens of configurations, so each text is parsed once. Their shapes all differ.
  std::unordered_map<std::string_view, std::optional<Config>> configs;
  const auto config_of = [&](const std::string& text) -> const std::optional<Config>& {
    const auto [known, made] = configs.try_emplace(text);
    if (made) {
      if (auto config = config_from_json(text); config && belongs(device, problem, *config))
        known->second = *std::move(config);
    }
    return known->second;
  };
  // A decode step finds its KV cache in memory and not in L2, so what was measured cold goes first.
  for (const L2Policy policy : {L2Policy::cold, L2Policy::warm}) {
    for (const LayeredWinners::Entry* row : rows) {
      if (row->winner.policy != to_string(policy)) continue;
      const auto shape = shape_from_json(row->winner.shape);
      const auto& config = config_of(row->winner.config);
      if (shape && config) {
        const DecodeStep step(device, problem, *shape);
        if (fits(step, *config)) {
          const auto& next = config_of(row->winner.next_config);
          add(step, *row, *config, next && fits(step, *next) ? &*next : nullptr);
          continue;
        }
      }
      ++skipped_;
    }
    if (policy == L2Policy::cold) cold_ = shapes_.size();
  }
}

void ProblemWinners::add(const DecodeStep& step, const LayeredWinners::Entry& row, const Config& config,
                         const Config* next) {
  const LookupKey key = make_lookup_key(problem_, without_max_batch(step.shape));
  Slot& slot = slots_[slot_of(key)];
  if (slot.shape != kEmpty) return;  // an earlier layer or policy has a winner for it
  slot = {key, static_cast<std::uint32_t>(shapes_.size())};
  const ShapeFeatures features = shape_features_of(step);
  const ModelledTime modelled =
      modelled_time(default_parameters(step.device), step, config, guess_resident(step.device, config.spec));
  const double ratio = row.winner.median_us / modelled.us();
  const auto measured = [&](const Config& one, double us) {
    return Choice{.config = one,
                  .provenance = Provenance::exact,
                  .tuned_us = us,
                  .tuned_shape = step.shape,
                  .layer = row.layer,
                  .stale = row.winner.stale,
                  .tuned_nvrtc = row.winner.environment.nvrtc_version,
                  .tuned_pdl = problem_.pdl,
                  .tuned_group = in_group(problem_.features),
                  .tuned_link = problem_.group_link};
  };
  shapes_.push_back({measured(config, row.winner.median_us),
                     next != nullptr ? std::optional(measured(*next, row.winner.next_us)) : std::nullopt,
                     features,
                     {.shape_features = features,
                      .kind = modelled.kind,
                      // A row that was edited by hand may have any time.
                      .log_ratio = std::log(ratio > 0 ? std::clamp(ratio, 0.25, 4.0) : 1.0)}});
}

std::size_t ProblemWinners::slot_of(const LookupKey& key) const noexcept {
  std::size_t at = hash(key) & (slots_.size() - 1);
  while (slots_[at].shape != kEmpty && !(slots_[at].key == key)) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const MeasuredShape* ProblemWinners::find(const Shape& shape) const noexcept {
  const Slot& slot = slots_[slot_of(make_lookup_key(problem_, without_max_batch(shape)))];
  return slot.shape == kEmpty ? nullptr : &shapes_[slot.shape];
}

std::span<const MeasuredShape> ProblemWinners::shapes(L2Policy policy) const {
  const std::span<const MeasuredShape> all(shapes_);
  return policy == L2Policy::cold ? all.first(cold_) : all.subspan(cold_);
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
