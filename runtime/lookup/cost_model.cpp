// cost_model.cpp -- what the schedule gives the busiest CTA and SM, and the time that follows from it.
#include "runtime/lookup/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "generator/families/family.hpp"
#include "generator/integers.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// The most contributors that merge at one level, and the fewest that make a group (templates/merge/ticket.cuh).
constexpr std::int64_t kFlat = 16, kMinWidth = 8;

// What a CTA takes from its launch until its first KV is there, and from its last KV until the next CTA has its place.
constexpr double kCtaUs = 6.0;
// Costs::wait of caches that are not latent.
constexpr double kWait = 0.6;
// The warps that an SM steps with at once as fast as with one.
constexpr double kWarpsApart = 8.0;
// The loss of a dependent launch that leaves room free, in times at the memory's rate. It goes by the free share of the
// room to the power of 1.5, and Costs::wait counts 0.6 of it. Measured were 0.26 at 0.45, 0.17 at 0.39, 0.08 at 0.2 and
// 0.02 at 0.1.
constexpr double kLate = 1.25;
// The same where four CTAs or more fit on an SM, in times at the memory's rate and half of kCtaUs: CTAs that begin
// early fill some SMs, so that CTAs are spread unevenly. On an H200, dependent launches of 7 to 24 us took 4 to 14 %
// longer than ordinary ones, at free shares of 0.2 to 0.46. It does not depend on the free share from kLeastFree on;
// of seven kinds of launches with smaller ones, on an H100 and an H200, two took longer. Where two launches fit on the
// GPU at once, launches with two or three CTAs on an SM lose half of this (28 of an H100 and an H200).
constexpr int kManyCtas = 4;
constexpr double kLateAmongMany = 0.35, kLeastFree = 0.18;
// So much of the bytes of q and O adds to the time of memory; the rest overlaps with KV. Fitted to random problems on
// an H100 and an H200.
constexpr double kShareOfRows = 0.6;
// What ranges that cross output tiles cost where warpgroups have roles, in merged partials: store, merge and one more
// segment. Half of it is spent whichever way they merge.
constexpr double kCrossing = 200.0;
// How much longer CTAs attend to KV if they should read it in step but their ranges cross output tiles, so that one
// partner merges while the other streams. 49 x 4685 tokens of 128 heads and 45 x 8410 tokens of 32 heads with four
// query tokens take 50 us longer on an H200 than the same ranges would without ends between them.
constexpr double kOutOfStep = 0.18;
// With one stage, a CTA over a latent cache stands still for this part of the time that its KV takes from memory: it
// attends to nothing meanwhile.
constexpr double kStandsStill = 0.5;

/// Tokens that all warps of a CTA attend to in one step.
std::int64_t step_of_cta(const KernelSpec& spec, const KernelLayout& layout) {
  return spec.load == LoadPath::tensor ? layout.step_tokens : std::int64_t{layout.step_tokens} * spec.warps;
}

/// The number of such steps whose bytes are in flight at once.
double fill_steps(const KernelSpec& spec) {
  // Registers hold the K of one step while the next one is requested.
  return loads_to_registers(spec.load) ? 1.5 : spec.stages;
}

/// max(a, b), but larger where the two are close, because neither limit is then reached by itself.
double soft_max(double a, double b) {
  const double most = std::max(a, b);
  if (most <= 0) return 0;
  const double less = std::min(a, b) / most, square = less * less, fourth = square * square;
  return most * std::sqrt(std::sqrt(1 + fourth));
}

/// The most that the schedule gives to one CTA or output tile when all output tiles are equally long. In LeanTiles.
struct Line {
  std::int64_t longest = 1;       ///< range of a CTA
  std::int64_t segments = 1;      ///< output tiles that a CTA's range touches
  std::int64_t first_piece = 1;   ///< what such a range has of its first output tile
  std::int64_t contributors = 1;  ///< CTAs that an output tile is spread over
};

/// Whether contributors merge as a tree, groups first.
bool has_groups(FixUp fixup, std::int64_t contributors) { return fixup == FixUp::ticket && contributors > kFlat; }

/// Whether every row of K and V is a bulk copy of its own (kAdjacent in templates/kv/bulk.cuh).
bool copies_each_row(const KernelSpec& spec, const KernelLayout& layout) {
  const bool in_runs = spec.features.page_size > 0 && layout.page_run < layout.step_tokens;
  return spec.load == LoadPath::bulk && (spec.layout == KvLayout::strided || spec.features.latent || in_runs);
}

/// The most tokens in a microsecond that one SM attends to with more than 32 query rows and 128 columns of K and of V.
/// The best tenth of the kernels of random problems on an H100 and an H200 reaches these.
double rate_of_many_rows(const KernelSpec& spec, const KernelLayout& layout) {
  if (layout.rows > 64) return spec.stages == 1 ? 23 : spec.stages == 2 ? 45 : 50;
  if (spec.stages == 1) return 36;
  // Long steps, or another warpgroup's, hide the softmax.
  const bool long_steps = spec.warp_tokens > 16;
  if (spec.warps == 4) return long_steps ? 96 : spec.stages == 2 ? 50 : 62;
  return long_steps || spec.stages > 2 ? 92 : 65;
}

/// The most tokens in a microsecond that one SM attends to, whatever its memory does. Few query rows never reach it.
double attended_rate(const KernelSpec& spec, const KernelLayout& layout) {
  // 64 rows of a latent cache with roles for the warpgroups (49 x 4685 tokens of 128 heads in 131 us on an H200; long
  // launches reach 33, because power limits the clock), and 16 rows of it without (1 x 8192 tokens of 128 heads).
  const double columns = spec.head_dim + value_dim(spec);
  // Where the producer converts rows, it is the limit (64 x 8192 tokens of 64 and 64 x 16384 of 16 heads on an H100).
  if (layout.converts_rows) return (layout.family == &kWgmmaRoles ? 20.0 : 28.0) * 1088 / columns;
  if (layout.family == &kWgmmaRoles) return 36.0 * 1088 / columns;
  if (spec.load == LoadPath::tensor && spec.features.latent) return 45.0 * 1088 / columns;
  if (layout.family->query_rows_lead) return rate_of_many_rows(spec, layout) * 256 / columns;
  const int rows = layout.rows;
  if (spec.load == LoadPath::tensor || (rows <= 16 && columns <= 512)) return std::numeric_limits<double>::infinity();
  // 24 rows of 64 columns of K and V (226 x 32596 tokens of 72/3 heads in 980 to 1070 us on an H100).
  if (columns <= 256) return 90.0 * 256 / columns * 16 / std::max(rows, 16);
  return 68.0 * 256 / columns * 16 / std::max(rows, 16);
}

/// Microseconds from one step of a warp, or of a warpgroup of load path tensor, to the next if its KV is there: waiting
/// for the barrier, two products and the softmax between them depend on each other. Measured with one CTA of four warps
/// on an SM, where nothing else hides it. 0 where attended_rate() knows better.
double warp_step_us(const KernelSpec& spec, const KernelLayout& layout) {
  constexpr double kChain = 0.47, kPerTile = 0.23, kConversion = 0.3;  // a tile is 16 tokens of 128 columns
  // A token whose page is looked up for itself, by threads that copy rows, load them to registers, or have a part of
  // the columns each (load path vector); and one of bytes, of a page of several. Fitted to random problems on an H200,
  // load path vector on an H100.
  constexpr double kCopiedToken = 0.03, kLoadedToken = 0.05, kTokenOfLanes = 0.22, kTokenOfBytes = 0.01;
  if (spec.features.latent || layout.family->query_rows_lead) return 0;
  const double tiles = spec.warp_tokens * spec.head_dim / 2048.0;
  const int rows = layout.rows;
  if (spec.load == LoadPath::vector) {
    const bool apart = spec.features.page_size > 0 && layout.page_run == 1;
    return 0.5 * kChain + kPerTile * tiles * rows + (apart ? kTokenOfLanes * spec.warp_tokens : 0);
  }
  const double copies_us = copies_each_row(spec, layout) ? 0.02 * 2 * spec.warp_tokens : 0;
  // Bytes become operands in registers.
  const bool bytes = has_one_byte_elements(spec.features);
  const double conversion_us = bytes ? kConversion * tiles : 0;
  double token_us = 0;
  if (spec.features.page_size > 0 && spec.load != LoadPath::tensor) {
    const bool apart = layout.page_run == 1;
    token_us = apart ? (spec.load == LoadPath::ldg ? kLoadedToken : kCopiedToken) : bytes ? kTokenOfBytes : 0;
  }
  return kChain + kPerTile * tiles * (1 + static_cast<double>(divide_up(rows, 8))) / 2 + copies_us + conversion_us +
         token_us * spec.warp_tokens;
}

/// Microseconds that a segment of load path tensor takes for its query rows beyond eight: reading q and writing O. 80
/// rows of 128 columns took 2.6, 57 rows of 64 columns 0.7, 115 rows of 128 columns 2.6 on an H100.
double rows_us(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.features.latent || spec.load != LoadPath::tensor) return 0;
  return 0.03 * std::max(layout.rows - 8, 0) * (spec.head_dim + value_dim(spec)) / 256.0;
}

/// Round trips to L2, one after the other, in which a contributor that waits reduces its share: a strip of columns
/// (templates/merge/share_strips.cuh), or single columns (templates/merge/slice.cuh). Of single columns the first turn
/// counts as none, because the time for few columns has it.
std::int64_t strip_trips(const KernelSpec& spec, const KernelLayout& layout, std::int64_t contributors) {
  const std::int64_t loads = layout.strip_loads;
  const std::int64_t strip = divide_up(std::int64_t{layout.partial_columns}, contributors);
  if (loads > 1) return divide_up(strip * contributors, loads * 32 * spec.warps);
  std::int64_t lanes = 2;
  while (lanes < std::min<std::int64_t>(contributors, 32)) lanes *= 2;
  return divide_up(strip * lanes, std::int64_t{32} * spec.warps) - 1;
}

/// The number of partials that would take as long to merge one after the other, which on an H200 takes 0.1 us for each
/// of them and 0.35 us once (bench_phases).
/// share: CTAs of the grid for each SM, at most 1. crosses: whether ranges cross output tiles.
double merged_in_a_row(const KernelSpec& spec, const KernelLayout& layout, std::int64_t contributors, double share,
                       bool crosses) {
  const FixUp fixup = spec.fixup;
  const auto count = static_cast<double>(contributors);
  // Where partials are counted, two contributors take 20 us more than whole output tiles do if ranges cross output
  // tiles, and more contributors 13 us with a CTA on each SM (64 rows of 512 columns on an H100, 64 x 16384 and 1 x
  // 8192 tokens of 128 heads). Most of the latter is the time that L2 takes for all partials, which is less where there
  // are fewer.
  if (layout.counts_partials) {
    // Even cuts into pairs were not timed by themselves: half of the partials are stored and merged.
    const double pair = crosses ? kCrossing : 20.0 + 90.0 * share;
    return (contributors == 2 ? pair : 40.0 + 90.0 * share) * layout.partial_columns / 8192;
  }
  // Contributors that wait for each other reduce a slice each, many partials at a time. This takes 0.76 us for 2 of
  // them, 0.98 us for 8, 1.17 us for 16 and 1.57 us for 132. Where they have many columns, a round trip takes 0.8 us.
  if (fixup == FixUp::wait)
    return 2.6 + 1.35 * std::log2(count) + 8.0 * static_cast<double>(strip_trips(spec, layout, contributors));
  // The one that merges alone reads them with the bandwidth of one SM. On an H200, a partial of 64 rows of 512 columns
  // takes it 6.4 us, one of 32 rows 2.5 to 3.2 us, one of 8 rows 0.8 us. Those of heads up to 256 columns are small: 8
  // rows of 128 columns take 0.1 us, 32 rows some 1.1 us on an H100.
  const double columns = layout.partial_columns;
  const double turns = std::max(1.0, columns / (spec.features.latent ? 128.0 : columns > 256 ? 96.0 : 256.0));
  const auto level = [&](double partials) {
    // Each thread merges a column, and goes through the partials again for another one. It begins with a round trip.
    constexpr double kRoundTrip = 6.0;
    const double again = spec.features.latent || columns > 256 ? 0 : std::ceil(columns / (32.0 * spec.warps)) - 1;
    return partials * turns + again * (partials + kRoundTrip);
  };
  if (!has_groups(fixup, contributors)) return level(count) + (layout.family == &kWgmmaRoles ? kCrossing / 2 : 0);
  const auto width = std::max(kMinWidth, static_cast<std::int64_t>(std::ceil(std::sqrt(count))));
  const std::int64_t groups = contributors / width, largest = contributors - (groups - 1) * width;
  return level(static_cast<double>(largest)) + level(static_cast<double>(groups));
}

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
  line.first_piece = std::min(period - divide_up(latest * period, ranges), line.longest);
  line.contributors = ((outputs - 1) * period + (period - 1) * ranges) / (outputs * period) + 1;
  return line;
}

/// What the fix-up takes longer, in microseconds, because a partial has more than 256 columns. Fitted to random
/// problems on an H200.
double fix_up_of_columns(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.features.latent) return 0;
  const double beyond = std::max(layout.partial_columns - 256, 0) / 256.0;
  const bool ticket = spec.fixup == FixUp::ticket;
  if (spec.load != LoadPath::tensor) return beyond * (ticket ? 2.0 : spec.warps > 2 ? 1.5 : 0.5);
  const int rows = layout.rows;
  if (rows > 64) return beyond * 0.6;
  if (rows > 32) return ticket ? beyond * 0.4 : 0;
  // Where warpgroups take steps in turn, their states meet in shared memory first.
  return beyond * (ticket ? 0.7 : layout.holds_results ? 0.35 : 1.4);
}

}  // namespace

std::array<double, kCosts> as_array(const Costs& c) {
  return {c.start, c.stretch, c.wait, c.segment, c.fix_up, c.partial, c.tree_level};
}

Costs costs_of(const std::array<double, kCosts>& v) {
  return {.start = v[0],
          .stretch = v[1],
          .wait = v[2],
          .segment = v[3],
          .fix_up = v[4],
          .partial = v[5],
          .tree_level = v[6]};
}

std::array<double, kCosts> as_array(const ModelFeatures& f) {
  // A refill stalls one pipeline of several on an SM. It takes a tenth of what a new segment takes.
  return {1, f.memory, f.excess, f.segments - f.hidden + 0.1 * f.refills, f.shared, f.partials, f.tree};
}

GridKind kind_of(const ModelFeatures& features) {
  if (features.segments > 0) return features.idle ? GridKind::idle_crossing : GridKind::crossing;
  if (features.shared > 0) return features.idle ? GridKind::idle_even : GridKind::even;
  return features.idle ? GridKind::idle_whole : GridKind::whole;
}

ModelParameters default_parameters(const DeviceFacts& device) {
  ModelParameters parameters;
  const double per_sm = memory_rate_per_sm(device);
  parameters.memory_rate = per_sm * std::max(device.sm_count, 1);
  // An SM can pull more than its share while others are idle: 64 SMs of an H200's 132 use all of its memory bandwidth.
  parameters.sm_rate = 2.2 * per_sm;
  return parameters;
}

double saved_at_start(const KernelSpec& spec) {
  if (!spec.pdl) return 0;
  const bool waits = spec.fixup == FixUp::wait;
  if (spec.load == LoadPath::tensor) return waits ? 1.1 : 1.4;
  return waits ? 0.0 : 1.0;
}

ModelParameters default_parameters(const DeviceFacts& device, const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  ModelParameters parameters = default_parameters(device);
  Costs& costs = parameters.costs;
  const bool alone = spec.ctas_per_sm == 1;
  costs.stretch = spec.load == LoadPath::vector ? 0.935 : spec.load == LoadPath::tensor && alone ? 0.975 : 0.995;
  costs.wait =
      spec.features.latent ? 0.95 : kWait;  // the matrix units of a latent cache's kernels overlap with nothing
  // A producer warp goes on into the next segment, while others fill their ring anew.
  costs.segment = spec.features.latent ? 0.5 : spec.load == LoadPath::tensor ? 1.1 : 1.6;
  if (!spec.features.latent) parameters.latency = 1.2;  // steps of warps count by themselves
  // Of many query rows the mma family loads and writes many, one row after the other.
  if (!spec.features.latent && spec.load != LoadPath::tensor) costs.segment += 0.03 * std::max(layout.rows - 8, 0);
  costs.segment += rows_us(spec, layout);
  costs.fix_up = 0.2 + fix_up_of_columns(spec, layout);
  costs.partial = layout.has_large_partials ? 0.1 : 0.07;
  switch (spec.load) {
    case LoadPath::ldg: costs.start = 4.2; break;
    case LoadPath::cp_async:
    case LoadPath::vector: costs.start = 3.8; break;
    case LoadPath::bulk: costs.start = 3.6; break;
    case LoadPath::tensor: costs.start = 4.0; break;
  }
  if (spec.features.latent) costs.start += layout.family == &kWgmmaRoles ? 3.5 : 1.2;
  // Query rows are staged and partials of them stored.
  if (!spec.features.latent) costs.start += 0.03 * std::max(layout.rows - 8, 0);
  if (copies_each_row(spec, layout)) costs.start += 0.5;  // of the first step
  costs.start -= saved_at_start(spec);
  return parameters;
}

LaunchModel::LaunchModel(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                         const Shape& shape, const KernelSpec& spec, int resident)
    : parameters_(parameters),
      spec_(spec),
      layout_(layout_of(spec)),
      sms_(std::max(device.sm_count, 1)),
      held_(std::max(resident, 1)) {
  const std::int64_t outputs = output_tiles(problem, shape, spec);
  tiles_ = std::max<std::int64_t>(lean_tiles(problem, shape, spec), 1);
  tiles_per_output_ = std::max<std::int64_t>(tiles_ / std::max<std::int64_t>(outputs, 1), 1);
  token_bytes_ = kv_token_bytes(spec);
  tokens_per_output_ = std::max(static_cast<double>(visible_tokens(problem, shape)) / shape.batch, 1.0);
  bytes_ = static_cast<double>(kv_bytes(problem, shape));
  // 16-bit elements of q and O. Those of a latent cache are few beside its KV.
  const double rows = static_cast<double>(shape.batch) * problem.q_heads * problem.features.q_len;
  if (!spec.features.latent) rows_bytes_ = kShareOfRows * rows * 2 * (spec.head_dim + value_dim(spec));
  readers_ = layout_.row_blocks_in_step ? 1 : layout_.row_blocks;
  l2_bytes_ = static_cast<double>(device.l2_bytes);
  // A tensor copy brings a whole run of a page, or a whole step of a dense cache, however few of its tokens count. The
  // contexts of a ragged batch end anywhere in one. Other contexts end at the capacity of a dense cache wherever this
  // was measured, and no copy goes beyond that. On an H100, 3606 contexts of 20 to 620 tokens took 1.30 times the read
  // limit in a dense cache, and 1.17 times in pages of 16.
  if (spec.load == LoadPath::tensor) {
    const bool paged = problem.features.page_size > 0;
    const double run = paged ? layout_.page_run : layout_.step_tokens;
    double tokens = tokens_per_output_;
    if (is_ragged(visible_shape(problem, shape))) {
      tokens += (run - 1) / 2;
    } else if (paged) {
      tokens = std::ceil(tokens / run) * run;
    }
    bytes_ *= tokens / tokens_per_output_;
    tokens_per_output_ = tokens;
  }
  step_tokens_ = step_of_cta(spec, layout_);
  attended_rate_ = attended_rate(spec, layout_);
  warp_step_us_ = warp_step_us(spec, layout_);
}

double LaunchModel::reads_of_kv(std::int64_t grid) const {
  if (readers_ == 1) return 1;
  // Eight or more row blocks of 16 rows, each with CTAs of its own: 1 x 8192, 49 x 4685 and (with two query tokens) 3 x
  // 3406 tokens of 128 heads on an H200.
  if (spec_.features.latent) return 1 + 0.6 * (readers_ - 1);
  // Two row blocks of a KV head are one output tile apart on the line. A CTA that reads one of them is `ahead` tiles in
  // front of the CTA that reads the other, or `range - ahead` tiles where a range ends between the two. If what all
  // CTAs read in that time fits half of L2, the second read costs 0.35 of one from memory. In later waves, whose CTAs
  // begin at different times, it costs 0.5. With about two CTAs or more on every SM, these drift apart, and it costs
  // 0.6. These are fitted to random problems on an H100.
  constexpr double kShareOfL2 = 0.5, kReadOfL2 = 0.35, kReadInLaterWaves = 0.5, kReadInACrowd = 0.6;
  constexpr double kCrowdBegins = 1.6, kCrowdIsFull = 1.9;  // CTAs of a wave for each SM
  const double range = static_cast<double>(tiles_) / static_cast<double>(grid),
               ahead = std::fmod(static_cast<double>(tiles_per_output_), range);
  const double ctas = static_cast<double>(std::min(grid, held_ * sms_));
  const double first_wave = ctas / static_cast<double>(grid);
  const double crowd =
      std::clamp((ctas / static_cast<double>(sms_) - kCrowdBegins) / (kCrowdIsFull - kCrowdBegins), 0.0, 1.0);
  const double apart = first_wave * kReadOfL2 + (1 - first_wave) * kReadInLaterWaves;
  const double near = (1 - crowd) * apart + crowd * kReadInACrowd;
  const auto cost_of = [&](double tiles) {
    const double between = std::min(tiles, range) * spec_.tile * token_bytes_ * ctas;
    return between < kShareOfL2 * l2_bytes_ ? near : 1.0;
  };
  const double share = ahead / range;
  return 1 + (readers_ - 1) * ((1 - share) * cost_of(ahead) + share * cost_of(range - ahead));
}

ModelFeatures LaunchModel::features(std::int64_t wanted_grid) const {
  const std::int64_t grid = std::clamp<std::int64_t>(wanted_grid, 1, tiles_);
  const double all_bytes = bytes_ * reads_of_kv(grid);
  const Line line = line_of(tiles_per_output_, tiles_ / tiles_per_output_, grid);

  // The CTAs that the busiest SM runs, one wave after the other.
  const std::int64_t ctas_on_sm = divide_up(grid, sms_);
  // The number of times that a CTA fills its ring from one end to the other, each of which takes the latency of memory.
  // A producer warp goes on into the next segment. Without one, each segment fills the ring anew, and short segments
  // leave warps idle.
  const auto steps_of = [&](std::int64_t piece) { return divide_up(piece * spec_.tile, step_tokens_); };
  const auto fills_of = [&](std::int64_t piece) { return static_cast<double>(steps_of(piece)) / fill_steps(spec_); };
  double fills = fills_of(line.longest);
  std::int64_t steps = steps_of(line.longest);
  if (spec_.load != LoadPath::tensor && line.segments > 1) {
    const std::int64_t middle = std::max<std::int64_t>(line.segments - 2, 0);
    const std::int64_t last = std::max<std::int64_t>(line.longest - line.first_piece - middle * tiles_per_output_, 0);
    fills = std::max(1.0, fills_of(line.first_piece)) +
            static_cast<double>(middle) * std::max(1.0, fills_of(tiles_per_output_)) + std::max(1.0, fills_of(last));
    steps = steps_of(line.first_piece) + middle * steps_of(tiles_per_output_) + steps_of(last);
  }
  const std::int64_t waves = divide_up(ctas_on_sm, held_);
  fills = std::max(1.0, fills);

  // The last LeanTile of an output tile may have fewer tokens, and only tokens have bytes.
  const std::int64_t whole = line.longest / tiles_per_output_;
  const double rest_tokens = static_cast<double>(line.longest % tiles_per_output_ * spec_.tile);
  const double cta_bytes =
      token_bytes_ * (static_cast<double>(whole) * tokens_per_output_ + std::min(rest_tokens, tokens_per_output_));

  // A ring is filled again one latency, and the transfer and use of a stage, after it was full: the latter two count by
  // half, because neighbours are not in step. A deep ring waits for memory while memory is busy with other requests. A
  // ring of one stage, or registers, stand still while their bytes are used, so this comes on top of the time that
  // memory takes; nor is such a ring faster than one of two stages.
  const bool overlapped = spec_.stages > 1;
  const double sms_at_work = static_cast<double>(std::min(grid, sms_));
  const double stage_us = warp_step_us_ > 0 ? static_cast<double>(step_tokens_) * token_bytes_ /
                                                  std::min(parameters_.memory_rate / sms_at_work, parameters_.sm_rate)
                                            : 0;
  const double refill_us = parameters_.latency + 0.5 * (stage_us + warp_step_us_);
  // All warpgroups of load path tensor use one ring, so that only other CTAs can overlap with one of one stage.
  const double others = spec_.load == LoadPath::tensor ? static_cast<double>(std::min(ctas_on_sm, held_)) : 2;
  const double rounds = overlapped ? fills : loads_to_registers(spec_.load) ? 1 : std::max(fills / others, 1.0);
  const double waiting = (rounds - 1) * refill_us;
  // Warpgroups take steps in turn; warps share a step. From about eight warps on, an SM's warps are in each other's
  // way.
  const double turns = static_cast<double>(steps) / (spec_.load == LoadPath::tensor ? spec_.warps / 4 : 1);
  const double chain_us = std::max(turns - 1, 0.0) * warp_step_us_;
  const bool out_of_step = layout_.row_blocks_in_step && line.segments > 1;
  const double rated_us =
      static_cast<double>(line.longest * spec_.tile) / attended_rate_ * (out_of_step ? 1 + kOutOfStep : 1);
  // The part of the time of its KV for which a CTA stands still. It does not count while the ring is filled for the
  // first time, which is among the costs of the start.
  const double still = overlapped || !spec_.features.latent ? 0 : kStandsStill * (fills - 1) / fills;
  const auto wave_us = [&](std::int64_t ctas_on_busiest_sm, double wave_bytes, double start_us) {
    const auto ctas = static_cast<double>(ctas_on_busiest_sm);
    const double on_sm = std::min(ctas * cta_bytes, wave_bytes);
    // With matrix instructions of warps, fewer warps reach less of the rate.
    const bool by_warps = spec_.load != LoadPath::tensor && spec_.head_dim + value_dim(spec_) <= 256;
    const double least = by_warps ? kWarpsApart / spec_.warps : 1.0;
    const double attending =
        std::max(std::max(ctas, least) * rated_us, chain_us * std::max(1.0, ctas * spec_.warps / kWarpsApart)) +
        still * cta_bytes / std::min(parameters_.memory_rate / sms_at_work, parameters_.sm_rate);
    return soft_max(start_us + std::max({on_sm / parameters_.sm_rate, waiting, attending}),
                    wave_bytes / parameters_.memory_rate);
  };
  // Costs::wait counts a part of what an SM takes longer.
  const double cta_us = kCtaUs + rows_us(spec_, layout_) / kWait;
  ModelFeatures features;
  features.memory = (all_bytes + rows_bytes_) / parameters_.memory_rate;
  // All waves but the last have as many CTAs as are resident at once. The start of the first one is among the costs. A
  // CTA that follows another one starts and ends while the others on its SM stream, if there are any.
  const std::int64_t wave = held_ * sms_, last = grid - (waves - 1) * wave;
  const double average_bytes = all_bytes / static_cast<double>(grid);
  const double full_bytes = static_cast<double>(wave) * average_bytes;
  const double last_bytes = static_cast<double>(last) * average_bytes;
  features.excess = -all_bytes / parameters_.memory_rate;
  if (waves == 1) {
    features.excess += wave_us(divide_up(last, sms_), last_bytes, 0);
  } else {
    features.excess += wave_us(held_, full_bytes, 0) + wave_us(divide_up(last, sms_), last_bytes, cta_us);
    if (waves > 2) features.excess += static_cast<double>(waves - 2) * wave_us(held_, full_bytes, cta_us);
  }
  // Where a dependent launch leaves a part of the room for CTAs free, the one after it begins there, and the rest of it
  // comes late: 84 MB by 80 CTAs, one an SM, take 28.4 us a link of a chain, and 23.1 us a launch without. With one CTA
  // an SM, nothing is late if there is room for all of the next launch.
  if (spec_.pdl && grid < wave) {
    const double room = static_cast<double>(wave - grid) / static_cast<double>(wave);
    const double among_many = kLateAmongMany * (features.memory + kCtaUs / 2);
    if (held_ >= kManyCtas) {
      if (room > kLeastFree) features.excess += among_many;
    } else if (2 * grid > wave) {
      features.excess += kLate * features.memory * room * std::sqrt(room);
    } else if (held_ > 1) {
      features.excess += among_many / 2;
    }
  }
  features.refills = overlapped ? 0 : fills - 1;
  features.idle = grid < sms_ - sms_ / 8;
  features.segments = static_cast<double>((line.segments - 1) * waves);
  // Where CTAs overlap on an SM, one streams while another one ends a segment. Load path tensor, whose producer goes on
  // anyway, gains nothing, and neither does ldg (thousands of short requests on an H100).
  constexpr double kFirst = 3.0, kHidden = 0.4;
  const bool gains = spec_.load != LoadPath::tensor && spec_.load != LoadPath::ldg;
  if (!spec_.features.latent && gains && std::min(ctas_on_sm, held_) >= 3)
    features.hidden = kHidden * std::max(features.segments - kFirst, 0.0);
  if (line.contributors > 1) {
    features.shared = 1;
    features.tree = has_groups(spec_.fixup, line.contributors) ? 1 : 0;
    features.partials =
        merged_in_a_row(spec_, layout_, line.contributors, sms_at_work / static_cast<double>(sms_), line.segments > 1);
    // At both ends of such a range a CTA waits for others.
    const bool pair = layout_.counts_partials && line.contributors == 2;
    if (spec_.fixup == FixUp::wait && line.segments > 1 && !pair) features.partials *= 2;
  }
  return features;
}

ModelFeatures model_features(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                             const Shape& shape, const Config& config, int resident) {
  return LaunchModel(parameters, device, problem, shape, config.spec, resident).features(config.grid);
}

double predict_us(const ModelParameters& parameters, const ModelFeatures& features) {
  const auto costs = as_array(parameters.costs), counts = as_array(features);
  return std::inner_product(costs.begin(), costs.end(), counts.begin(), 0.0);
}

double predict_us(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                  const Shape& shape, const Config& config, int resident) {
  return predict_us(parameters, model_features(parameters, device, problem, shape, config, resident));
}

}  // namespace v1
}  // namespace leanattn
