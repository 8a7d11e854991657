#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tuner/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

/// Our own canonical JSON back as a value, so that it nests instead of being a string in a string.
Json nested(const std::string& canonical) { return Json::parse(canonical); }

Json json_of(const Environment& environment) {
  return {{"driver_version", environment.driver_version},
          {"driver_release", environment.driver_release},
          {"nvrtc_version", environment.nvrtc_version},
          {"clock_khz", environment.clock_khz},
          {"memory_clock_khz", environment.memory_clock_khz},
          {"power_limit_mw", environment.power_limit_mw},
          {"ecc", environment.ecc},
          {"library_revision", environment.library_revision}};
}

Json json_of(const ReportedWinner& winner) {
  return {{"problem", nested(to_json(winner.problem))},
          {"shape", nested(to_json(winner.shape))},
          {"policy", winner.policy},
          {"kernel", kernel_name(winner.config.spec)},
          {"config", nested(to_json(winner.config))},
          {"median_us", winner.median_us},
          {"low_us", winner.low_us},
          {"high_us", winner.high_us},
          {"kv_bytes", winner.kv_bytes},
          {"gb_per_s", winner.gb_per_s},
          {"read_limit_us", winner.read_limit_us > 0 ? Json(winner.read_limit_us) : Json(nullptr)},
          {"read_limit_share", winner.read_limit_us > 0 ? Json(winner.read_limit_share) : Json(nullptr)},
          {"stale", winner.stale}};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

/// A device name comes from a driver or from an imported file: it must not break the table.
std::string markdown_field(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\') out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string heads(const DecodeProblem& problem) {
  return fmt::format("{}/{} x {} {}{}{}{}", problem.q_heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.dtype), problem.layout == KvLayout::strided ? " strided" : "",
                     problem.lse ? " lse" : "", problem.pdl ? " pdl" : "");
}

}  // namespace

std::string to_json(const Report& report) {
  Json devices = Json::array();
  for (const DeviceReport& device : report.devices) {
    Json environments = Json::array();
    for (const Environment& environment : device.environments) environments.push_back(json_of(environment));
    Json winners = Json::array();
    for (const ReportedWinner& winner : device.winners) winners.push_back(json_of(winner));
    devices.push_back({{"name", device.device.name},
                       {"arch", device.device.arch},
                       {"sms", device.device.sm_count},
                       {"l2_bytes", device.device.l2_bytes},
                       {"memory_bytes", device.device.memory_bytes},
                       {"mig_profile", device.device.mig_profile},
                       {"environments", std::move(environments)},
                       {"winners", std::move(winners)},
                       {"unreadable_winners", device.unreadable},
                       {"trials", device.trials}});
  }
  const Json document{
      {"schema_version", 1}, {"library_revision", report.library_revision}, {"devices", std::move(devices)}};
  // A name with broken UTF-8 is shown damaged rather than thrown at the caller.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_csv(const Report& report) {
  std::string text =
      "device,arch,sms,q_heads,kv_heads,head_dim,dtype,layout,lse,batch,longest_context,total_context,policy,kernel,"
      "grid,"
      "median_us,low_us,high_us,kv_bytes,gb_per_s,read_limit_us,read_limit_share,stale,pdl\n";
  for (const DeviceReport& device : report.devices) {
    for (const ReportedWinner& winner : device.winners) {
      const DecodeProblem& problem = winner.problem;
      const std::string limit = winner.read_limit_us > 0
                                    ? fmt::format("{:.3f},{:.4f}", winner.read_limit_us, winner.read_limit_share)
                                    : std::string(",");
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{},{:.1f},{},{},{}\n",
                          csv_field(device.device.name), csv_field(device.device.arch), device.device.sm_count,
                          problem.q_heads, problem.kv_heads, problem.head_dim, to_string(problem.dtype),
                          to_string(problem.layout), problem.lse, winner.shape.batch, winner.shape.longest_context,
                          winner.shape.total_context, csv_field(winner.policy), kernel_name(winner.config.spec),
                          winner.config.grid, winner.median_us, winner.low_us, winner.high_us, winner.kv_bytes,
                          winner.gb_per_s, limit, winner.stale, problem.pdl);
    }
  }
  return text;
}

std::string to_markdown(const Report& report) {
  std::string text = "# leanattn tuning report\n";
  if (report.devices.empty()) text += "\nNothing has been tuned.\n";
  for (const DeviceReport& device : report.devices) {
    text +=
        fmt::format("\n## {}\n\n{}, {} SMs, {:.0f} MiB L2{}\n", markdown_field(device.device.name), device.device.arch,
                    device.device.sm_count, static_cast<double>(device.device.l2_bytes) / (1 << 20),
                    device.device.mig_profile.empty() ? "" : ", MIG " + markdown_field(device.device.mig_profile));
    for (const Environment& environment : device.environments) {
      text += fmt::format("\n- driver {} (CUDA {}.{}), NVRTC {}, {:.0f} MHz, ECC {}, library {}",
                          environment.driver_release.empty() ? "unknown" : markdown_field(environment.driver_release),
                          environment.driver_version / 1000, environment.driver_version % 1000 / 10,
                          markdown_field(environment.nvrtc_version), environment.clock_khz / 1000.0,
                          environment.ecc ? "on" : "off", markdown_field(environment.library_revision));
    }
    if (!device.environments.empty()) text += "\n";
    if (!device.winners.empty()) {
      text +=
          "\n| heads | batch | context | L2 | kernel | grid | us | 95% interval | GB/s | of read limit | stale |\n"
          "|---|--:|--:|---|---|--:|--:|--:|--:|--:|---|\n";
      for (const ReportedWinner& winner : device.winners) {
        text +=
            fmt::format("| {} | {} | {} | {} | `{}` | {} | {:.1f} | {:.1f} to {:.1f} | {:.0f} | {} | {} |\n",
                        heads(winner.problem), winner.shape.batch, winner.shape.longest_context,
                        markdown_field(winner.policy), kernel_name(winner.config.spec), winner.config.grid,
                        winner.median_us, winner.low_us, winner.high_us, winner.gb_per_s,
                        winner.read_limit_us > 0 ? fmt::format("{:.0f}%", 100 * winner.read_limit_share) : "unknown",
                        winner.stale ? "yes" : "");
      }
    }
    if (device.unreadable > 0)
      text += fmt::format("\n{} winners were written by another version and are left out.\n", device.unreadable);
    std::string counts;
    for (const auto& [status, count] : device.trials)
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, status);
    if (!counts.empty()) text += fmt::format("\nTrials: {}.\n", counts);
  }
  return text;
}

}  // namespace v1
}  // namespace leanattn
