// cost_model.cpp -- what the schedule gives the busiest CTA and SM, and the time that follows from it.
#include "runtime/lookup/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "generator/families/family.hpp"
#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/lookup/fitted_costs.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/mixed_line.hpp"
#include "runtime/lookup/residency.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// The most contributors that merge at one level, and the fewest that make a group (templates/merge/ticket.cuh).
constexpr std::int64_t kFlat = 16, kMinWidth = 8;
// The warps that an SM steps with at once as fast as with one.
constexpr double kWarpsApart = 8;

/// max(a, b), but larger where the two are close, because neither limit is then reached by itself.
double soft_max(double a, double b) {
  const double most = std::max(a, b);
  if (most <= 0) return 0;
  const double less = std::min(a, b) / most, square = less * less, fourth = square * square;
  return most * std::sqrt(std::sqrt(1 + fourth));
}

/// The most that the schedule gives to one CTA or output tile when all output tiles are equally long.
struct Line {
  std::int64_t longest = 1;       ///< range of a CTA, in LeanTiles
  std::int64_t segments = 1;      ///< output tiles that a CTA's range touches
  std::int64_t contributors = 1;  ///< CTAs that an output tile is spread over
};

/// A line of `outputs` equal output tiles, over `grid` CTAs. CTA c begins at c / grid of the line, rounded up to a
/// LeanTile (lean_split in templates/line/schedule.cuh). So ranges begin at every multiple of 1 / ranges of an output
/// tile, and output tiles at every multiple of 1 / outputs of a range, once both numbers have no common divisor.
Line line_of(std::int64_t tiles_per_output, std::int64_t outputs, std::int64_t grid) {
  const std::int64_t common = std::gcd(outputs, grid), ranges = grid / common, period = tiles_per_output;
  outputs /= common;
  // The latest start within an output tile that is not rounded up to the next output tile.
  const std::int64_t latest = (period - 1) * ranges / period;
  Line line;
  line.longest = divide_up(outputs * period, ranges);
  line.segments = divide_up(latest + outputs, ranges);
  if (latest + 1 < ranges) line.segments = std::max(line.segments, divide_up(ranges - 1 + outputs, ranges) - 1);
  line.contributors = ((outputs - 1) * period + (period - 1) * ranges) / (outputs * period) + 1;
  return line;
}

/// Partials that are merged one after the other: more than a few contributors merge as a tree, groups first.
std::int64_t merged_in_a_row(std::int64_t contributors) {
  if (contributors <= kFlat) return contributors;
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(contributors))));
  const std::int64_t groups = contributors / std::max(kMinWidth, root);
  const std::int64_t largest = contributors - (groups - 1) * std::max(kMinWidth, root);
  return largest + groups;
}

/// Rows of the matrix instructions that a step's query rows take, in units of Costs::work.
double row_units(const KernelSpec& spec, const KernelLayout& layout) {
  const int rows = layout.rows;
  if (spec.load == LoadPath::vector) return rows;
  // Of 16 rows on the matrix rows, a warp reads K and V as often as of eight on the columns.
  if (layout.family->rows_are_split && spec.load != LoadPath::tensor) return layout.rows_of_warp / 16.0;
  return layout.family->query_rows_lead ? 8 * divide_up(rows, 64) : divide_up(rows, 8);
}

/// Whether each token's rows are looked up or copied for themselves, by the threads that attend to them.
bool has_lone_rows(const KernelSpec& spec, const KernelLayout& layout) {
  const bool paged = spec.features.page_size > 0;
  if (spec.load == LoadPath::tensor || layout.family->rows_are_split) return false;
  if (paged && layout.page_run == 1) return true;
  // Every row is a bulk copy of its own (kAdjacent in templates/kv/bulk.cuh).
  const bool apart = spec.layout == KvLayout::strided || spec.features.latent;
  return spec.load == LoadPath::bulk && (apart || (paged && layout.page_run < layout.step_tokens));
}

/// Tokens of each context that are copied for nothing. A tensor copy brings a whole run of a page, or a whole step of a
/// dense cache. The contexts of a ragged batch end anywhere in one; others end at the capacity of a dense cache, beyond
/// which no copy goes.
double tokens_copied(const DecodeStep& step, const KernelSpec& spec, const KernelLayout& layout, double tokens) {
  if (spec.load != LoadPath::tensor) return tokens;
  const bool paged = step.problem.features.page_size > 0;
  const double run = paged ? layout.page_run : layout.step_tokens;
  if (step.ragged()) return tokens + (run - 1) / 2;
  return paged ? std::ceil(tokens / run) * run : tokens;
}

GridKind kind_of(bool crosses, bool shares, bool idle) {
  if (crosses) return idle ? GridKind::idle_crossing : GridKind::crossing;
  if (shares) return idle ? GridKind::idle_even : GridKind::even;
  return idle ? GridKind::idle_whole : GridKind::whole;
}

}  // namespace

Multiplier multiplier_of(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.load == LoadPath::vector) return Multiplier::vector;
  return layout.producer_warps > 0 ? Multiplier::wgmma : Multiplier::mma;
}

ModelParameters default_parameters(const DeviceFacts& device) {
  ModelParameters parameters{.memory_rate = memory_rate_per_sm(device) * std::max(device.sm_count, 1),
                             .costs = kFittedCosts};
  if (device.clock_khz <= 0) return parameters;
  const double slower = static_cast<double>(kFittedClockKhz) / device.clock_khz;
  Costs& costs = parameters.costs;
  for (double& us : costs.start) us *= slower;
  for (double& us : costs.work) us *= slower;
  for (double* us : {&costs.step, &costs.convert, &costs.lone_row, &costs.latency, &costs.cta, &costs.segment,
                     &costs.row, &costs.partial, &costs.exchange, &costs.dependent})
    *us *= slower;
  return parameters;
}

LaunchModel::LaunchModel(const ModelParameters& parameters, const DecodeStep& of, const KernelSpec& spec, int resident)
    : parameters_(parameters),
      sms_(std::max(of.device.sm_count, 1)),
      held_(std::max(resident, 1)),
      tile_(spec.tile),
      token_bytes_(cache_token_bytes(spec)),
      dependent_(spec.pdl),
      waits_(spec.fixup == FixUp::wait) {
  const KernelLayout layout = layout_of(spec);
  const Costs& costs = parameters.costs;
  const auto multiplier = static_cast<std::size_t>(multiplier_of(spec, layout));
  const bool one_ring = layout.producer_warps > 0;
  const std::int64_t outputs = std::max<std::int64_t>(output_tiles(of, spec), 1);
  tiles_ = std::max<std::int64_t>(lean_tiles(of, spec), 1);
  tiles_per_output_ = std::max<std::int64_t>(tiles_ / outputs, 1);
  const double tokens = std::max(of.average_tokens, 1.0);
  tokens_per_output_ = tokens_copied(of, spec, layout, tokens);
  bytes_ = static_cast<double>(of.bytes) * tokens_per_output_ / tokens;
  const int columns = spec.head_dim + value_dim(spec);
  row_bytes_ = static_cast<double>(of.shape.batch) * of.problem.q_heads * of.problem.features.q_len * 2 * columns;
  other_readers_ = layout.row_blocks / layout.row_blocks_in_step - 1;
  reread_bytes_ = static_cast<double>(of.device.l2_bytes) / 2;

  // All warpgroups with a producer use one ring and take its stages in turn, and so do warps that take every step;
  // other warps have a ring each.
  const double step = layout.step_tokens;
  const int of_step = one_ring ? 4 : layout.family->rows_are_split ? spec.warps : 1;  // warps that take one together
  ring_tokens_ = step * spec.stages * (of_step > 1 ? 1 : spec.warps);
  // Over a latent cache the warpgroups have parts of the columns, and otherwise steps.
  turn_tokens_ = one_ring && spec.features.latent ? step : step * spec.warps / of_step;
  const double units = spec.warp_tokens / 16.0 * columns / 256.0;
  turn_us_ = costs.step + costs.work[multiplier] * units * row_units(spec, layout) +
             (has_scales(spec.features) || layout.converts_rows ? costs.convert * units : 0) +
             (has_lone_rows(spec, layout) ? costs.lone_row * spec.warp_tokens : 0);
  crowding_ = spec.warps / kWarpsApart;

  row_us_ = costs.row * layout.rows * columns / 256.0;
  // While a dependent launch waits, only a producer warp goes on. CTAs that wait for each other hold their SMs longer.
  const bool sooner = spec.pdl && (one_ring || !waits_);
  start_us_ = costs.start[multiplier] + row_us_ - (sooner ? costs.dependent : 0);
  const double threads = 32.0 * spec.warps;
  merge_columns_ = layout.partial_columns / threads;
  merge_turns_ = std::ceil(merge_columns_);
  if (of.is_mixed()) add_mix(of, spec, layout);
}

void LaunchModel::add_mix(const DecodeStep& step, const KernelSpec& spec, const KernelLayout& layout) {
  const Costs& costs = parameters_.costs;
  const int columns = spec.head_dim + value_dim(spec);
  const MixedLine line = mixed_line(step, spec, layout);
  bytes_ = static_cast<double>(step.bytes);
  row_bytes_ = static_cast<double>(step.shape.mix.query_tokens) * step.problem.q_heads * 2 * columns;
  // The warps for many query rows take every step together. Beside them, others may have the decodes.
  const bool side_by_side = layout.family->halves != nullptr;
  const bool one_ring = layout.producer_warps > 0;
  if (side_by_side || (one_ring && layout.family->rows_are_split)) crowding_ = 1;  // row_units() has all warps
  const double turns = tile_ / (side_by_side || layout.family->rows_are_split ? layout.step_tokens : turn_tokens_);
  const double pull_us = tile_ * token_bytes_ * static_cast<double>(sms_) / (costs.sm_rate * parameters_.memory_rate);
  const double tile_us = std::max({turns * turn_us_, pull_us, tile_ / ring_tokens_ * costs.latency});
  const double light = static_cast<double>(layout.light_tile_positions) / layout.tile_positions;
  // More warpgroups with rows of their own than the two that costs were fitted with begin and end segments side by
  // side.
  const auto beside = [&](int rows) {
    return std::max(1.0, one_ring ? static_cast<double>(divide_up(rows, 64)) / 2 : 1);
  };
  Mixed mixed;
  double first_us = 0;
  const auto both = [&](double& sum, double us) { sum = side_by_side ? soft_max(sum, us) : sum + us; };
  const auto add = [&](const MixedLine::Part& part, Mixed::Part& out, std::int64_t longest) {
    const double one_us = 2 * part.rows <= layout.rows ? light * tile_us : tile_us;
    const double rows_us = costs.row * part.rows / beside(part.rows) * columns / 256.0,
                 all_us = static_cast<double>(part.lean_tiles) * one_us;
    both(mixed.tiles_us, all_us), both(first_us, all_us * rows_us);
    both(mixed.segments_us, static_cast<double>(part.output_tiles) * (costs.segment + rows_us));
    out = {.longest_us = static_cast<double>(longest) / tile_ * one_us,
           .partial_us = costs.partial * merge_turns_ * part.rows / layout.rows};
  };
  const QueryMix& mix = step.visible.mix;
  const std::int64_t of_chunk = divide_up(mix.chunk_context, mix.chunks);
  add(line.decodes, mixed.decodes, step.visible.longest_context);
  add(line.chunks, mixed.chunks, of_chunk);
  mixed.tile_us = mixed.tiles_us / static_cast<double>(line.lean_tiles());
  // Of the row blocks of a chunk, each reads what the one before it has read.
  const std::int64_t blocks =
      line.chunks.output_tiles / std::max<std::int64_t>(mix.chunks * std::int64_t{step.problem.kv_heads}, 1);
  other_readers_ = blocks > 1 ? 1 : 0;
  tiles_ = line.lean_tiles();
  tiles_per_output_ = std::max<std::int64_t>(line.chunks.lean_tiles / line.chunks.output_tiles, 1);
  // In two pieces all ranges begin with an output tile, and row blocks meet in L2.
  if (layout.most_passes > 1) reread_bytes_ = std::numeric_limits<double>::infinity();
  mixed.alike = line.alike;
  // Where the average LeanTile is, the average CTA begins and ends.
  mixed.cut_us = costs.segment + first_us / mixed.tiles_us;
  start_us_ += first_us / mixed.tiles_us - row_us_;
  mixed_ = mixed;
}

ModelledTime LaunchModel::with_mix(std::int64_t grid) const {
  const PartFactors& factors = parameters_.factors;
  const std::int64_t at_once = std::min(grid, held_ * sms_);
  const auto ctas = static_cast<double>(grid), busy = static_cast<double>(at_once);
  const double crowded = std::max(static_cast<double>(divide_up(at_once, sms_)) * crowding_, 1.0);
  // Where output tiles are as long, a grid may cut them alike, or none of them.
  const std::int64_t alike = mixed_->alike;
  const bool even = alike > 0 && (grid % alike == 0 || alike % grid == 0);
  const auto cuts = static_cast<double>(even ? std::max<std::int64_t>(grid - alike, 0) : grid);
  const double range_us = mixed_->tiles_us / ctas, segments_us = (mixed_->segments_us + cuts * mixed_->cut_us) / busy;
  // Ranges are whole LeanTiles.
  const double sm_us = crowded * (mixed_->tiles_us / busy + mixed_->tile_us / 2) + segments_us;
  const double kv_bytes = alike > 0 ? bytes_ * reads_of_kv(grid) : bytes_;
  const double stream = soft_max(sm_us, (kv_bytes + row_bytes_) / parameters_.memory_rate) - segments_us;
  double merge = 0;
  for (const Mixed::Part& part : {mixed_->decodes, mixed_->chunks}) {
    const auto more = even ? std::max<std::int64_t>(grid / alike, 1) - 1
                           : static_cast<std::int64_t>(std::min(std::ceil(part.longest_us / range_us), ctas - 1));
    if (more > 0) merge = std::max(merge, part.partial_us * static_cast<double>(merged_in_a_row(1 + more)));
  }
  return {.start = factors[0] * start_us_,
          .stream = factors[1] * stream,
          .segments = factors[2] * segments_us,
          .merge = factors[3] * merge,
          .kind = kind_of(true, grid > 1, grid < sms_ - sms_ / 8)};
}

/// How many times a grid reads KV. Two row blocks of a KV head are one output tile apart on the line, and so far is the
/// CTA that reads one of them in front of the CTA that reads the other. If what all CTAs read meanwhile is still in L2,
/// the second read costs less.
double LaunchModel::reads_of_kv(std::int64_t grid) const {
  if (other_readers_ == 0) return 1;
  const double range = static_cast<double>(tiles_) / static_cast<double>(grid);
  const double apart = std::fmod(static_cast<double>(tiles_per_output_), range);
  const double between = apart * tile_ * token_bytes_ * static_cast<double>(std::min(grid, held_ * sms_));
  return 1 + other_readers_ * (between < reread_bytes_ ? parameters_.costs.reread : 1.0);
}

/// Of so many CTAs on it, each with so many tokens. The longest of three limits decides.
double LaunchModel::busiest_sm_us(std::int64_t ctas, double tokens_of_cta, std::int64_t segments) const {
  const Costs& costs = parameters_.costs;
  const auto of_all = static_cast<double>(ctas), pieces = static_cast<double>(segments);
  const double sm_rate = costs.sm_rate * parameters_.memory_rate / static_cast<double>(sms_);
  // A ring is full when a CTA begins. A segment ends in a step of its own.
  const double piece = tokens_of_cta / pieces, turns = pieces * std::ceil(piece / turn_tokens_);
  const double refills = std::max(tokens_of_cta / ring_tokens_ - 1, 0.0);
  return std::max({of_all * tokens_of_cta * token_bytes_ / sm_rate, refills * costs.latency,
                   turns * turn_us_ * std::max(of_all * crowding_, 1.0)});
}

ModelledTime LaunchModel::with_grid(std::int64_t wanted_grid) const {
  const Costs& costs = parameters_.costs;
  const PartFactors& factors = parameters_.factors;
  const std::int64_t grid = std::clamp<std::int64_t>(wanted_grid, 1, tiles_);
  if (mixed_) return with_mix(grid);
  const Line line = line_of(tiles_per_output_, tiles_ / tiles_per_output_, grid);
  // The last LeanTile of an output tile may have fewer tokens.
  const std::int64_t outputs = line.longest / tiles_per_output_, tiles = line.longest % tiles_per_output_;
  const auto whole = static_cast<double>(outputs), rest = static_cast<double>(tiles);
  const double tokens = whole * tokens_per_output_ + std::min(rest * tile_, tokens_per_output_);

  // All waves but the last have as many CTAs as are resident at once.
  const double bytes = bytes_ * reads_of_kv(grid), bytes_of_cta = bytes / static_cast<double>(grid);
  const std::int64_t wave = held_ * sms_, waves = divide_up(grid, wave), last = grid - (waves - 1) * wave;
  const auto wave_us = [&](std::int64_t ctas, double start_us) {
    return soft_max(start_us + busiest_sm_us(divide_up(ctas, sms_), tokens, line.segments),
                    static_cast<double>(ctas) * bytes_of_cta / parameters_.memory_rate);
  };
  const double next_us = costs.cta + row_us_;
  double stream = row_bytes_ / parameters_.memory_rate + wave_us(last, waves > 1 ? next_us : 0);
  if (waves > 1) stream += wave_us(wave, 0);
  if (waves > 2) stream += static_cast<double>(waves - 2) * wave_us(wave, next_us);
  if (dependent_ && grid < wave) {
    const double room = static_cast<double>(wave - grid) / static_cast<double>(wave);
    stream += costs.late * room * (bytes + row_bytes_) / parameters_.memory_rate;
  }
  const bool shares = line.contributors > 1;
  double merge = 0;
  if (shares && waits_) {
    const auto contributors = static_cast<double>(line.contributors);
    merge = costs.exchange * std::log2(contributors) * std::max(merge_columns_ / contributors, 1.0);
  } else if (shares) {
    merge = costs.partial * merge_turns_ * static_cast<double>(merged_in_a_row(line.contributors));
  }
  return {.start = factors[0] * start_us_,
          .stream = factors[1] * stream,
          .segments = factors[2] * static_cast<double>((line.segments - 1) * waves) * (costs.segment + row_us_),
          .merge = factors[3] * merge,
          .kind = kind_of(line.segments > 1, shares, grid < sms_ - sms_ / 8)};
}

ModelledTime modelled_time(const ModelParameters& parameters, const DecodeStep& step, const Config& config,
                           int resident) {
  return LaunchModel(parameters, step, config.spec, resident).with_grid(config.grid);
}

double predict_us(const ModelParameters& parameters, const DecodeStep& step, const Config& config, int resident) {
  return modelled_time(parameters, step, config, resident).us();
}

std::int64_t fastest_grid(const DecodeStep& step, const KernelSpec& spec) {
  const ModelParameters parameters = default_parameters(step.device);
  const int resident = guess_resident(step.device, spec);
  const LaunchModel launch(parameters, step, spec, resident);
  const auto grids = useful_grids(step, spec, waits(spec) ? spec.ctas_per_sm : resident);
  return *std::min_element(grids.begin(), grids.end(), [&](std::int64_t a, std::int64_t b) {
    return launch.with_grid(a).us() < launch.with_grid(b).us();
  });
}

}  // namespace v1
}  // namespace leanattn
