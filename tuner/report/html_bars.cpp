// html_bars.cpp -- the small drawings of table cells: where a winner's time goes, and how far candidates spread.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tuner/report/html.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr double kBarWidth = 150, kBarHeight = 14, kStripWidth = 170, kStripHeight = 16;
constexpr double kStripMost = 8;  // the ratio to the best at the right end of a strip

double strip_x(double ratio) {
  return 3 + std::log(std::clamp(ratio, 1.0, kStripMost)) / std::log(kStripMost) * (kStripWidth - 6);
}

}  // namespace

std::string html_parts_key() {
  return "<div class=\"key\"><span><i class=\"f0\"></i>stream</span><span><i class=\"f1\"></i>start-up</span><span><i "
         "class=\"f2\"></i>segments</span><span><i class=\"f3\"></i>fix-up</span><span><i class=\"f4\"></i>not "
         "explained</span><span>the black or white mark is the read limit</span></div>\n";
}

std::string html_parts_bar(const ReportedWinner& winner) {
  if (!winner.parts) return {};
  const TimeParts& parts = *winner.parts;
  const std::array<std::pair<double, const char*>, 5> all = {{{parts.stream_us, "stream"},
                                                              {parts.start_us, "start-up"},
                                                              {parts.segments_us, "segments"},
                                                              {parts.fix_up_us, "fix-up"},
                                                              {parts.unexplained_us, "unexplained"}}};
  double sum = 0;
  std::string title;
  for (const auto& [us, name] : all) {
    sum += std::max(us, 0.0);
    title += fmt::format("{}{} {:.2f} us", title.empty() ? "" : ", ", name, std::abs(us) < 0.005 ? 0.0 : us);
  }
  std::string svg =
      fmt::format("<svg class=\"bar\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\"><title>{2}</title>",
                  kBarWidth, kBarHeight, title);
  // If the model predicts more than was measured, the bar shows the parts' shares of the prediction.
  const double scale = kBarWidth / std::max(sum, winner.median_us);
  double x = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double width = std::max(all[i].first, 0.0) * scale;
    if (width < 0.05) continue;
    svg += fmt::format("<rect class=\"f{}\" x=\"{:.1f}\" y=\"2\" width=\"{:.1f}\" height=\"10\"/>", i, x, width);
    x += width;
  }
  if (winner.read_limit_us > 0) {
    svg += fmt::format("<path class=\"limit\" d=\"M{:.1f} 0v{}\"/>",
                       std::min(winner.read_limit_us * scale, kBarWidth - 1), kBarHeight);
  }
  return svg + "</svg>";
}

std::string html_margin(const std::optional<Rival>& rival) {
  if (!rival) return "<span class=\"dim\">-</span>";
  // Phones and paper have no tooltips.
  const TimeRatio& ratio = rival->over_winner;
  if (!ratio.has_interval()) return html_ratio(ratio);
  return fmt::format("{}<small>{:.3f} to {:.3f}</small>", html_ratio(ratio), ratio.low, ratio.high);
}

std::string html_strip(const CandidateSpread& spread) {
  const auto& q = spread.quantiles;
  const double middle = kStripHeight / 2;
  std::string svg = fmt::format(
      "<svg class=\"strip\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"quartiles {:.2f}, {:.2f}, {:.2f}\">",
      kStripWidth, kStripHeight, q[2], q[3], q[4]);
  for (const double mark : {1.0, 2.0, 4.0, 8.0})
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} 0v{}\"/>", strip_x(mark), kStripHeight);
  svg += fmt::format("<path class=\"whisker\" d=\"M{:.1f} {}H{:.1f}\"/>", strip_x(q[0]), middle, strip_x(q[6]));
  svg += fmt::format("<path class=\"whisker\" d=\"M{0:.1f} {2}v8M{1:.1f} {2}v8\"/>", strip_x(q[1]), strip_x(q[5]),
                     middle - 4);
  svg += fmt::format("<rect class=\"box\" x=\"{:.1f}\" y=\"3\" width=\"{:.1f}\" height=\"10\"/>", strip_x(q[2]),
                     std::max(strip_x(q[4]) - strip_x(q[2]), 1.0));
  return svg + fmt::format("<path class=\"middle\" d=\"M{:.1f} 2v12\"/></svg>", strip_x(q[3]));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
