// csv.cpp -- writes one line for each winner. New columns go to the end only, so that readers of old files still work.
#include <fmt/format.h>

#include "tuner/report/escape.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::string ratio_fields(const std::optional<Rival>& rival) {
  if (!rival) return ",,";
  const TimeRatio& ratio = rival->over_winner;
  return ratio.has_interval() ? fmt::format("{:.4f},{:.4f},{:.4f}", ratio.ratio, ratio.low, ratio.high)
                              : fmt::format("{:.4f},,", ratio.ratio);
}

std::string parts_fields(const std::optional<TimeParts>& parts) {
  if (!parts) return ",,,,,";
  return fmt::format("{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{}", parts->start_us, parts->stream_us, parts->segments_us,
                     parts->fix_up_us, parts->unexplained_us, parts->limited_by);
}

}  // namespace

std::string to_csv(const Report& report) {
  using detail::escape_csv;
  std::string text =
      "device,arch,sms,q_heads,kv_heads,head_dim,dtype,layout,lse,batch,longest_context,total_context,policy,kernel,"
      "grid,"
      "median_us,low_us,high_us,kv_bytes,gb_per_s,read_limit_us,read_limit_share,stale,pdl,features,samples,"
      "default_ratio,default_low,default_high,runner_up_ratio,runner_up_low,runner_up_high,fa2_ratio,fa2_low,fa2_high,"
      "fd_ratio,fd_low,fd_high,start_us,stream_us,segments_us,fix_up_us,unexplained_us,limited_by,segment_cost,l2_"
      "promotion,group_link,query_tokens,chunks,chunk_context,chunk_pairs\n";
  for (const DeviceReport& device : report.devices) {
    for (const ReportedWinner& winner : device.winners) {
      const DecodeProblem& problem = winner.problem;
      const std::string limit = winner.read_limit_us > 0
                                    ? fmt::format("{:.3f},{:.4f}", winner.read_limit_us, winner.read_limit_share)
                                    : std::string(",");
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{},{:.1f},{},{},{},",
                          escape_csv(device.device.name), escape_csv(device.device.arch), device.device.sm_count,
                          problem.q_heads, problem.kv_heads, problem.head_dim, to_string(problem.dtype),
                          to_string(problem.layout), problem.lse, winner.shape.batch, winner.shape.longest_context,
                          winner.shape.total_context, to_string(winner.policy), kernel_name(winner.config.spec),
                          winner.config.grid, winner.median_us, winner.low_us, winner.high_us, winner.kv_bytes,
                          winner.gb_per_s, limit, winner.stale, problem.pdl);
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},",
                          escape_csv(is_plain(problem.features) ? "" : to_json(problem.features)), winner.samples,
                          ratio_fields(winner.default_config), ratio_fields(winner.runner_up),
                          ratio_fields(winner.flash_attention2), ratio_fields(winner.flash_decoding),
                          parts_fields(winner.parts), winner.config.segment_cost, winner.config.l2_promotion,
                          problem.group_link == GroupLink::unknown ? "" : to_string(problem.group_link));
      const QueryMix& mix = winner.shape.mix;
      text += fmt::format("{},{},{},{}\n", mix.query_tokens, mix.chunks, mix.chunk_context, mix.chunk_pairs);
    }
  }
  return text;
}

}  // namespace v1
}  // namespace leanattn
