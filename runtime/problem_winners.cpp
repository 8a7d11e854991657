// problem_winners.cpp -- exact hits through a flat hash map, everything else by a walk over the shapes.
#include "runtime/problem_winners.hpp"

#include <bit>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "runtime/lookup_grid.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// Whether a config can be what was measured for a problem on this device: rows of another version, or edited by hand,
/// are not trusted.
bool belongs(const DeviceFacts& device, const DecodeProblem& problem, const Config& config) {
  const KernelSpec base = base_spec(device.arch, problem);
  const KernelSpec& spec = config.spec;
  return spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group &&
         spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse && spec.pdl == base.pdl &&
         problem.pdl == base.pdl && spec.features == base.features &&
         (spec.fixup != FixUp::wait || config.grid <= resident_grid(device, spec)) &&
         // Bits depend on the kernel, so a batch-invariant problem has one for all shapes; its line holds nothing but
         // LeanTiles.
         (!problem.features.batch_invariant ||
          (spec == default_config(device, problem, Shape{}).spec && config.segment_cost == 0));
}

/// The batch that a plan is sized for says nothing about its speed.
LookupKey key_of(const DecodeProblem& problem, Shape shape) noexcept {
  shape.max_batch = 0;
  return make_lookup_key(problem, shape);
}

}  // namespace

ProblemWinners::ProblemWinners(const DeviceFacts& device, const DecodeProblem& problem,
                               std::span<const LayeredWinners::Entry* const> rows)
    : problem_(problem), slots_(std::bit_ceil(2 * rows.size() + 2)) {
  shapes_.reserve(rows.size());
  // Thousands of winners share some dozens of configurations; their shapes all differ.
  std::unordered_map<std::string_view, std::optional<Config>> configs;
  const auto config_of = [&](const std::string& text) -> const std::optional<Config>& {
    const auto [known, made] = configs.try_emplace(text);
    if (made) {
      if (auto config = config_from_json(text); config && belongs(device, problem, *config))
        known->second = *std::move(config);
    }
    return known->second;
  };
  // A decode step finds its KV cache in memory, not in L2: what was measured cold speaks first.
  for (const bool cold : {true, false}) {
    for (const LayeredWinners::Entry* row : rows) {
      if ((row->winner.policy == "cold") != cold) continue;
      const auto shape = shape_from_json(row->winner.shape);
      const auto& config = config_of(row->winner.config);
      if (shape && config) {
        add(device, *row, *shape, *config);
      } else {
        ++skipped_;
      }
    }
    if (cold) cold_ = shapes_.size();
  }
}

void ProblemWinners::add(const DeviceFacts& device, const LayeredWinners::Entry& row, const Shape& shape,
                         const Config& config) {
  const LookupKey key = key_of(problem_, shape);
  Slot& slot = slots_[slot_of(key)];
  if (slot.shape != kEmpty) return;  // a better layer or policy has it
  slot = {key, static_cast<std::uint32_t>(shapes_.size())};
  shapes_.push_back({{.config = config,
                      .provenance = Provenance::exact,
                      .tuned_us = row.winner.median_us,
                      .tuned_shape = shape,
                      .layer = row.layer,
                      .stale = row.winner.stale,
                      .tuned_pdl = problem_.pdl},
                     place_of(problem_, shape, base_spec(device.arch, problem_))});
}

std::size_t ProblemWinners::slot_of(const LookupKey& key) const noexcept {
  std::size_t at = hash(key) & (slots_.size() - 1);
  while (slots_[at].shape != kEmpty && !(slots_[at].key == key)) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const MeasuredShape* ProblemWinners::find(const Shape& shape) const noexcept {
  const Slot& slot = slots_[slot_of(key_of(problem_, shape))];
  return slot.shape == kEmpty ? nullptr : &shapes_[slot.shape];
}

std::span<const MeasuredShape> ProblemWinners::shapes(bool cold) const {
  const std::span<const MeasuredShape> all(shapes_);
  return cold ? all.first(cold_) : all.subspan(cold_);
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
