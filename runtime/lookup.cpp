// lookup.cpp -- WinnerTable: exact hits through a flat hash map, everything else by a walk over the winners.
#include "runtime/lookup.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "runtime/lookup_grid.hpp"
#include "runtime/lookup_key.hpp"
#include "runtime/parsed_texts.hpp"
#include "runtime/place.hpp"
#include "runtime/portfolio.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::distance;
using detail::Place;
using detail::place_of;

struct Entry {
  DecodeProblem problem;
  Choice choice;  ///< as an exact hit returns it
  Place place;
};

/// Which power of two each size rounds up to: a winner for 8192 tokens speaks for 4097 to 8192.
std::array<int, 3> bucket_of(const Shape& shape) {
  const auto octave = [](std::int64_t value) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
  };
  const std::int64_t average = std::max<std::int64_t>(1, total_tokens(shape) / shape.batch);
  return {octave(shape.batch), octave(shape.longest_context), octave(average)};
}

/// What differing features add, in octaves: most by what they change of the rows and bytes that a kernel streams.
double distance(const Features& a, const Features& b) {
  if (a == b) return 0;
  const auto octaves = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  const auto differ = [](bool different, double by) { return different ? by : 0.0; };
  return octaves(a.q_len, b.q_len) + octaves(kv_element_bytes(a), kv_element_bytes(b)) +
         differ((a.page_size > 0) != (b.page_size > 0), 0.5) + differ(a.page_size != b.page_size, 0.1) +
         differ(a.kv_format != b.kv_format || a.kv_scale != b.kv_scale, 0.1) +
         differ(transforms_scores(a) != transforms_scores(b), 0.2) + differ(a.v_head_dim != b.v_head_dim, 0.2) + 0.05;
}

/// What a differing problem adds, in octaves: the kernels are nearly the same, but their reads are not quite.
double distance(const DecodeProblem& a, const DecodeProblem& b) {
  return (a.layout != b.layout ? 0.5 : 0.0) + (a.pdl != b.pdl ? 0.1 : 0.0) + (a.lse != b.lse ? 0.05 : 0.0) +
         (a.dtype != b.dtype ? 0.02 : 0.0) + distance(a.features, b.features);
}

int group_of(const DecodeProblem& problem) { return problem.q_heads / problem.kv_heads; }

/// Whether a config can be what was measured for a problem on this device: rows of another version, or edited by hand,
/// are not trusted.
bool belongs(const DeviceFacts& device, const DecodeProblem& problem, const Config& config) {
  const KernelSpec base = base_spec(device.arch, problem);
  const KernelSpec& spec = config.spec;
  return spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group &&
         spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse && spec.pdl == base.pdl &&
         problem.pdl == base.pdl && spec.features == base.features &&
         (spec.fixup != FixUp::wait || config.grid <= detail::resident_grid(device, spec)) &&
         // Bits depend on the kernel, so a batch-invariant problem has one for all shapes; its line holds nothing but
         // LeanTiles.
         (!problem.features.batch_invariant ||
          (spec == default_config(device, problem, Shape{}).spec && config.segment_cost == 0));
}

/// The batch that a plan is sized for says nothing about its speed, and a GPU without dependent launches heeds no pdl.
LookupKey speed_key(const DecodeProblem& problem, Shape shape, Arch arch) noexcept {
  shape.max_batch = 0;
  LookupKey key = make_lookup_key(problem, shape);
  if (!has_dependent_launch(arch)) key.words[1] &= ~kKeyPdl;
  return key;
}

}  // namespace

struct WinnerTable::Impl {
  struct Slot {
    LookupKey key;
    std::uint32_t entry = kEmpty;
  };
  static constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

  DeviceFacts device;
  std::vector<Entry> entries;
  std::vector<Slot> slots = std::vector<Slot>(2);  ///< a power of two, at most half full; linear probing
  struct Model {
    DecodeProblem problem;
    Portfolio portfolio;
  };
  std::vector<Model> models;  ///< those measured cold first
  std::size_t skipped = 0;

  Slot& slot_of(const LookupKey& key) {
    std::size_t at = hash(key) & (slots.size() - 1);
    while (slots[at].entry != kEmpty && !(slots[at].key == key)) at = (at + 1) & (slots.size() - 1);
    return slots[at];
  }
  const Slot& slot_of(const LookupKey& key) const { return const_cast<Impl*>(this)->slot_of(key); }

  void add(const LayeredWinners::Entry& row, const DecodeProblem& problem, const Shape& shape, const Config& config) {
    const LookupKey key = speed_key(problem, shape, device.arch);
    Slot& slot = slot_of(key);
    if (slot.entry != kEmpty) return;  // a better layer or policy has it
    slot = {key, static_cast<std::uint32_t>(entries.size())};
    entries.push_back({problem,
                       {.config = config,
                        .provenance = Provenance::exact,
                        .tuned_us = row.winner.median_us,
                        .tuned_shape = shape,
                        .layer = row.layer,
                        .stale = row.winner.stale,
                        .tuned_pdl = problem.pdl},
                       place_of(problem, shape, base_spec(device.arch, problem))});
  }

  /// The entry of least cost(entry); ties go to the first. Entries of infinite cost do not count.
  template <class Cost>
  const Entry* cheapest(Cost cost) const {
    const Entry* best = nullptr;
    double best_cost = std::numeric_limits<double>::infinity();
    for (const Entry& entry : entries) {
      // The long LeanTiles of a batch-invariant problem's one kernel are no guide for others.
      if (entry.problem.features.batch_invariant) continue;
      const double now = cost(entry);
      if (now >= best_cost) continue;
      best_cost = now;
      best = &entry;
    }
    return best;
  }

  const Entry* find_exact(const DecodeProblem& problem, const Shape& shape) const noexcept {
    const Slot& slot = slot_of(speed_key(problem, shape, device.arch));
    return slot.entry == kEmpty ? nullptr : &entries[slot.entry];
  }

  /// The closest winner of this very problem in the shape's bucket.
  const Entry* find_bucket(const DecodeProblem& problem, const Shape& shape, const Place& here) const {
    const auto bucket = bucket_of(shape);
    return cheapest([&](const Entry& candidate) {
      const bool same = candidate.problem == problem && bucket_of(candidate.choice.tuned_shape) == bucket;
      return same ? distance(candidate.place, here) : std::numeric_limits<double>::infinity();
    });
  }

  /// What was fitted to this problem's trials, or to those of the closest one with the same kernels that is less than
  /// `octaves` away; null without.
  const Portfolio* portfolio_for(const DecodeProblem& problem, double octaves) const {
    const Model* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Model& model : models) {
      if (model.problem.head_dim != problem.head_dim || group_of(model.problem) != group_of(problem) ||
          model.problem.features.q_len != problem.features.q_len)
        continue;
      const double away = distance(model.problem, problem);
      if (away >= octaves) continue;
      const double heads = std::abs(std::log2(static_cast<double>(model.problem.kv_heads) / problem.kv_heads));
      const double now = away + 0.01 * heads;
      if (now < least) least = now, best = &model;
    }
    return best != nullptr ? &best->portfolio : nullptr;
  }

  /// adapt(), with the kernel and the grid that the fitted model says are best here, where there is one that is closer
  /// than the entry: it speaks for this very place, but maybe for another problem.
  std::optional<Choice> predict(const Entry& entry, Provenance provenance, const DecodeProblem& problem,
                                const Shape& shape) const {
    std::optional<Choice> choice = adapt(entry, provenance, problem, shape);
    if (!choice || provenance == Provenance::model) return choice;
    const Place here = place_of(problem, shape, base_spec(device.arch, problem));
    const Portfolio* portfolio = portfolio_for(problem, distance(entry.place, here) + distance(entry.problem, problem));
    if (portfolio == nullptr) return choice;
    if (const auto best = best_predicted(*portfolio, device, problem, shape)) {
      choice->config = best->config;
      choice->predicted_us = best->us;
    }
    return choice;
  }

  /// What `entry` was tuned to, made to fit; nullopt when it cannot be.
  std::optional<Choice> adapt(const Entry& entry, Provenance provenance, const DecodeProblem& problem,
                              const Shape& shape) const {
    const auto spec = detail::with_tunables_of(base_spec(device.arch, problem), entry.choice.config.spec);
    if (!spec) return std::nullopt;
    Choice choice = entry.choice;
    choice.provenance = provenance;
    choice.config.spec = *spec;
    const bool other_rows = entry.problem.features.q_len != problem.features.q_len;
    // A way of loading that would read the cache more often than the default does is no guide.
    if ((provenance == Provenance::model || other_rows) &&
        row_blocks(*spec) > row_blocks(default_config(device, problem, shape).spec)) {
      return std::nullopt;
    }
    if (provenance == Provenance::model) {
      choice.tuned_us = 0;
      choice.config.grid = detail::cheapest_grid(device, problem, shape, *spec);
    } else {
      choice.config.grid = detail::carry_grid_over(device, entry.problem, entry.choice.tuned_shape, entry.choice.config,
                                                   problem, shape, *spec);
    }
    const double raggedness = place_of(problem, shape, *spec).raggedness;
    if (raggedness > entry.place.raggedness + detail::kRaggedOctaves) {
      choice.config.spec.fixup = FixUp::ticket;
      choice.config.grid = detail::ragged_grid(device, problem, shape, choice.config.spec);
      choice.config.segment_cost = detail::segment_cost(device, choice.config.spec);
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

WinnerTable::WinnerTable() : impl_(std::make_unique<Impl>()) {}
WinnerTable::WinnerTable(WinnerTable&&) noexcept = default;
WinnerTable& WinnerTable::operator=(WinnerTable&&) noexcept = default;
WinnerTable::~WinnerTable() = default;

WinnerTable WinnerTable::build(const DeviceFacts& device, const LayeredWinners& winners) {
  WinnerTable table;
  Impl& impl = *table.impl_;
  impl.device = device;
  impl.entries.reserve(winners.entries.size());
  impl.slots.assign(std::bit_ceil(2 * winners.entries.size() + 2), {});
  ParsedTexts<DecodeProblem> problems(problem_from_json);
  ParsedTexts<Shape> shapes(shape_from_json);
  ParsedTexts<Config> configs(config_from_json);
  // A decode step finds its KV cache in memory, not in L2: what was measured cold speaks first.
  for (const bool cold : {true, false}) {
    for (const auto& row : winners.entries) {
      if ((row.winner.policy == "cold") != cold) continue;
      const auto& problem = problems(row.winner.problem);
      const auto& shape = shapes(row.winner.shape);
      const auto& config = configs(row.winner.config);
      if (problem && shape && config && belongs(device, *problem, *config)) {
        impl.add(row, *problem, *shape, *config);
      } else {
        ++impl.skipped;
      }
    }
  }
  for (const bool cold : {true, false}) {
    for (const FittedModel& row : winners.models) {
      if ((row.policy == "cold") != cold) continue;
      const auto& problem = problems(row.problem);
      auto portfolio = portfolio_from_json(row.json);
      // One of another version: look-ups do without, until the next tuning.
      if (!problem || !portfolio || problem->features.batch_invariant) continue;
      if (portfolio->shapes >= kFewestPortfolioShapes) impl.models.push_back({*problem, std::move(*portfolio)});
    }
  }
  return table;
}

const Choice* WinnerTable::find_exact(const DecodeProblem& problem, const Shape& shape) const noexcept {
  const Entry* entry = impl_->find_exact(problem, shape);
  return entry != nullptr ? &entry->choice : nullptr;
}

Choice WinnerTable::find(const DecodeProblem& asked, const Shape& shape) const {
  DecodeProblem problem = canonical(asked);
  problem.pdl = problem.pdl && has_dependent_launch(impl_->device.arch);
  if (const Entry* exact = impl_->find_exact(problem, shape)) return exact->choice;
  if (problem.features.batch_invariant) {  // no other kernel may speak for its one
    Choice choice;
    choice.config = default_config(impl_->device, problem, shape);
    return choice;
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Place here = place_of(problem, shape, base_spec(impl_->device.arch, problem));

  if (const Entry* entry = impl_->find_bucket(problem, shape, here)) {
    if (auto choice = impl_->predict(*entry, Provenance::bucket, problem, shape)) return *std::move(choice);
  }
  // An earlier start leaves what streams well as it is: nobody measured it, but it is no guess about another shape.
  if (problem.pdl) {
    DecodeProblem ordinary = problem;
    ordinary.pdl = false;
    const Entry* entry = impl_->find_exact(ordinary, shape);
    if (entry == nullptr) entry = impl_->find_bucket(ordinary, shape, here);
    if (entry != nullptr) {
      if (auto choice = impl_->predict(*entry, Provenance::without_pdl, problem, shape)) return *std::move(choice);
    }
  }
  // The number of KV heads is not in the kernel: it only multiplies output tiles, which the place counts.
  if (const Entry* entry = impl_->cheapest([&](const Entry& candidate) {
        const bool same_kernel =
            candidate.problem.head_dim == problem.head_dim && group_of(candidate.problem) == group_of(problem);
        return same_kernel ? distance(candidate.place, here) + distance(candidate.problem, problem) : kNever;
      })) {
    if (auto choice = impl_->predict(*entry, Provenance::nearest, problem, shape)) return *std::move(choice);
  }
  // Other heads on this GPU: their way of loading carries over, their grid and time do not.
  if (const Entry* entry = impl_->cheapest([&](const Entry& candidate) {
        const double heads = std::abs(std::log2(static_cast<double>(candidate.problem.head_dim) / problem.head_dim)) +
                             std::abs(std::log2(static_cast<double>(group_of(candidate.problem)) / group_of(problem)));
        return distance(candidate.place, here) + distance(candidate.problem, problem) + 2.0 * heads;
      })) {
    if (auto choice = impl_->predict(*entry, Provenance::model, problem, shape)) return *std::move(choice);
  }
  Choice choice;
  choice.config = default_config(impl_->device, problem, shape);
  return choice;
}

std::size_t WinnerTable::size() const { return impl_->entries.size(); }
std::size_t WinnerTable::skipped() const { return impl_->skipped; }

}  // namespace v1
}  // namespace leanattn
