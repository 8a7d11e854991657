#include "cli/flags/device_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "cache/layers.hpp"
#include "cli/console/suggestions.hpp"
#include "cli/flags/sizes.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {

namespace {

constexpr const char* kGpuGroup = "GPU";

struct KnownGpu {
  const char* name;
  Arch arch;
  int sm_count;
};
// The numbers of SMs are those of the products, of which some have fewer than their chips.
constexpr std::array kKnownGpus = {
    KnownGpu{"a100", {8, 0, false}, 108},    KnownGpu{"a30", {8, 0, false}, 56},
    KnownGpu{"a10", {8, 6, false}, 72},      KnownGpu{"a40", {8, 6, false}, 84},
    KnownGpu{"rtx3090", {8, 6, false}, 82},  KnownGpu{"l4", {8, 9, false}, 58},
    KnownGpu{"l40s", {8, 9, false}, 142},    KnownGpu{"rtx4090", {8, 9, false}, 128},
    KnownGpu{"h100", {9, 0, true}, 132},     KnownGpu{"h200", {9, 0, true}, 132},
    KnownGpu{"h20", {9, 0, true}, 78},       KnownGpu{"gh200", {9, 0, true}, 132},
    KnownGpu{"b200", {10, 0, true}, 148},    KnownGpu{"gb200", {10, 0, true}, 148},
    KnownGpu{"rtx5090", {12, 0, true}, 170},
};

struct UsualGpu {
  const char* name;
  int sm_count;
};

/// The most common product of an architecture.
UsualGpu usual_of(Arch arch) {
  switch (arch.major * 10 + arch.minor) {
    case 80: return {"A100", 108};
    case 86: return {"A40, RTX A6000", 84};
    case 87: return {"Jetson AGX Orin", 16};
    case 89: return {"L40S, RTX 6000 Ada", 142};
    case 90: return {"H100 SXM, H200", 132};
    case 100: return {"B200", 148};
    case 103: return {"B300", 160};
    case 120: return {"RTX PRO 6000", 188};
    default: return {"a GPU of 128 SMs", 128};
  }
}

/// The letters and digits of a name, in lower case.
std::string plain_name(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

/// Whether a driver's name of a GPU ("NVIDIA H100 80GB HBM3") is of this model ("h100"): one or two of its words are.
bool is_model(std::string_view device, const std::string& model) {
  std::vector<std::string> words(1);
  for (const char c : device) {
    if (c == ' ' || c == '-') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  std::string before;
  for (const std::string& word : words) {
    const std::string plain = plain_name(word);
    if (plain == model || before + plain == model) return true;
    before = plain;
  }
  return false;
}

void add_offline_flags(CLI::App& command, DeviceFlags& flags, CLI::Option* device) {
  command
      .add_option("--arch", flags.arch,
                  "Work for this architecture (sm_80, sm_90a ...) or GPU (a100, h100 ...) without having one")
      ->type_name("GPU")
      ->group(kGpuGroup)
      ->excludes(device);
  command
      .add_option("--sms", flags.sms,
                  "The number of SMs of that GPU; default: its own, or that of the architecture's most common product")
      ->type_name("N")
      ->group(kGpuGroup);
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  CLI::Option* device = command.add_option("--device", flags.device, "The CUDA ordinal of the GPU; default 0");
  add_offline_flags(command, flags, device->type_name("N")->group(kGpuGroup));
}

void add_device_list_flags(CLI::App& command, DeviceFlags& flags) {
  CLI::Option* device =
      command.add_option("--device,--devices", flags.devices, "CUDA ordinals of GPUs, such as 0,2, or all; default 0");
  add_offline_flags(command, flags, device->type_name("LIST")->group(kGpuGroup));
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

Result<std::vector<int>> devices_of_ranks(const DeviceFlags& flags, int ranks) {
  Result<std::vector<int>> distinct = chosen_devices(flags);
  if (!distinct) return distinct;
  const auto wanted = static_cast<std::size_t>(ranks);
  if (distinct->size() == 1) return std::vector<int>(wanted, distinct->front());
  std::vector<int> devices = *distinct;
  if (flags.devices != "all") {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    const Result<std::vector<std::int64_t>> named = parse_length_list("--device", flags.devices, 0, kMost);
    if (!named) return tl::unexpected(named.error());
    devices.assign(named->begin(), named->end());
  }
  if (devices.size() == wanted) return devices;
  return fail(
      ErrorCode::invalid_argument, fmt::format("{} GPUs for --context-parallel {}", devices.size(), ranks),
      fmt::format("Name {} GPUs with --device, one for each rank, or one that stands in for all of them.", ranks));
}

int usual_sm_count(Arch arch) { return usual_of(arch).sm_count; }

std::string usual_product(const DeviceFlags& flags) {
  const Result<NamedGpu> gpu = parse_gpu(flags.arch);
  if (!gpu) return "no known GPU";
  return gpu->model.empty() ? usual_of(gpu->arch).name : gpu->model;
}

Result<NamedGpu> parse_gpu(std::string_view text) {
  if (text.starts_with("sm_")) {
    const Result<Arch> arch = parse_arch(text);
    if (!arch) return tl::unexpected(arch.error());
    return NamedGpu{*arch, usual_sm_count(*arch), {}};
  }
  const std::string plain = plain_name(text);
  for (const KnownGpu& gpu : kKnownGpus) {
    if (plain == gpu.name) return NamedGpu{gpu.arch, gpu.sm_count, gpu.name};
  }
  return fail(ErrorCode::invalid_argument, fmt::format("--arch '{}' is neither an architecture nor a known GPU", text),
              did_you_mean(text, gpu_names()) +
                  "Give an architecture such as sm_90a, with --sms, or a GPU such as a100, h100 or rtx4090.");
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const Arch& arch : matrix_arches()) names.push_back(to_string(arch));
  for (const KnownGpu& gpu : kKnownGpus) names.emplace_back(gpu.name);
  return names;
}

Result<DeviceFacts> offline_facts(const DeviceFlags& flags) {
  const Result<NamedGpu> gpu = parse_gpu(flags.arch);
  if (!gpu) return tl::unexpected(gpu.error());
  std::int64_t sms = gpu->sm_count;
  if (!flags.sms.empty()) {
    const Result<std::int64_t> parsed = parse_size("--sms", flags.sms, 1, 65536);
    if (!parsed) return tl::unexpected(parsed.error());
    sms = *parsed;
  }
  return facts_for_arch(gpu->arch, static_cast<int>(sms));
}

DeviceFlags or_hopper(const Console& console, DeviceFlags flags) {
  if (flags.arch.empty() && flags.sms.empty() && !device_facts(flags.device)) {
    flags.arch = "sm_90a";
    note(console, "No GPU was found, so the kernel is for sm_90a. --arch names another architecture.");
  }
  return flags;
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
  // The databases may have been tuned on another machine. Their winners belong to the device model that they name. Who
  // reads the winners is warned of what is wrong with the databases.
  std::vector<DeviceModel> models;
  for (const LayerContents& contents : layer_contents(caches.directory)) {
    for (const LayerContents::Device& device : contents.devices) {
      if (std::find(models.begin(), models.end(), device.model) == models.end()) models.push_back(device.model);
    }
  }
  const std::string model_name = parse_gpu(flags.arch)->model;
  std::string taken;
  std::vector<std::string> others;
  const auto described = [](const DeviceModel& model) {
    return fmt::format("{} ({} SMs, {} GiB)", model.name, model.sm_count, model.memory_bytes >> 30);
  };
  for (const DeviceModel& model : models) {
    if (model.arch != to_string(facts->arch)) continue;
    if (!flags.sms.empty() && model.sm_count != facts->sm_count) continue;
    if (!model_name.empty() && !is_model(model.name, model_name)) continue;
    if (!taken.empty()) {
      others.push_back(described(model));
      continue;
    }
    taken = described(model);
    target.model = model;
    target.facts.name = model.name;
    target.facts.sm_count = model.sm_count;
    target.facts.l2_bytes = model.l2_bytes;
    target.facts.memory_bytes = model.memory_bytes;
  }
  if (!others.empty()) {
    warn(fmt::format("the winners of {} are used, and not those of {}; --arch with the name of a GPU chooses", taken,
                     fmt::join(others, ", ")));
  }
  return target;
}

}  // namespace v1
}  // namespace leanattn
