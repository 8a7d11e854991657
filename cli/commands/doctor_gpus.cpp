#include <fmt/format.h>

#include <algorithm>

#include "cache/environment_variable.hpp"
#include "cli/commands/doctor.hpp"
#include "cli/flags/sizes.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/nccl.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr const char* kProbe = "extern \"C\" __global__ void leanattn_probe(int* x) { *x = 1; }\n";
constexpr int kComputeProhibited = 2, kComputeExclusive = 3;  // nvmlComputeMode_t

std::string subject_of(const DeviceFacts& device) { return fmt::format("device {}", device.ordinal); }

/// NVRTC has to compile a kernel, because a library without its built-in functions loads and fails only then. The
/// driver has to load that kernel, and the GPU has to give a context.
Findings prove(const std::vector<DeviceFacts>& devices) {
  const auto known = std::find_if(devices.begin(), devices.end(),
                                  [](const DeviceFacts& device) { return nvrtc(device.arch).has_value(); });
  const Arch arch = known == devices.end() ? Arch{9, 0, true} : known->arch;
  const Result<CompiledKernel> first = compile_source(kProbe, arch, nullptr);
  if (!first) return {bad("NVRTC", first.error())};
  const Result<const NvrtcApi*> nvrtc_library = nvrtc(arch);  // the one that compiled
  if (!nvrtc_library) return {bad("NVRTC", nvrtc_library.error())};
  Findings findings{good("NVRTC", fmt::format("{}.{} at {} compiles for {}", (*nvrtc_library)->major,
                                              (*nvrtc_library)->minor, (*nvrtc_library)->path, to_string(arch)))};
  for (const DeviceFacts& device : devices) {
    const Result<Context> context = Context::retain(device.ordinal);
    if (!context) {
      Finding finding = bad(subject_of(device), context.error());
      if (finding.hint.empty())
        finding.hint =
            "Another process may hold the GPU exclusively, or its memory is full. nvidia-smi names who uses it.";
      findings.push_back(std::move(finding));
      continue;
    }
    const Result<CompiledKernel> compiled = compile_source(kProbe, device.arch, nullptr);
    if (!compiled) {
      findings.push_back(bad(subject_of(device), compiled.error()));
      continue;
    }
    const Result<LoadedSource> loaded = LoadedSource::load(*compiled);
    const Result<CUfunc_st*> function =
        loaded ? loaded->function("leanattn_probe") : Result<CUfunc_st*>(tl::unexpected(loaded.error()));
    findings.push_back(function ? good(subject_of(device), "loads what NVRTC compiles")
                                : bad(subject_of(device), function.error()));
  }
  return findings;
}

/// NCCL, without which all else works. Where the user names a file, that is to be one.
Finding look_at_nccl() {
  const Result<const NcclApi*> api = nccl();
  if (api) return good("NCCL", fmt::format("{} at {}", nccl_version_text((*api)->version), (*api)->path));
  if (environment_variable("LEANATTN_NCCL_LIB").empty())
    return good(
        "NCCL",
        fmt::format("{}. Only groups of GPUs that do not reach each other's memory need it", api.error().message),
        api.error().hint);
  return doubtful("NCCL", api.error().message, api.error().hint);
}

}  // namespace

Findings judge_device(const DeviceFacts& device, const GpuState& state, const GpuSettings& settings,
                      const GpuNeighbours& neighbours) {
  const std::string subject = subject_of(device);
  Findings findings{good(subject, fmt::format("{}, {}, {} SMs, {}", device.name, to_string(device.arch),
                                              device.sm_count, format_bytes(device.memory_bytes)))};
  if (device.arch.major < 8) {
    findings.push_back(
        bad(subject, {ErrorCode::unsupported,
                      fmt::format("compute capability {}.{} is not supported", device.arch.major, device.arch.minor),
                      "Ampere (sm_80) is the oldest supported architecture. Choose another GPU with "
                      "--device or CUDA_VISIBLE_DEVICES.",
                      {}}));
  }
  if (device.name.find(" MIG ") != std::string::npos) {
    findings.push_back(good(subject,
                            "is a MIG slice, which is a device model of its own and shares no winners with the "
                            "whole GPU"));
  }
  if (!settings.known && !state.known) {
    findings.push_back(doubtful(subject,
                                "NVML says nothing of it, so throttling, clocks and other processes go unnoticed",
                                "Install libnvidia-ml.so.1, which comes with the driver; in a container, let "
                                "NVIDIA_DRIVER_CAPABILITIES include utility."));
  }
  if (settings.compute_mode == kComputeProhibited) {
    findings.push_back(bad(subject, {ErrorCode::no_device,
                                     "its compute mode is Prohibited, so no process gets a context",
                                     fmt::format("Run nvidia-smi -i {} -c DEFAULT as root.", device.uuid),
                                     {}}));
  } else if (settings.compute_mode == kComputeExclusive) {
    findings.push_back(doubtful(
        subject,
        "its compute mode is Exclusive_Process, so that only one process can use it at a "
        "time, a tuning session or an engine",
        fmt::format("Run nvidia-smi -i {} -c DEFAULT as root, or let one process use it at a time.", device.uuid)));
  }
  if (settings.persistence == 0) {
    findings.push_back(doubtful(subject,
                                "persistence mode is off, so the first process to use the GPU waits for the driver, "
                                "and clocks that were set are lost",
                                "Start nvidia-persistenced, or run nvidia-smi -pm 1 as root."));
  }
  if (const std::string reasons = throttle_text(state.throttle_reasons); !reasons.empty()) {
    findings.push_back(doubtful(
        subject,
        fmt::format("is slowed down now: {} ({} of {} W, {} C, SM clock {} MHz)", reasons, state.power_mw / 1000,
                    state.power_limit_mw / 1000, state.temperature_c, state.sm_clock_mhz),
        "Measure when it is idle and cool. nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE says more."));
  }
  if (settings.default_power_mw > 0 && state.power_limit_mw > 0 && state.power_limit_mw < settings.default_power_mw) {
    findings.push_back(doubtful(subject,
                                fmt::format("its power limit was lowered to {} W from {} W",
                                            state.power_limit_mw / 1000, settings.default_power_mw / 1000),
                                fmt::format("To undo it, run nvidia-smi -i {} -pl {} as root. Tune under the "
                                            "limit that the kernels will run under.",
                                            device.uuid, settings.default_power_mw / 1000)));
  }
  if (settings.application_clock_mhz > 0 && settings.application_clock_mhz < settings.default_clock_mhz) {
    findings.push_back(doubtful(subject,
                                fmt::format("its SM clock was limited to {} MHz from {} MHz",
                                            settings.application_clock_mhz, settings.default_clock_mhz),
                                fmt::format("To undo it, run nvidia-smi -i {} -rac as root.", device.uuid)));
  }
  if (const std::string text = neighbours_text(neighbours); !text.empty()) {
    findings.push_back(doubtful(
        subject, fmt::format("is {}, and other processes hold {} of its memory", text, format_bytes(neighbours.bytes)),
        "Tune on a GPU of your own, because another process's work makes measurements doubtful."));
  }
  return findings;
}

std::optional<Finding> judge_absence(const GpuInventory& inventory) {
  if (!inventory.known || inventory.gpus == 0) return std::nullopt;
  const std::string seen = fmt::format("NVML sees {} GPU{}", inventory.gpus, inventory.gpus == 1 ? "" : "s");
  if (inventory.prohibited == inventory.gpus) {
    return doubtful("driver", seen + ", with compute mode Prohibited", "Run nvidia-smi -c DEFAULT as root.");
  }
  if (inventory.in_mig_mode == inventory.gpus) {
    return doubtful("driver", seen + " in MIG mode, but no compute instance for this process",
                    "nvidia-smi mig -cgi ... -C makes one (nvidia-smi mig -lgip lists the profiles), and nvidia-smi -L "
                    "shows its UUID for CUDA_VISIBLE_DEVICES. nvidia-smi -mig 0 ends MIG mode.");
  }
  return doubtful("driver", seen + ", which CUDA does not show to this process",
                  "Check CUDA_VISIBLE_DEVICES and the permissions of /dev/nvidia*.");
}

Findings look_at_gpus(std::vector<DeviceFacts>& devices) {
  Findings findings;
  if (Result<std::vector<DeviceFacts>> listed = list_devices()) {
    devices = *std::move(listed);
    const int version = devices.front().driver_version;
    const std::string& release = devices.front().driver_release;
    findings.push_back(good("driver", fmt::format("CUDA {}.{}{}", version / 1000, version % 1000 / 10,
                                                  release.empty() ? "" : ", release " + release)));
  } else {
    findings.push_back(bad("driver", listed.error()));
    if (auto why = judge_absence(gpu_inventory())) findings.push_back(*std::move(why));
  }
  for (const DeviceFacts& device : devices) {
    const Findings judged =
        judge_device(device, gpu_state(device.uuid), gpu_settings(device.uuid), gpu_neighbours(device.uuid));
    findings.insert(findings.end(), judged.begin(), judged.end());
  }
  std::vector<DeviceFacts> supported;
  for (const DeviceFacts& device : devices) {
    if (device.arch.major >= 8) supported.push_back(device);
  }
  const Findings proof = prove(supported);
  findings.insert(findings.end(), proof.begin(), proof.end());
  findings.push_back(look_at_nccl());
  return findings;
}

}  // namespace v1
}  // namespace leanattn
