#include "cli/flags/device_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "cli/flags/sizes.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {

namespace {

constexpr const char* kGroup = "GPU";

void add_offline_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--arch", flags.arch, "Work for this architecture (sm_80, sm_90a ...) without a GPU")
      ->type_name("ARCH")
      ->group(kGroup);
  command
      .add_option("--sms", flags.sms,
                  "The number of SMs of that GPU; default: the one of the architecture's most common product")
      ->type_name("N")
      ->group(kGroup);
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device, "The CUDA ordinal of the GPU; default 0")->type_name("N")->group(kGroup);
  add_offline_flags(command, flags);
}

void add_device_list_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.devices, "CUDA ordinals of GPUs, such as 0,2, or all; default 0")
      ->type_name("LIST")
      ->group(kGroup);
  add_offline_flags(command, flags);
}

Result<std::vector<int>> chosen_devices(const DeviceFlags& flags) {
  std::vector<int> ordinals;
  if (flags.devices == "all") {
    const Result<std::vector<DeviceFacts>> devices = list_devices();
    if (!devices) return tl::unexpected(devices.error());
    for (const DeviceFacts& device : *devices) ordinals.push_back(device.ordinal);
    return ordinals;
  }
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  const Result<std::vector<std::int64_t>> named =
      parse_size_list("--device", flags.devices.empty() ? std::to_string(flags.device) : flags.devices, -kMost, kMost);
  if (!named) {
    return fail(ErrorCode::invalid_argument, named.error().message,
                "Give CUDA ordinals such as 0 or 0,2, or give all. `leanattn devices` lists them.");
  }
  for (const std::int64_t ordinal : *named) {
    const Result<DeviceFacts> device = device_facts(static_cast<int>(ordinal));
    if (!device) return tl::unexpected(device.error());
    ordinals.push_back(static_cast<int>(ordinal));
  }
  return ordinals;
}

int usual_sm_count(Arch arch) {
  switch (arch.major * 10 + arch.minor) {
    case 80: return 108;   // A100
    case 86: return 84;    // A40, RTX A6000
    case 87: return 16;    // Jetson AGX Orin
    case 89: return 142;   // L40S, RTX 6000 Ada
    case 90: return 132;   // H100 SXM, H200
    case 100: return 148;  // B200
    case 103: return 160;  // B300
    case 120: return 188;  // RTX PRO 6000
    default: return 128;
  }
}

Result<DeviceFacts> offline_facts(const DeviceFlags& flags) {
  const Result<Arch> arch = parse_arch(flags.arch);
  if (!arch) return tl::unexpected(arch.error());
  std::int64_t sms = usual_sm_count(*arch);
  if (!flags.sms.empty()) {
    const Result<std::int64_t> parsed = parse_size("--sms", flags.sms, 1, 65536);
    if (!parsed) return tl::unexpected(parsed.error());
    sms = *parsed;
  }
  return facts_for_arch(*arch, static_cast<int>(sms));
}

Result<Target> resolve_target(const DeviceFlags& flags, const Caches& caches) {
  if (flags.arch.empty()) {
    if (!flags.sms.empty()) {
      return fail(ErrorCode::invalid_argument,
                  fmt::format("--sms {} describes a GPU only together with --arch", flags.sms),
                  "Give --arch, too, or leave --sms out.");
    }
    Result<DeviceFacts> facts = device_facts(flags.device);
    if (!facts) {
      Error error = facts.error();
      error.hint += (error.hint.empty() ? "" : "\n  ") +
                    std::string("To work for a GPU that is not in this machine, give --arch (and --sms).");
      return tl::unexpected(error);
    }
    return Target{*facts, device_model(*facts)};
  }
  Result<DeviceFacts> facts = offline_facts(flags);
  if (!facts) return tl::unexpected(facts.error());
  Target target{*facts, device_model(*facts)};
  // The database may have been tuned on another machine. Its winners belong to the device model that it names.
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(caches, OpenMode::read_only, CacheNeed::optional);
  if (!db) return target;
  const Result<std::vector<DeviceModel>> models = (*db)->device_models();
  if (!models) return target;
  std::string taken;
  for (const DeviceModel& model : *models) {
    if (model.arch != to_string(facts->arch)) continue;
    if (!flags.sms.empty() && model.sm_count != facts->sm_count) continue;
    if (!taken.empty()) {
      warn(fmt::format("the database also has winners of {} ({}, {} SMs), but those of {} are used", model.name,
                       model.arch, model.sm_count, taken));
      continue;
    }
    taken = model.name;
    target.model = model;
    target.facts.name = model.name;
    target.facts.sm_count = model.sm_count;
    target.facts.l2_bytes = model.l2_bytes;
    target.facts.memory_bytes = model.memory_bytes;
  }
  return target;
}

}  // namespace v1
}  // namespace leanattn
