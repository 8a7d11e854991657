#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

int run_devices(const Console& console) {
  const Result<std::vector<DeviceFacts>> devices = list_devices();
  if (!devices) return report_error(devices.error());
  if (console.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const DeviceFacts& device : *devices) {
      list.push_back({{"ordinal", device.ordinal},
                      {"name", device.name},
                      {"uuid", device.uuid},
                      {"arch", to_string(device.arch)},
                      {"sms", device.sm_count},
                      {"l2_bytes", device.l2_bytes},
                      {"memory_bytes", device.memory_bytes},
                      {"shared_bytes_per_sm", device.shared_bytes_per_sm},
                      {"shared_bytes_per_cta", device.shared_bytes_per_cta},
                      {"clock_khz", device.clock_khz},
                      {"memory_clock_khz", device.memory_clock_khz},
                      {"ecc", device.ecc},
                      {"driver_version", device.driver_version},
                      {"driver_release", device.driver_release}});
    }
    const nlohmann::ordered_json document{{"schema_version", 1}, {"devices", std::move(list)}};
    print_json(document);
    return kExitOk;
  }
  Table table{.headings = {"device", "name", "arch", "SMs", "L2", "memory", "clock", "ECC", "driver"},
              .rows = {},
              .right_aligned = "rllrrrrl"};
  for (const DeviceFacts& device : *devices) {
    table.rows.push_back(
        {std::to_string(device.ordinal), device.name, to_string(device.arch), std::to_string(device.sm_count),
         format_bytes(device.l2_bytes), format_bytes(device.memory_bytes),
         fmt::format("{} MHz", device.clock_khz / 1000), device.ecc ? "on" : "off",
         device.driver_release.empty() ? std::to_string(device.driver_version) : device.driver_release});
  }
  print_table(table);
  return kExitOk;
}

}  // namespace

Command add_devices(CLI::App& program) {
  CLI::App* app = program.add_subcommand("devices", "List the GPUs that CUDA shows to this process");
  set_examples(*app, {{"List them as JSON", "leanattn devices --json"}});
  return {app, run_devices};
}

}  // namespace v1
}  // namespace leanattn
