// names.cpp -- how reports write problems, shapes, sizes, times and ratios.
#include "tuner/report/names.hpp"

#include <fmt/format.h>

#include <array>

namespace leanattn {
inline namespace v1 {
namespace detail {

std::string problem_name(const DecodeProblem& problem) {
  std::string features = features_name(problem.features);
  for (char& c : features) c = c == '_' ? ' ' : c;
  const std::string link =
      problem.group_link == GroupLink::unknown ? "" : fmt::format(" {}", to_string(problem.group_link));
  return fmt::format("{}/{} x {} {}{}{}{}{}{}", problem.q_heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.dtype), problem.layout == KvLayout::strided ? " strided" : "",
                     problem.lse ? " lse" : "", problem.pdl ? " pdl" : "", features, link);
}

std::string size_name(std::int64_t value) {
  constexpr std::array<std::pair<int, char>, 3> kSuffixes = {{{30, 'g'}, {20, 'm'}, {10, 'k'}}};
  for (const auto& [shift, suffix] : kSuffixes) {
    if (value != 0 && value % (std::int64_t{1} << shift) == 0) return fmt::format("{}{}", value >> shift, suffix);
  }
  return std::to_string(value);
}

bool is_uniform(const Shape& shape) {
  const Shape plain = canonical(shape);
  return plain.total_context == 0 && plain.mix == QueryMix{};
}

std::string shape_name(const Shape& given) {
  const Shape shape = canonical(given);
  if (const QueryMix& mix = shape.mix; mix != QueryMix{}) {
    // An average has a sign before it where it is not whole.
    const auto about = [](std::int64_t total, std::int64_t count) { return total % count == 0 ? "" : "~"; };
    const auto each = [&](std::int64_t total, std::int64_t count) {
      return fmt::format("{}{}", about(total, count), size_name(total / count));
    };
    const std::int64_t decodes = shape.batch - mix.chunks, tokens = chunk_tokens(shape);
    const std::string count = mix.chunks == 1 ? "" : fmt::format("{} x ", mix.chunks);
    std::string chunks = fmt::format("{}{}{} of {}", count, about(tokens, mix.chunks), tokens / mix.chunks,
                                     each(mix.chunk_context, mix.chunks));
    if (decodes == 0) return chunks;
    const std::int64_t context = std::max<std::int64_t>(total_tokens(shape) - mix.chunk_context, 0);
    const std::string one = fmt::format("{} x 1 of {}", decodes, each(context, decodes));
    return fmt::format("{} + {}", one, chunks);
  }
  if (shape.total_context == 0) return fmt::format("{} x {}", shape.batch, size_name(shape.longest_context));
  return fmt::format("{} x up to {}, {} in all", shape.batch, size_name(shape.longest_context),
                     size_name(shape.total_context));
}

std::string bytes_name(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.3g} GB", value * 1e-9);
  return value >= 1e6 ? fmt::format("{:.3g} MB", value * 1e-6) : fmt::format("{:.3g} kB", value * 1e-3);
}

std::string us_name(double us) {
  return us >= 100 ? fmt::format("{:.0f}", us) : us >= 10 ? fmt::format("{:.1f}", us) : fmt::format("{:.2f}", us);
}

std::string ratio_name(const TimeRatio& ratio) { return ratio.known() ? fmt::format("{:.2f}", ratio.ratio) : "-"; }

std::string times_name(double ratio) { return ratio > 0 ? fmt::format("{:.3f}", ratio) : "-"; }

std::string interval_name(const TimeRatio& ratio) {
  if (!ratio.has_interval()) return ratio_name(ratio);
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio.ratio, ratio.low, ratio.high);
}

std::string why(const ReportedWinner& winner, const DeviceModel& device) {
  if (!winner.parts) return {};
  const TimeParts& parts = *winner.parts;
  const auto share = [&](double us) { return fmt::format("{:.0f} %", 100 * us / winner.median_us); };
  if (parts.limited_by == "read limit") return "it is at the read limit";
  if (parts.limited_by == "start-up")
    return fmt::format("start-up takes {} us, {} of the time, to read {}", us_name(parts.start_us),
                       share(parts.start_us), bytes_name(winner.kv_bytes));
  if (parts.limited_by == "fix-up")
    return fmt::format("fix-up takes {} us, {} of the time, because {:.3g} CTAs share an output tile",
                       us_name(parts.fix_up_us), share(parts.fix_up_us), parts.contributors);
  if (parts.limited_by == "segments")
    return fmt::format("draining and refilling between output tiles takes {} us, {} of the time",
                       us_name(parts.segments_us), share(parts.segments_us));
  if (parts.limited_by == "stream")
    return fmt::format("the stream has {} of {} SMs busy, a balance of {:.0f} % and {:.0f} KiB in flight on each SM",
                       parts.busy_sms, device.sm_count, 100 * parts.balance, parts.kib_in_flight);
  return fmt::format("the model does not explain {} us, {} of the time", us_name(parts.unexplained_us),
                     share(parts.unexplained_us));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
