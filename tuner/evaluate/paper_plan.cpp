// paper_plan.cpp -- which attentions the paper's figures have, and in what order a budget is spent on them.
#include <algorithm>
#include <set>

#include "tuner/evaluate/paper.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::vector<std::int64_t> powers_of_two(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = first; value <= last; value *= 2) values.push_back(value);
  return values;
}

/// The numbers 0 to count - 1: both ends first, then the middle, then those between.
std::vector<std::size_t> coarse_first(std::size_t count) {
  std::vector<std::size_t> order;
  std::vector<bool> taken(count);
  const auto take = [&](std::size_t i) {
    if (!taken[i]) taken[i] = true, order.push_back(i);
  };
  if (count > 0) take(count - 1), take(0);
  for (std::size_t step = std::max<std::size_t>(count / 2, 1);; step /= 2) {
    for (std::size_t i = step; i < count; i += step) take(i);
    if (step == 1) return order;
  }
}

}  // namespace

DecodeProblem problem_of(const PaperPoint& point) {
  return {.q_heads = point.heads, .kv_heads = point.heads, .head_dim = point.head_dim};
}

Shape shape_of(const PaperPoint& point) {
  return {.batch = point.batch, .max_batch = 0, .longest_context = point.context, .total_context = 0};
}

std::string_view to_string(PaperAxis axis) {
  switch (axis) {
    case PaperAxis::context: return "context";
    case PaperAxis::heads: return "heads";
    case PaperAxis::batch: return "batch";
  }
  return "";
}

PaperPoint PaperLine::at(std::int64_t value) const {
  PaperPoint point = fixed;
  switch (axis) {
    case PaperAxis::context: point.context = value; break;
    case PaperAxis::heads: point.heads = static_cast<int>(value); break;
    case PaperAxis::batch: point.batch = static_cast<int>(value); break;
  }
  return point;
}

std::vector<PaperLine> paper_lines() {
  const std::vector<std::int64_t> contexts = powers_of_two(1 << 10, 1 << 19);
  const std::vector<std::int64_t> heads = {8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128};
  const std::vector<std::int64_t> batches = {1, 2, 3, 4, 6, 8, 12, 16};
  std::vector<PaperLine> lines;
  for (const int head_dim : {64, 128}) {
    const auto add = [&](PaperAxis axis, PaperPoint fixed, const std::vector<std::int64_t>& values) {
      fixed.head_dim = head_dim;
      lines.push_back({axis, fixed, values});
    };
    // The paper's largest speed-up is at 16 heads and one request. 32 heads and four requests nearly fill a GPU.
    add(PaperAxis::context, {.heads = 16, .batch = 1}, contexts);
    add(PaperAxis::context, {.heads = 32, .batch = 4}, contexts);
    add(PaperAxis::heads, {.batch = 1, .context = 1 << 16}, heads);
    add(PaperAxis::batch, {.heads = 32, .context = 1 << 16}, batches);
    add(PaperAxis::batch, {.heads = 12, .context = 1 << 13}, batches);
  }
  return lines;
}

std::vector<PaperPoint> paper_points(const std::vector<PaperLine>& lines, std::int64_t memory_bytes) {
  const auto fits = [&](const PaperPoint& point) {
    return kv_bytes(problem_of(point), shape_of(point)) <= memory_bytes / 2;
  };
  std::vector<std::vector<std::size_t>> orders;
  std::size_t longest = 0;
  for (const PaperLine& line : lines) {
    orders.push_back(coarse_first(line.values.size()));
    longest = std::max(longest, line.values.size());
  }
  std::vector<PaperPoint> points;
  std::set<PaperPoint> seen;
  for (std::size_t turn = 0; turn < longest; ++turn) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (turn >= orders[i].size()) continue;
      const PaperPoint point = lines[i].at(lines[i].values[orders[i][turn]]);
      if (fits(point) && seen.insert(point).second) points.push_back(point);
    }
  }
  return points;
}

}  // namespace v1
}  // namespace leanattn
