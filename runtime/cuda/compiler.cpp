// compiler.cpp -- runs NVRTC, with the cubin cache in front of it, and rejects kernels that spill.
#include "runtime/cuda/compiler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cache/cubin/cubin_db.hpp"
#include "cache/files.hpp"
#include "generator/parse_json.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/cuda/ptxas_log.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Raised when the meaning of the metadata of cached entries changes. Older entries are then not found.
constexpr int kMetadataFormat = 2;

struct DestroyProgram {
  const NvrtcApi* api = nullptr;
  void operator()(_nvrtcProgram* program) const { api->nvrtcDestroyProgram(&program); }
};

std::string program_log(const NvrtcApi& api, nvrtcProgram program) {
  std::size_t size = 0;
  if (api.nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) return {};
  std::string log(size, '\0');
  if (api.nvrtcGetProgramLog(program, log.data()) != NVRTC_SUCCESS) return {};
  std::erase(log, '\0');  // the terminator, and one more where ptxas has written the end of the log
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
  const auto started = std::chrono::steady_clock::now();
  nvrtcProgram handle = nullptr;
  nvrtcResult status = api.nvrtcCreateProgram(&handle, source.c_str(), name.c_str(), 0, nullptr, nullptr);
  if (status != NVRTC_SUCCESS) return nvrtc_failure(api, status, "nvrtcCreateProgram", arch, {});
  const std::unique_ptr<_nvrtcProgram, DestroyProgram> program(handle, DestroyProgram{&api});

  const auto options = compile_options(api, arch);
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

/// The log says all that there is to know about a cubin.
std::string metadata_json(const CompiledKernel& compiled) {
  const nlohmann::json object{{"format", kMetadataFormat}, {"log", compiled.log}};
  // A log may quote source bytes that are not UTF-8.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Fills `compiled` from `metadata`. False when it has another format.
bool read_metadata(std::string_view metadata, CompiledKernel& compiled) {
  const auto object = parse_json(metadata);
  if (!object.is_object()) return false;
  const auto format = object.find("format"), log = object.find("log");
  if (format == object.end() || integer_of<int>(*format) != kMetadataFormat || log == object.end() || !log->is_string())
    return false;
  compiled.log = log->get<std::string>();
  compiled.resources = parse_ptxas_log(compiled.log);
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

Result<CompiledKernel> compile_with(const NvrtcApi& api, const std::string& source, const std::string& name, Arch arch,
                                    CubinCache* cache) {
  if (cache == nullptr) return run_nvrtc(api, source, name, arch);
  const auto key = cubin_key(source, compile_options(api, arch), full_version(api), to_string(arch));
  if (auto hit = load_compiled(*cache, key)) return *std::move(hit);
  // When many processes start at the same time, one of them compiles. It holds its turn until the cubin is stored.
  const CompileTurn turn = cache->wait_for_turn(key);
  if (turn.held()) {
    if (auto hit = load_compiled(*cache, key)) return *std::move(hit);
  }
  auto compiled = run_nvrtc(api, source, name, arch);
  if (compiled) cache->store(key, CubinEntry{compiled->cubin, metadata_json(*compiled)});
  return compiled;
}

Result<CompiledKernel> compile_through(std::string_view source, const std::string& name, Arch arch, CubinCache* cache) {
  const auto api = nvrtc(arch);
  if (!api) return tl::unexpected(api.error());
  const std::string text(source);
  auto compiled = compile_with(**api, text, name, arch, cache);
  for (const NvrtcApi* used = *api; !compiled && compiled.error().code == ErrorCode::nvrtc_missing;) {
    used = nvrtc_instead_of(*used, arch);
    if (used == nullptr) break;
    compiled = compile_with(*used, text, name, arch, cache);
  }
  return compiled;
}

/// Bytes that a thread may spill. Words that live across segments cost little, and which words
/// the compiler spills changes with its version; what spills where it matters loses by its time. Kernels that spill
/// more are many times as slow, and not worth loading.
constexpr int kMostSpilledBytes = 256;

/// Rejects an emitted kernel that spills much, serialises wgmma or lacks the registers that its warpgroups hand to each
/// other, because all of these cost more time than tuning can save.
Result<CompiledKernel> reject_unfit(Result<CompiledKernel> compiled, const std::string& entry) {
  if (!compiled) return compiled;
  const auto& resources = compiled->resources;
  if (std::max(resources.spill_store_bytes, resources.spill_load_bytes) > kMostSpilledBytes) {
    return fail(ErrorCode::kernel_rejected,
                fmt::format("{} spills registers: {} bytes stored, {} bytes loaded per thread", entry,
                            resources.spill_store_bytes, resources.spill_load_bytes),
                "Fewer tokens per warp, rows, warps or CTAs per SM leave more registers to a thread.",
                std::move(compiled->log));
  }
  if (resources.registers == 0) {
    return fail(ErrorCode::kernel_rejected,
                fmt::format("the compiler's log says nothing about the registers of {}", entry),
                "Spills cannot be ruled out. Try another NVRTC.", std::move(compiled->log));
  }
  if (resources.wgmma_serialized) {
    return fail(ErrorCode::kernel_rejected, fmt::format("ptxas serialises the wgmma instructions of {}", entry),
                "The log names a reason, which may be another one: with \"insufficient register resources\" (C7511) "
                "an accumulator may also be changed before its wait.",
                std::move(compiled->log));
  }
  if (resources.setmaxnreg_ignored) {
    return fail(ErrorCode::kernel_rejected, fmt::format("ptxas ignores setmaxnreg in {}", entry),
                "A warpgroup does not get the registers that another one hands over; the log says why.",
                std::move(compiled->log));
  }
  return compiled;
}

}  // namespace

bool is_about_the_kernel(ErrorCode code) {
  return code == ErrorCode::compile_failed || code == ErrorCode::kernel_rejected || code == ErrorCode::load_failed ||
         code == ErrorCode::unsupported;
}

Result<std::string> nvrtc_version(std::optional<Arch> arch) {
  const auto api = nvrtc(arch);
  if (!api) return tl::unexpected(api.error());
  return fmt::format("{}.{}", (*api)->major, (*api)->minor);
}

std::vector<std::string> compile_options(const NvrtcApi& api, Arch arch) {
  // A real architecture makes NVRTC run ptxas, and -v makes ptxas report registers and spills in the log.
  std::vector<std::string> options{"--gpu-architecture=" + to_string(arch), "--std=c++17", "--ptxas-options=-v"};
  // From 12.9 on NVRTC keeps results in the driver's compute cache (NVRTC manual, "Caching"). That would start the
  // driver within a compilation, give results without a ptxas log, and make compile times meaningless. cubin.db is our
  // cache.
  if (std::pair(api.major, api.minor) >= std::pair(12, 9)) options.push_back("--no-cache");
  return options;
}

Result<std::string> compile_key(std::string_view source, Arch arch) {
  const auto api = nvrtc(arch);
  if (!api) return tl::unexpected(api.error());
  return cubin_key(source, compile_options(**api, arch), full_version(**api), to_string(arch));
}

Result<CompiledKernel> compile(const EmittedKernel& kernel) { return compile(kernel, nullptr); }

Result<CompiledKernel> compile(const EmittedKernel& kernel, CubinCache* cache) {
  return compile_kernel(kernel.source, kernel.entry, kernel.spec.arch, cache);
}

Result<CompiledKernel> compile_kernel(std::string_view source, const std::string& entry, Arch arch, CubinCache* cache) {
  return reject_unfit(compile_through(source, entry + ".cu", arch, cache), entry);
}

Result<CompiledKernel> compile_source(std::string_view source, Arch arch, CubinCache* cache) {
  return compile_through(source, "source.cu", arch, cache);
}

}  // namespace v1
}  // namespace leanattn
