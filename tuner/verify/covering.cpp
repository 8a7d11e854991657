// covering.cpp -- a greedy cover of traits.
#include "tuner/verify/covering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "generator/families/family.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Numbers in place of texts, in the order in which they are first met.
class Numbers {
 public:
  std::size_t of(const std::string& text) { return numbers_.try_emplace(text, numbers_.size()).first->second; }
  std::size_t count() const { return numbers_.size(); }

 private:
  std::map<std::string, std::size_t> numbers_;
};

std::string cache_of(const Features& f) {
  if (f.kv_format == KvFormat::same) return "cache of q's type";
  const std::string format = fmt::format("cache {}", to_string(f.kv_format));
  return kv_encoding(f).scales != KvScales::beside
             ? format
             : fmt::format("{} with a scale per {}", format, to_string(f.kv_scale));
}

std::string queries_of(const Features& f) {
  return f.q_len > 1 ? fmt::format("query tokens, {}", to_string(f.mask)) : "one query token";
}

/// About how long checking a kernel takes, in a unit of its own: the oracle takes longest, row by row, and with ranks
/// for each of them again. Compiling takes as long as some rows.
std::size_t price_of(const KernelSpec& spec) {
  constexpr int kRowsOfCompiling = 128, kTokensOfPrefill = 1024;
  const int rows = has_prefill(spec.features) ? spec.group * kTokensOfPrefill : query_rows(spec.features, spec.group);
  return static_cast<std::size_t>((kRowsOfCompiling + rows) * std::max(ranks_of_context(spec.features), 1));
}

}  // namespace

std::vector<std::string> traits_of(const KernelSpec& spec) {
  const Features& f = spec.features;
  const KernelLayout layout = layout_of(spec);
  std::vector<std::string> traits{fmt::format("family {}", layout.family->name),
                                  std::string(to_string(spec.dtype)),
                                  fmt::format("layout {}", to_string(spec.layout)),
                                  fmt::format("fix-up {}", to_string(spec.fixup)),
                                  spec.lse ? "LSE" : "no LSE",
                                  spec.pdl ? "dependent launch" : "ordinary launch",
                                  cache_of(f),
                                  f.page_size > 0 ? "pages" : "dense cache",
                                  queries_of(f)};
  const std::pair<bool, const char*> kFeatures[] = {
      {f.ragged_q, "ragged query tokens"},
      {f.packed_kv, "packed K and V"},
      {f.spans, "spans"},
      {f.window > 0, "window"},
      {f.window > 0 && f.q_len > 1 && f.mask == QueryMask::full, "window both ways"},
      {f.sink_tokens > 0, "sink tokens"},
      {f.sink_logits, "sink logits"},
      {f.soft_cap > 0, "soft cap"},
      {f.alibi, "ALiBi"},
      {!f.score.empty(), "score expression"},
      {f.latent, "latent cache"},
      {!f.latent && value_dim(spec) != spec.head_dim, "V of another size than K"},
      {f.append, "append"},
      {f.rope == Rope::half_split, "rotation of halves"},
      {f.rope == Rope::interleaved, "interleaved rotation"},
      {f.rope_dim > 0, "rotation of some dims"},
      {f.batch_invariant, "batch invariance"},
      {f.selection_block > 0 && !f.selection_in_pool, "selection in the context"},
      {f.selection_in_pool, "selection in the pool"},
      {f.second_cache, "second cache"},
  };
  for (const auto& [is, name] : kFeatures) {
    if (is) traits.emplace_back(name);
  }
  const std::pair<bool, const char*> kModules[] = {
      {!layout.family->query_rows_lead && layout.holds_results && spec.warps == 8, "columns are split"},
      {layout.gathers_rows, "rows are gathered"},
      {layout.converts_rows, "rows are converted"},
      {layout.row_buffer_bytes > 0, "rows are buffered"},
      {layout.appends_to_stage, "appends to the stage"},
      {layout.row_blocks_in_step > 1, "row blocks in step"},
      {layout.counts_partials, "partials are counted"},
      {layout.keeps_partials_by_hint, "partials with a hint"},
      {layout.strip_loads > 1, "strips of partials"},
      {layout.holds_results, "results are held"},
      {layout.writes_rows, "whole rows are written"},
      {layout.consumer_registers > 0, "registers are traded"},
      {layout.stage_parts > 1, "stages have parts"},
      {layout.tile_positions > 1, "LeanTiles are weighed"},
  };
  for (const auto& [is, name] : kModules) {
    if (is) traits.emplace_back(name);
  }
  for (std::string& trait : traits) trait += fmt::format(", load path {}", to_string(spec.load));
  if (f.page_size > 0) traits.push_back(fmt::format("pages, {}", cache_of(f)));
  if (f.append) traits.push_back(fmt::format("append, {}", cache_of(f)));

  const std::pair<const char*, int> kNumbers[] = {
      {"group", spec.group},
      {"page size", f.page_size},
      {"query tokens", f.q_len},
      {"selection block", f.selection_block},
      {"ranks", ranks_of_context(f)},
      {"warps", spec.warps},
      {"tokens of a warp", spec.warp_tokens},
      {"stages", spec.stages},
      {"CTAs per SM", spec.ctas_per_sm},
      {"producer warps", layout.producer_warps},
  };
  // Numbers of one octave are alike.
  const auto octave = [](int value) { return std::bit_ceil(static_cast<unsigned>(value)); };
  for (const auto& [name, value] : kNumbers) traits.push_back(fmt::format("{} up to {}", name, octave(value)));
  traits.push_back(
      fmt::format("head size up to {}, a multiple of {}", octave(spec.head_dim), std::gcd(spec.head_dim, 64)));
  const std::pair<bool, const char*> kParts[] = {
      {in_group(f), "rank of a group"},
      {has_part_of_context(f) && !in_group(f), "part over NCCL"},
      {has_part_of_context(f) && f.context_interleave == 0, "contiguous parts"},
      {f.context_interleave > 0, "units in turn"},
      {f.replicate_output, "replicated output"},
  };
  for (const auto& [is, name] : kParts) {
    if (is) traits.emplace_back(name);
  }
  return traits;
}

CrossSection cross_section(const std::vector<VerifyKernel>& plan) {
  Numbers numbers;
  std::vector<std::vector<std::size_t>> met(plan.size());  // the numbers of its traits
  for (std::size_t i = 0; i < plan.size(); ++i) {
    for (const std::string& trait : traits_of(plan[i].specs.front())) met[i].push_back(numbers.of(trait));
  }
  std::vector<bool> missing(numbers.count(), true);
  CrossSection section{.chosen = std::vector<bool>(plan.size()),
                       .coverage = {.of_kernels = plan.size(), .traits = numbers.count()}};
  Coverage& coverage = section.coverage;

  const auto brings = [&](std::size_t kernel) {
    return static_cast<std::size_t>(
        std::count_if(met[kernel].begin(), met[kernel].end(), [&](std::size_t trait) { return missing[trait]; }));
  };
  // The kernel is next that brings most for its price. What it brings only becomes less, so an earlier count is looked
  // at again when it comes to the top.
  std::vector<std::size_t> price(plan.size());
  std::transform(plan.begin(), plan.end(), price.begin(),
                 [](const VerifyKernel& kernel) { return price_of(kernel.specs.front()); });
  using Entry = std::pair<std::size_t, std::size_t>;  // what it brings, and its place in the plan
  const auto worse = [&](const Entry& a, const Entry& b) {
    const std::size_t worth_of_a = a.first * price[b.second], worth_of_b = b.first * price[a.second];
    return worth_of_a != worth_of_b ? worth_of_a < worth_of_b : a.second > b.second;
  };
  std::priority_queue<Entry, std::vector<Entry>, decltype(worse)> best(worse);
  for (std::size_t i = 0; i < plan.size(); ++i) best.emplace(met[i].size(), i);
  while (!best.empty()) {
    const auto [counted, kernel] = best.top();
    best.pop();
    const std::size_t now = brings(kernel);
    if (now == 0) continue;
    if (now < counted) {
      best.emplace(now, kernel);
      continue;
    }
    for (const std::size_t trait : met[kernel]) missing[trait] = false;
    section.chosen[kernel] = true;
    ++coverage.kernels;
  }
  return section;
}

}  // namespace v1
}  // namespace leanattn
