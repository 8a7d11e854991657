#include "tuner/report_words.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// Length of the UTF-8 sequence that starts `text` and its code point; length 0: there is none.
struct CodePoint {
  std::size_t length = 0;
  char32_t value = 0;
};
CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0u) != 0x80) return {};
    value = value << 6 | (byte & 0x3Fu);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {length, value};
}

/// Control characters, non-characters, and the marks that reorder text (UAX #9).
bool is_forbidden(char32_t c) {
  return (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFFFE || c == 0xFFFF;
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const std::size_t length = std::max<std::size_t>(point.length, 1);
    if (point.length == 0 || is_forbidden(point.value)) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : clean_text(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string escape_csv(std::string_view raw) {
  std::string text = clean_text(raw);
  const bool formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  if (!formula && text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = formula ? "\"'" : "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : escape_html(text)) {
    if (std::string_view("|\\`*_[]").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\t' ? ' ' : c;
  }
  return out;
}

std::string problem_name(const DecodeProblem& problem) {
  std::string features = features_name(problem.features);
  for (char& c : features) c = c == '_' ? ' ' : c;
  return fmt::format("{}/{} x {} {}{}{}{}{}", problem.q_heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.dtype), problem.layout == KvLayout::strided ? " strided" : "",
                     problem.lse ? " lse" : "", problem.pdl ? " pdl" : "", features);
}

std::string size_name(std::int64_t value) {
  constexpr std::array<std::pair<int, char>, 3> kSuffixes = {{{30, 'g'}, {20, 'm'}, {10, 'k'}}};
  for (const auto& [shift, suffix] : kSuffixes) {
    if (value != 0 && value % (std::int64_t{1} << shift) == 0) return fmt::format("{}{}", value >> shift, suffix);
  }
  return std::to_string(value);
}

bool is_uniform(const Shape& shape) { return canonical(shape).total_context == 0; }

std::string shape_name(const Shape& shape) {
  if (is_uniform(shape)) return fmt::format("{} x {}", shape.batch, size_name(shape.longest_context));
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

std::string interval_name(const TimeRatio& ratio) {
  if (!ratio.has_interval()) return ratio_name(ratio);
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio.ratio, ratio.low, ratio.high);
}

std::string percent_name(double ratio) { return fmt::format("{:+.1f} %", (ratio - 1) * 100); }

std::string why(const ReportedWinner& winner, const DeviceModel& device) {
  if (!winner.parts) return {};
  const TimeParts& parts = *winner.parts;
  const auto share = [&](double us) { return fmt::format("{:.0f} %", 100 * us / winner.median_us); };
  if (parts.limited_by == "read limit") return "at the read limit";
  if (parts.limited_by == "start-up")
    return fmt::format("start-up is {} us, {} of the time to read {}", us_name(parts.start_us), share(parts.start_us),
                       bytes_name(winner.kv_bytes));
  if (parts.limited_by == "fix-up")
    return fmt::format("fix-up is {} us, {}: {:.3g} CTAs share an output tile", us_name(parts.fix_up_us),
                       share(parts.fix_up_us), parts.contributors);
  if (parts.limited_by == "segments")
    return fmt::format("drain and refill between output tiles take {} us, {}", us_name(parts.segments_us),
                       share(parts.segments_us));
  if (parts.limited_by == "stream")
    return fmt::format("the stream: {} of {} SMs busy, balance {:.0f} %, {:.0f} KiB in flight on each", parts.busy_sms,
                       device.sm_count, 100 * parts.balance, parts.kib_in_flight);
  return fmt::format("{} us, {}, that the model does not explain", us_name(parts.unexplained_us),
                     share(parts.unexplained_us));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
