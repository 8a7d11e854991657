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

namespace leanattn {
inline namespace v1 {
namespace {

/// Where a shape lies, in octaves.
struct Features {
  double outputs = 0, tiles_per_output = 0, raggedness = 0;
};

struct Entry {
  DecodeProblem problem;
  Choice choice;  ///< as an exact hit returns it
  Features features;
};

/// Which power of two each size rounds up to: a winner for 8192 tokens speaks for 4097 to 8192.
std::array<int, 3> bucket_of(const Shape& shape) {
  const auto octave = [](std::int64_t value) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
  };
  const std::int64_t average = std::max<std::int64_t>(1, total_tokens(shape) / shape.batch);
  return {octave(shape.batch), octave(shape.longest_context), octave(average)};
}

Features features_of(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec) {
  const double average = static_cast<double>(total_tokens(shape)) / shape.batch;
  return {.outputs = std::log2(static_cast<double>(output_tiles(problem, shape, spec))),
          .tiles_per_output = std::log2(average),  // in tokens, so that winners with different tiles compare
          .raggedness = std::log2(static_cast<double>(shape.longest_context) / average)};
}

double distance(const Features& a, const Features& b) {
  const double outputs = a.outputs - b.outputs;
  const double tiles = a.tiles_per_output - b.tiles_per_output;
  const double raggedness = a.raggedness - b.raggedness;
  return std::sqrt(outputs * outputs + tiles * tiles + raggedness * raggedness);
}

/// What a differing problem adds, in octaves: the kernels are nearly the same, but their reads are not quite.
double distance(const DecodeProblem& a, const DecodeProblem& b) {
  return (a.layout != b.layout ? 0.5 : 0.0) + (a.pdl != b.pdl ? 0.1 : 0.0) + (a.lse != b.lse ? 0.05 : 0.0) +
         (a.dtype != b.dtype ? 0.02 : 0.0);
}

int group_of(const DecodeProblem& problem) { return problem.q_heads / problem.kv_heads; }

/// Whether a config can be what was measured for a problem on this device: rows of another version, or edited by hand,
/// are not trusted.
bool belongs(const DeviceFacts& device, const DecodeProblem& problem, const Config& config) {
  const KernelSpec base = base_spec(device.arch, problem);
  const KernelSpec& spec = config.spec;
  return spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group &&
         spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse && spec.pdl == base.pdl &&
         problem.pdl == base.pdl && (spec.fixup != FixUp::wait || config.grid <= detail::resident_grid(device, spec));
}

/// Remembers what each text parsed to: thousands of winners share a few problems and some dozens of configs.
template <class T>
class ParsedTexts {
 public:
  explicit ParsedTexts(Result<T> (*parse)(std::string_view)) : parse_(parse) {}
  const Result<T>& operator()(const std::string& text) {
    const auto found = parsed_.find(text);
    return found != parsed_.end() ? found->second : parsed_.emplace(text, parse_(text)).first->second;
  }

 private:
  Result<T> (*parse_)(std::string_view);
  std::unordered_map<std::string, Result<T>> parsed_;
};

/// The problem as this GPU can heed it.
DecodeProblem heeded(DecodeProblem problem, Arch arch) noexcept {
  problem.pdl = problem.pdl && has_dependent_launch(arch);
  return problem;
}

/// The batch that a plan is sized for says nothing about its speed.
LookupKey speed_key(const DecodeProblem& problem, Shape shape) noexcept {
  shape.max_batch = 0;
  return make_lookup_key(problem, shape);
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
  std::size_t skipped = 0;

  Slot& slot_of(const LookupKey& key) {
    std::size_t at = hash(key) & (slots.size() - 1);
    while (slots[at].entry != kEmpty && !(slots[at].key == key)) at = (at + 1) & (slots.size() - 1);
    return slots[at];
  }
  const Slot& slot_of(const LookupKey& key) const { return const_cast<Impl*>(this)->slot_of(key); }

  void add(const LayeredWinners::Entry& row, const DecodeProblem& problem, const Shape& shape, const Config& config) {
    Slot& slot = slot_of(speed_key(problem, shape));
    if (slot.entry != kEmpty) return;  // a better layer or policy has it
    slot = {speed_key(problem, shape), static_cast<std::uint32_t>(entries.size())};
    entries.push_back({problem,
                       {.config = config,
                        .provenance = Provenance::exact,
                        .tuned_us = row.winner.median_us,
                        .tuned_shape = shape,
                        .layer = row.layer,
                        .stale = row.winner.stale,
                        .tuned_pdl = problem.pdl},
                       features_of(problem, shape, base_spec(device.arch, problem))});
  }

  /// The entry of least cost(entry); ties go to the first. Entries of infinite cost do not count.
  template <class Cost>
  const Entry* cheapest(Cost cost) const {
    const Entry* best = nullptr;
    double best_cost = std::numeric_limits<double>::infinity();
    for (const Entry& entry : entries) {
      const double now = cost(entry);
      if (now >= best_cost) continue;
      best_cost = now;
      best = &entry;
    }
    return best;
  }

  const Entry* find_exact(const DecodeProblem& problem, const Shape& shape) const noexcept {
    const Slot& slot = slot_of(speed_key(problem, shape));
    return slot.entry == kEmpty ? nullptr : &entries[slot.entry];
  }

  /// The closest winner of this very problem in the shape's bucket.
  const Entry* find_bucket(const DecodeProblem& problem, const Shape& shape, const Features& here) const {
    const auto bucket = bucket_of(shape);
    return cheapest([&](const Entry& candidate) {
      const bool same = candidate.problem == problem && bucket_of(candidate.choice.tuned_shape) == bucket;
      return same ? distance(candidate.features, here) : std::numeric_limits<double>::infinity();
    });
  }

  /// What `entry` was tuned to, made to fit; nullopt when it cannot be.
  std::optional<Choice> adapt(const Entry& entry, Provenance provenance, const DecodeProblem& problem,
                              const Shape& shape) const {
    const auto spec = detail::with_tunables_of(base_spec(device.arch, problem), entry.choice.config.spec);
    if (!spec) return std::nullopt;
    Choice choice = entry.choice;
    choice.provenance = provenance;
    choice.config.spec = *spec;
    if (provenance == Provenance::model) {
      // A way of loading that would read the cache more often than the default does is no guide.
      if (row_blocks(*spec) > row_blocks(default_config(device, problem, shape).spec)) return std::nullopt;
      choice.tuned_us = 0;
      choice.config.grid = detail::cheapest_grid(device, problem, shape, *spec);
    } else {
      choice.config.grid = detail::carry_grid_over(device, entry.problem, entry.choice.tuned_shape, entry.choice.config,
                                                   problem, shape, *spec);
    }
    const double raggedness = features_of(problem, shape, *spec).raggedness;
    if (raggedness > entry.features.raggedness + detail::kRaggedOctaves) {
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
  return table;
}

const Choice* WinnerTable::find_exact(const DecodeProblem& problem, const Shape& shape) const noexcept {
  const Entry* entry = impl_->find_exact(heeded(problem, impl_->device.arch), shape);
  return entry != nullptr ? &entry->choice : nullptr;
}

Choice WinnerTable::find(const DecodeProblem& asked, const Shape& shape) const {
  const DecodeProblem problem = heeded(asked, impl_->device.arch);
  if (const Entry* exact = impl_->find_exact(problem, shape)) return exact->choice;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Features here = features_of(problem, shape, base_spec(impl_->device.arch, problem));

  if (const Entry* entry = impl_->find_bucket(problem, shape, here)) {
    if (auto choice = impl_->adapt(*entry, Provenance::bucket, problem, shape)) return *std::move(choice);
  }
  // An earlier start leaves what streams well as it is: nobody measured it, but it is no guess about another shape.
  if (problem.pdl) {
    DecodeProblem ordinary = problem;
    ordinary.pdl = false;
    const Entry* entry = impl_->find_exact(ordinary, shape);
    if (entry == nullptr) entry = impl_->find_bucket(ordinary, shape, here);
    if (entry != nullptr) {
      if (auto choice = impl_->adapt(*entry, Provenance::without_pdl, problem, shape)) return *std::move(choice);
    }
  }
  // The number of KV heads is not in the kernel: it only multiplies output tiles, which the features count.
  if (const Entry* entry = impl_->cheapest([&](const Entry& candidate) {
        const bool same_kernel =
            candidate.problem.head_dim == problem.head_dim && group_of(candidate.problem) == group_of(problem);
        return same_kernel ? distance(candidate.features, here) + distance(candidate.problem, problem) : kNever;
      })) {
    if (auto choice = impl_->adapt(*entry, Provenance::nearest, problem, shape)) return *std::move(choice);
  }
  // Other heads on this GPU: their way of loading carries over, their grid and time do not.
  if (const Entry* entry = impl_->cheapest([&](const Entry& candidate) {
        const double heads = std::abs(std::log2(static_cast<double>(candidate.problem.head_dim) / problem.head_dim)) +
                             std::abs(std::log2(static_cast<double>(group_of(candidate.problem)) / group_of(problem)));
        return distance(candidate.features, here) + distance(candidate.problem, problem) + 2.0 * heads;
      })) {
    if (auto choice = impl_->adapt(*entry, Provenance::model, problem, shape)) return *std::move(choice);
  }
  Choice choice;
  choice.config = default_config(impl_->device, problem, shape);
  return choice;
}

std::size_t WinnerTable::size() const { return impl_->entries.size(); }
std::size_t WinnerTable::skipped() const { return impl_->skipped; }

}  // namespace v1
}  // namespace leanattn
