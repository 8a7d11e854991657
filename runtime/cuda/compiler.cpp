// compiler.cpp -- runs NVRTC, with the cubin cache in front of it, and rejects kernels that spill.
#include "runtime/cuda/compiler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cache/cubin/cubin_db.hpp"
#include "cache/files.hpp"
#include "generator/parse_json.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/cuda/ptxas_log.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Raised when the meaning of the metadata of cached entries changes. Older entries are then not found.
constexpr int kMetadataFormat = 1;

struct DestroyProgram {
  const NvrtcApi* api = nullptr;
  void operator()(_nvrtcProgram* program) const { api->nvrtcDestroyProgram(&program); }
};

std::string program_log(const NvrtcApi& api, nvrtcProgram program) {
  std::size_t size = 0;
  if (api.nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) return {};
  std::string log(size, '\0');
  if (api.nvrtcGetProgramLog(program, log.data()) != NVRTC_SUCCESS) return {};
  log.resize(size - 1);  // the size counts the terminator
  return log;
}

tl::unexpected<Error> nvrtc_failure(const NvrtcApi& api, nvrtcResult status, const char* call, Arch arch,
                                    std::string log) {
  if (status == NVRTC_ERROR_COMPILATION) {
    auto message = fmt::format("NVRTC rejects the source for {}: {}", to_string(arch), first_error(log));
    return fail(ErrorCode::compile_failed, std::move(message), {}, std::move(log));
  }
  if (status == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
    return tl::unexpected(
        detail::cannot_open({ErrorCode::nvrtc_missing, fmt::format("{} cannot load its built-in functions", api.path),
                             "libnvrtc-builtins of the same version must lie next to libnvrtc.", std::move(log)}));
  }
  const auto code = status == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::compile_failed;
  return fail(code, fmt::format("{}: {}", call, api.nvrtcGetErrorString(status)), {}, std::move(log));
}

Result<CompiledKernel> run_nvrtc(const NvrtcApi& api, const std::string& source, const std::string& name, Arch arch) {
  if (const auto known = check_arch(api, arch); !known) return tl::unexpected(known.error());
  const auto started = std::chrono::steady_clock::now();
  nvrtcProgram handle = nullptr;
  nvrtcResult status = api.nvrtcCreateProgram(&handle, source.c_str(), name.c_str(), 0, nullptr, nullptr);
  if (status != NVRTC_SUCCESS) return nvrtc_failure(api, status, "nvrtcCreateProgram", arch, {});
  const std::unique_ptr<_nvrtcProgram, DestroyProgram> program(handle, DestroyProgram{&api});

  const auto options = compile_options(arch);
  std::vector<const char*> arguments;
  arguments.reserve(options.size());
  for (const auto& option : options) arguments.push_back(option.c_str());
  status = api.nvrtcCompileProgram(program.get(), static_cast<int>(arguments.size()), arguments.data());
  CompiledKernel compiled;
  compiled.log = program_log(api, program.get());
  if (status != NVRTC_SUCCESS) return nvrtc_failure(api, status, "nvrtcCompileProgram", arch, std::move(compiled.log));

  std::size_t size = 0;
  status = api.nvrtcGetCUBINSize(program.get(), &size);
  if (status == NVRTC_SUCCESS) {
    compiled.cubin.resize(size);
    status = api.nvrtcGetCUBIN(program.get(), reinterpret_cast<char*>(compiled.cubin.data()));
  }
  if (status != NVRTC_SUCCESS) return nvrtc_failure(api, status, "nvrtcGetCUBIN", arch, std::move(compiled.log));
  compiled.resources = parse_ptxas_log(compiled.log);
  compiled.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  return compiled;
}

std::string metadata_json(const CompiledKernel& compiled) {
  const auto& resources = compiled.resources;
  const nlohmann::json object{{"format", kMetadataFormat},
                              {"registers", resources.registers},
                              {"spill_store_bytes", resources.spill_store_bytes},
                              {"spill_load_bytes", resources.spill_load_bytes},
                              {"stack_bytes", resources.stack_bytes},
                              {"static_shared_bytes", resources.static_shared_bytes},
                              {"wgmma_serialized", resources.wgmma_serialized},
                              {"log", compiled.log}};
  // A log may quote source bytes that are not UTF-8.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Fills `compiled` from `metadata`. False when it has another format.
bool read_metadata(std::string_view metadata, CompiledKernel& compiled) {
  const auto object = parse_json(metadata);
  if (!object.is_object()) return false;
  const auto integer = [&](const char* key, int& out) {
    const auto it = object.find(key);
    const std::optional<int> number = it == object.end() ? std::nullopt : integer_of<int>(*it);
    out = number.value_or(0);
    return number.has_value();
  };
  int format = 0;
  auto& resources = compiled.resources;
  const auto serialized = object.find("wgmma_serialized");
  const auto log = object.find("log");
  if (!integer("format", format) || format != kMetadataFormat || !integer("registers", resources.registers) ||
      !integer("spill_store_bytes", resources.spill_store_bytes) ||
      !integer("spill_load_bytes", resources.spill_load_bytes) || !integer("stack_bytes", resources.stack_bytes) ||
      !integer("static_shared_bytes", resources.static_shared_bytes) || serialized == object.end() ||
      !serialized->is_boolean() || log == object.end() || !log->is_string()) {
    return false;
  }
  resources.wgmma_serialized = serialized->get<bool>();
  compiled.log = log->get<std::string>();
  return true;
}

/// What was stored under `key`. An entry that cannot be read is deleted.
std::optional<CompiledKernel> load_compiled(CubinCache& cache, const std::string& key) {
  auto hit = cache.load(key);
  if (!hit) return std::nullopt;
  CompiledKernel compiled;
  compiled.from_cache = true;
  if (!hit->cubin.empty() && read_metadata(hit->metadata, compiled)) {
    compiled.cubin = std::move(hit->cubin);
    return compiled;
  }
  cache.erase(key);
  return std::nullopt;
}

Result<CompiledKernel> compile_through(std::string_view source, const std::string& name, Arch arch, CubinCache* cache) {
  const auto api = nvrtc();
  if (!api) return tl::unexpected(api.error());
  if (cache == nullptr) return run_nvrtc(**api, std::string(source), name, arch);
  const auto key = cubin_key(source, compile_options(arch), full_version(**api), to_string(arch));
  if (auto hit = load_compiled(*cache, key)) return *std::move(hit);
  // When many processes start at the same time, one of them compiles. It holds its turn until the cubin is stored.
  const CompileTurn turn = cache->wait_for_turn(key);
  if (turn.held()) {
    if (auto hit = load_compiled(*cache, key)) return *std::move(hit);
  }
  auto compiled = run_nvrtc(**api, std::string(source), name, arch);
  if (compiled) cache->store(key, CubinEntry{compiled->cubin, metadata_json(*compiled)});
  return compiled;
}

/// Bytes that a thread may spill. Where warpgroups have roles, each role has another number of registers, and the
/// compiler may put some words of what lives across segments into local memory. Where the producer converts rows, the
/// compiler may also spill what lives across steps, new rows on their way to the cache, and values of the fix-up. Where
/// new rows go to the stage, each thread holds a chunk of them from the start of a segment to their step; where rows
/// are gathered as well, a kernel that spills 36 bytes takes 3 % longer than one without new rows. In the mma family, V
/// of a latent cache fills half of a thread's registers. There, many kernels over elements of one byte spill, and with
/// a scale per token all do.
int most_spilled_bytes(const KernelSpec& spec) {
  if (converts_rows(spec)) return warpgroups_have_roles(spec) ? 256 : 128;
  if (spec.features.latent && has_one_byte_elements(spec.features)) return 128;
  if (warpgroups_have_roles(spec)) return gathers_rows(spec) ? 192 : 96;
  return !appends_to_stage(spec) ? 0 : gathers_rows(spec) ? 16 : 64;
}

/// Rejects an emitted kernel that spills or serialises wgmma, because both cost more time than tuning can save.
Result<CompiledKernel> reject_unfit(Result<CompiledKernel> compiled, const EmittedKernel& kernel) {
  if (!compiled) return compiled;
  const auto& resources = compiled->resources;
  if (std::max(resources.spill_store_bytes, resources.spill_load_bytes) > most_spilled_bytes(kernel.spec)) {
    return fail(ErrorCode::kernel_rejected,
                fmt::format("{} spills registers: {} bytes stored, {} bytes loaded per thread", kernel.entry,
                            resources.spill_store_bytes, resources.spill_load_bytes),
                "Fewer tokens per warp, rows, warps or CTAs per SM leave more registers to a thread.",
                std::move(compiled->log));
  }
  if (resources.registers == 0) {
    return fail(ErrorCode::kernel_rejected,
                fmt::format("the compiler's log says nothing about the registers of {}", kernel.entry),
                "Spills cannot be ruled out. Try another NVRTC.", std::move(compiled->log));
  }
  if (resources.wgmma_serialized) {
    return fail(ErrorCode::kernel_rejected, fmt::format("ptxas serialises the wgmma instructions of {}", kernel.entry),
                "The log names the instruction that forces it.", std::move(compiled->log));
  }
  return compiled;
}

}  // namespace

Result<std::string> nvrtc_version() {
  const auto api = nvrtc();
  if (!api) return tl::unexpected(api.error());
  return fmt::format("{}.{}", (*api)->major, (*api)->minor);
}

std::vector<std::string> compile_options(Arch arch) {
  // A real architecture makes NVRTC run ptxas, and -v makes ptxas report registers and spills in the log.
  std::vector<std::string> options{"--gpu-architecture=" + to_string(arch), "--std=c++17", "--ptxas-options=-v"};
  // From 12.9 on NVRTC keeps results in the driver's compute cache (NVRTC manual, "Caching"). That would start the
  // driver within a compilation, give results without a ptxas log, and make compile times meaningless. cubin.db is our
  // cache.
  if (const auto api = nvrtc(); api && ((*api)->major > 12 || ((*api)->major == 12 && (*api)->minor >= 9)))
    options.push_back("--no-cache");
  return options;
}

Result<std::string> compile_key(std::string_view source, Arch arch) {
  const auto api = nvrtc();
  if (!api) return tl::unexpected(api.error());
  return cubin_key(source, compile_options(arch), full_version(**api), to_string(arch));
}

Result<CompiledKernel> compile(const EmittedKernel& kernel) { return compile(kernel, nullptr); }

Result<CompiledKernel> compile(const EmittedKernel& kernel, CubinCache* cache) {
  return reject_unfit(compile_through(kernel.source, kernel.entry + ".cu", kernel.spec.arch, cache), kernel);
}

Result<CompiledKernel> compile_source(std::string_view source, Arch arch, CubinCache* cache) {
  return compile_through(source, "source.cu", arch, cache);
}

}  // namespace v1
}  // namespace leanattn
