#include "tuner/model/search_space.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "generator/families/family.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Whether launch bounds for one CTA more per SM still leave all registers that a kernel of this family ever takes. The
/// code is the same then, and only the spec with more CTAs is worth compiling.
bool roomier_twin_exists(KernelSpec spec) {
  constexpr int kMoreThanAnyTakes = 224;
  spec.ctas_per_sm += 1;
  spec.tile = layout_of(spec).step_tokens;
  return register_limit(spec) >= kMoreThanAnyTakes && validate(spec).has_value();
}

/// Adds to `specs`, which have tickets, those of the same kernels with the fix-up wait. Returns for each of the first
/// ones where its twin is; its own index where it has none or where the twin is in the list anyway.
std::vector<std::size_t> add_waiting_twins(std::vector<KernelSpec>& specs) {
  const std::size_t count = specs.size();
  std::vector<std::size_t> twins(count);
  for (std::size_t i = 0; i < count; ++i) {
    twins[i] = i;
    KernelSpec twin = specs[i];
    twin.fixup = FixUp::wait;
    if (twin.features.batch_invariant || layout_of(twin).has_large_partials || twin == specs[i] || !validate(twin))
      continue;
    twins[i] = specs.size();
    specs.push_back(twin);
  }
  return twins;
}

/// The key of the fixed shuffle: FNV-1a with a final mix.
std::uint64_t shuffle_key(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 33);
}

/// LeanTiles from one warp's step up to one step of the whole CTA, or to 64 tokens if that is more. Smaller ones do not
/// balance better, and larger ones only make the split coarser.
std::vector<int> tiles_for(const KernelSpec& spec) {
  std::vector<int> tiles;
  for (int tile = layout_of(spec).step_tokens; tile <= std::clamp(spec.warps * spec.warp_tokens, 64, 256); tile *= 2)
    tiles.push_back(tile);
  return tiles;
}

/// Adds all specs of a load path with the warps of `spec`.
void add_combinations(std::vector<KernelSpec>& specs, KernelSpec spec, const SearchedLoad& searched) {
  for (const int warp_tokens : searched.warp_tokens) {
    for (const int stages : searched.stages) {
      for (const int ctas_per_sm : searched.ctas_per_sm) {
        spec.warp_tokens = warp_tokens, spec.stages = stages, spec.ctas_per_sm = ctas_per_sm;
        if (surely_spills(spec) || roomier_twin_exists(spec)) continue;
        for (const int tile : tiles_for(spec)) {
          spec.tile = tile;
          if (!validate(spec)) continue;
          specs.push_back(spec);
          // Where one contributor takes long to merge large partials alone, most grids want the others' help.
          KernelSpec waiting = spec;
          waiting.fixup = FixUp::wait;
          if (layout_of(spec).has_large_partials && validate(waiting)) specs.push_back(waiting);
        }
      }
    }
  }
}

/// Times that the model cannot tell apart have the same bin, but for those at its borders.
std::int64_t bin_of(double us) {
  return static_cast<std::int64_t>(std::floor(std::log(us) / std::log1p(kModelResolution)));
}

/// A kernel with its best grid for a shape.
struct Ranked {
  std::int64_t bin = 0;
  std::uint64_t shuffle = 0;
  std::size_t spec = 0;
  auto operator<=>(const Ranked&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

/// The kernels of each pair of a step and a load path, best first. `twins` are those of add_waiting_twins(specs).
std::vector<std::vector<Ranked>> rank_specs(const CostModel& model, std::span<const DecodeStep> steps,
                                            const std::vector<KernelSpec>& specs,
                                            const std::vector<std::size_t>& twins) {
  constexpr std::int64_t kNoGrid = std::numeric_limits<std::int64_t>::max();
  std::vector<std::uint64_t> shuffle;
  std::vector<int> resident;
  for (const KernelSpec& spec : specs) {
    shuffle.push_back(shuffle_key(kernel_name(spec)));
    resident.push_back(guess_resident(steps.front().device, spec));
  }
  std::vector<std::vector<Ranked>> buckets;
  for (const DecodeStep& step : steps) {
    const auto best_bin = [&](std::size_t i) {
      const auto grids = rank_grids(model.of(specs[i]), step, specs[i], resident[i]);
      return grids.empty() ? kNoGrid : bin_of(grids.front().predicted_us);
    };
    std::map<LoadPath, std::vector<Ranked>> by_load;
    for (std::size_t i = 0; i < twins.size(); ++i) {
      // Of a kernel and its twin with the other fix-up one is enough: that with tickets, unless the model tells the
      // twin from it.
      const std::int64_t own = best_bin(i), waiting = twins[i] == i ? own : best_bin(twins[i]);
      const std::size_t chosen = waiting < own ? twins[i] : i;
      const std::int64_t bin = std::min(own, waiting);
      if (bin != kNoGrid) by_load[specs[chosen].load].push_back({bin, shuffle[chosen], chosen});
    }
    for (auto& [load, ranked] : by_load) {
      std::sort(ranked.begin(), ranked.end());
      buckets.push_back(std::move(ranked));
    }
  }
  return buckets;
}

/// The usual kernels, and first those that are predicted to come closest to the best of them for some step.
std::vector<KernelSpec> usual_kernels_first(std::span<const DecodeStep> steps) {
  struct Usual {
    KernelSpec spec;
    double behind = std::numeric_limits<double>::infinity();  // of all steps, the least ratio to the best
  };
  std::vector<Usual> usual;
  for (KernelSpec& spec : usual_kernels(steps.front().device, steps.front().problem))
    usual.push_back({.spec = std::move(spec)});
  for (const DecodeStep& step : steps) {
    std::vector<double> predicted;
    for (const Usual& kernel : usual) {
      const auto grids =
          rank_grids(default_parameters(step.device), step, kernel.spec, guess_resident(step.device, kernel.spec));
      predicted.push_back(grids.empty() ? std::numeric_limits<double>::infinity() : grids.front().predicted_us);
    }
    const double best = *std::min_element(predicted.begin(), predicted.end());
    for (std::size_t i = 0; i < usual.size(); ++i) usual[i].behind = std::min(usual[i].behind, predicted[i] / best);
  }
  std::stable_sort(usual.begin(), usual.end(), [](const Usual& a, const Usual& b) { return a.behind < b.behind; });
  std::vector<KernelSpec> kernels;
  kernels.reserve(usual.size());
  for (Usual& kernel : usual) kernels.push_back(std::move(kernel.spec));
  return kernels;
}

}  // namespace

std::vector<KernelSpec> all_specs(const DeviceFacts& device, const DecodeProblem& problem) {
  // The bits of a result depend on the kernel, so look-ups give every shape of a batch-invariant problem the same one.
  if (problem.features.batch_invariant) return {default_config({device, problem, {}}).spec};
  std::vector<KernelSpec> specs;
  KernelSpec spec = base_spec(device.arch, problem);
  spec.fixup = FixUp::ticket;
  // Prefill is bound by the matrix instructions, which go with the load path.
  std::optional<LoadPath> only;
  if (has_prefill(problem.features)) only = default_config({device, problem, {}}).spec.load;
  for (const KernelFamily* const family : families()) {
    for (const SearchedLoad& searched : family->loads) {
      if (only && searched.load != *only) continue;
      spec.load = searched.load;
      for (const int warps : searched.warps) {
        spec.warps = warps;
        if (&family_of(spec) == family && family->supports(spec)) add_combinations(specs, spec, searched);
      }
    }
  }
  return specs;
}

std::vector<KernelSpec> choose_specs(const CostModel& model, std::span<const DecodeStep> steps, std::size_t count) {
  std::vector<KernelSpec> specs = all_specs(steps.front().device, steps.front().problem);
  const std::vector<std::size_t> twins = add_waiting_twins(specs);
  const std::vector<std::vector<Ranked>> buckets = rank_specs(model, steps, specs, twins);
  std::vector<KernelSpec> chosen = usual_kernels_first(steps);
  if (chosen.size() > count) chosen.resize(count);
  std::vector<bool> taken(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i)
    taken[i] = std::find(chosen.begin(), chosen.end(), specs[i]) != chosen.end();
  std::vector<std::size_t> next(buckets.size());
  for (bool any = true; any && chosen.size() < count;) {
    any = false;
    for (std::size_t b = 0; b < buckets.size() && chosen.size() < count; ++b) {
      while (next[b] < buckets[b].size() && taken[buckets[b][next[b]].spec]) ++next[b];
      if (next[b] == buckets[b].size()) continue;
      const std::size_t spec = buckets[b][next[b]].spec;
      taken[spec] = any = true;
      chosen.push_back(specs[spec]);
    }
  }
  return chosen;
}

// On an H100, CTAs of one warp were the fastest at none of 15 steps of short requests. Where they won a short tuning,
// look-ups carried them to other shapes, at which they took up to 1.4 times as long as the answer without them.
constexpr int kFewestWarps = 2;

std::vector<KernelSpec> neighbours(const KernelSpec& spec) {
  std::vector<KernelSpec> found;
  if (spec.features.batch_invariant) return found;
  const auto add = [&](auto&& change) {
    KernelSpec near = spec;
    change(near);
    if (loads_to_registers(near.load)) near.stages = 1;
    // A tile must hold a whole step of a warp.
    near.tile = std::max(near.tile, layout_of(near).step_tokens);
    if (near == spec || !validate(near) || surely_spills(near)) return;
    if (std::find(found.begin(), found.end(), near) == found.end()) found.push_back(near);
  };
  add([](KernelSpec& s) { s.stages += 1; });
  add([](KernelSpec& s) { s.stages -= 1; });
  add([](KernelSpec& s) { s.stages += 2; });  // by warpgroups
  add([](KernelSpec& s) { s.stages -= 2; });
  add([](KernelSpec& s) { s.warps *= 2; });
  add([](KernelSpec& s) { s.warps = std::max(s.warps / 2, kFewestWarps); });
  add([](KernelSpec& s) { s.ctas_per_sm += 1; });
  add([](KernelSpec& s) { s.ctas_per_sm -= 1; });
  add([](KernelSpec& s) { s.tile *= 2; });
  add([](KernelSpec& s) { s.tile /= 2; });
  add([](KernelSpec& s) { s.warp_tokens *= 2; });
  add([](KernelSpec& s) { s.warp_tokens /= 2; });
  // Twice the tokens a step with half the warps, and the reverse, have the same bytes in flight.
  add([](KernelSpec& s) { s.warp_tokens *= 2, s.warps = std::max(s.warps / 2, kFewestWarps); });
  add([](KernelSpec& s) { s.warp_tokens /= 2, s.warps *= 2; });
  for (const LoadPath load : kLoadPaths) {
    if (has_prefill(spec.features)) break;  // all_specs() says why
    add([load](KernelSpec& s) { s.stages = loads_to_registers(s.load) ? 2 : s.stages, s.load = load; });
  }
  add([](KernelSpec& s) { s.fixup = s.fixup == FixUp::ticket ? FixUp::wait : FixUp::ticket; });
  return found;
}

std::vector<RankedConfig> rank_grids(const ModelParameters& parameters, const DecodeStep& step, const KernelSpec& spec,
                                     int resident) {
  std::vector<RankedConfig> ranked;
  const std::int64_t co_resident = std::int64_t{std::max(resident, 1)} * std::max(step.device.sm_count, 1);
  for (const std::int64_t grid : useful_grids(step, spec, std::max(resident, 1))) {
    if (spec.fixup == FixUp::wait && grid > co_resident) continue;
    const Config config{
        .spec = spec, .grid = grid, .segment_cost = segment_cost(step, spec), .l2_promotion = l2_promotion(step, spec)};
    ranked.push_back({config, predict_us(parameters, step, config, std::max(resident, 1))});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const RankedConfig& a, const RankedConfig& b) {
    return a.predicted_us != b.predicted_us ? a.predicted_us < b.predicted_us : a.config.grid < b.config.grid;
  });
  return ranked;
}

std::vector<RankedConfig> spread(std::span<const RankedConfig> ranked, std::size_t count, double distance) {
  std::vector<RankedConfig> chosen;
  for (const RankedConfig& candidate : ranked) {
    if (chosen.size() == count) break;
    const auto grid = static_cast<double>(candidate.config.grid);
    const bool near = std::any_of(chosen.begin(), chosen.end(), [&](const RankedConfig& other) {
      return std::abs(grid / static_cast<double>(other.config.grid) - 1) <= distance;
    });
    if (!near) chosen.push_back(candidate);
  }
  return chosen;
}

namespace {

/// `total` in `count` parts that differ by one at most, each up to `most`.
void add_even_parts(std::vector<int>& parts, std::int64_t total, std::int64_t count, std::int64_t most) {
  for (std::int64_t i = 0; i < count; ++i)
    parts.push_back(static_cast<int>(std::min(total / count + (i < total % count ? 1 : 0), most)));
}

}  // namespace

std::vector<int> context_lengths_of(const Shape& given) {
  const Shape shape = canonical(given);
  const std::int64_t longest = std::min<std::int64_t>(shape.longest_context, std::numeric_limits<int>::max()),
                     chunks = shape.mix.chunks, decodes = std::max(shape.batch, 1) - chunks;
  const std::int64_t all = total_tokens(shape), of_chunks = chunks > 0 ? std::min(shape.mix.chunk_context, all) : 0,
                     of_decodes = all - of_chunks;
  // The first request is the longest, unless the chunks' contexts leave too few tokens for it.
  const std::int64_t first = chunks == 0 || of_decodes >= longest ? longest : 0;
  std::vector<int> lengths;
  if (first > 0) lengths.push_back(static_cast<int>(first));
  add_even_parts(lengths, std::max<std::int64_t>(of_decodes - first, 0), decodes - (first > 0 ? 1 : 0), longest);
  add_even_parts(lengths, of_chunks, chunks, longest);
  return lengths;
}

std::vector<int> query_tokens_of(const Shape& given) {
  const Shape shape = canonical(given);
  if (shape.mix == QueryMix{}) return {};
  std::vector<int> tokens(static_cast<std::size_t>(shape.batch - shape.mix.chunks), 1);
  add_even_parts(tokens, chunk_tokens(shape), shape.mix.chunks, shape.longest_context);
  return tokens;
}

}  // namespace v1
}  // namespace leanattn
