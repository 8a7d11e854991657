#include "cli/device_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/sizes.hpp"
#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  constexpr const char* kGroup = "GPU";
  command.add_option("--device", flags.device, "CUDA ordinal; default 0")->type_name("N")->group(kGroup);
  command.add_option("--arch", flags.arch, "Work for this arch (sm_80, sm_90a ...) without a GPU")
      ->type_name("ARCH")
      ->group(kGroup);
  command.add_option("--sms", flags.sms, "SMs of that GPU; default: the arch's common product")
      ->type_name("N")
      ->group(kGroup);
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
      return fail(ErrorCode::invalid_argument, fmt::format("--sms {}: describes a GPU that is not here", flags.sms),
                  "Give --arch with it.");
    }
    Result<DeviceFacts> facts = device_facts(flags.device);
    if (!facts) {
      Error error = facts.error();
      error.hint += (error.hint.empty() ? "" : "\n  ") +
                    std::string("To work for a GPU that is not here, give --arch (and --sms).");
      return tl::unexpected(error);
    }
    return Target{*facts, device_model(*facts)};
  }
  Result<DeviceFacts> facts = offline_facts(flags);
  if (!facts) return tl::unexpected(facts.error());
  Target target{*facts, device_model(*facts)};
  // A database tuned elsewhere and brought here names the GPU; its row is what the winners hang on.
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(caches, OpenMode::read_only, CacheNeed::optional);
  if (!db) return target;
  const Result<std::vector<DeviceModel>> models = (*db)->device_models();
  if (!models) return target;
  std::string taken;
  for (const DeviceModel& model : *models) {
    if (model.arch != to_string(facts->arch)) continue;
    if (!flags.sms.empty() && model.sm_count != facts->sm_count) continue;
    if (!taken.empty()) {
      warn(fmt::format("the database also has {} ({}, {} SMs); {} is taken", model.name, model.arch, model.sm_count,
                       taken));
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
