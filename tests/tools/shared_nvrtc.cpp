// shared_nvrtc.cpp -- a libnvrtc for test runs: what one program had compiled is not compiled again for another.
//   LEANATTN_NVRTC_DIR=<folder of this libnvrtc.so> SHARED_NVRTC_CUBINS=<folder> program
// The library finds it first, and it hands everything on to the NVRTC that the library would have found instead. The
// cubins and logs of what compiled are in <folder>/cubin.db under all that they depend on: NVRTC's build, the options,
// the architecture, the program's name and its source. What does not compile is not kept. Any process, any thread.
#include <nvrtc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/dynamic_library.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace {

using leanattn::CubinCache;
using leanattn::CubinEntry;
using leanattn::DynamicLibrary;

/// The NVRTC behind this one; its functions are null where none is found.
struct Behind {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_DECLARE)
#undef LEANATTN_DECLARE
  std::string build;
  std::unique_ptr<CubinCache> cubins;
};

Behind open_behind() {
  namespace fs = std::filesystem;
  const fs::path own = fs::path(DynamicLibrary::path_of(reinterpret_cast<const void*>(&nvrtcVersion))).parent_path();
  std::vector<std::string> candidates = leanattn::nvrtc_candidates({});
  std::erase_if(candidates, [&](const std::string& candidate) {
    std::error_code error;
    return fs::equivalent(fs::path(candidate).parent_path(), own, error);
  });
  Behind behind;
  const DynamicLibrary library = DynamicLibrary::open_first(candidates, nullptr);
#define LEANATTN_RESOLVE(name) behind.name = reinterpret_cast<decltype(behind.name)>(library.symbol(#name));
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_RESOLVE)
#undef LEANATTN_RESOLVE
  behind.build = DynamicLibrary::build_id_of(reinterpret_cast<const void*>(behind.nvrtcVersion));
  const char* folder = std::getenv("SHARED_NVRTC_CUBINS");
  if (folder != nullptr) behind.cubins = leanattn::open_cubin_db(folder, nullptr);
  return behind;
}

/// Opened by the first call, and never closed: exit handlers may compile.
const Behind& behind() {
  static const Behind& opened = *new Behind(open_behind());
  return opened;
}

/// What an nvrtcProgram of this library points to.
struct Program {
  nvrtcProgram real = nullptr;
  std::string source, name;
  bool shared = false;  ///< whether `entry` has its cubin (and, as metadata, its log)
  CubinEntry entry;
};

Program& program_of(nvrtcProgram handle) { return *reinterpret_cast<Program*>(handle); }

std::string log_of(nvrtcProgram real) {
  std::size_t size = 0;
  if (behind().nvrtcGetProgramLogSize(real, &size) != NVRTC_SUCCESS || size <= 1) return {};
  std::string log(size, '\0');
  if (behind().nvrtcGetProgramLog(real, log.data()) != NVRTC_SUCCESS) return {};
  log.resize(size - 1);  // the size counts the terminator
  return log;
}

nvrtcResult compile_behind(Program& program, int count, const char* const* options) {
  const nvrtcResult status = behind().nvrtcCompileProgram(program.real, count, options);
  std::size_t size = 0;
  if (status != NVRTC_SUCCESS || behind().nvrtcGetCUBINSize(program.real, &size) != NVRTC_SUCCESS) return status;
  CubinEntry entry;
  entry.cubin.resize(size);
  if (behind().nvrtcGetCUBIN(program.real, reinterpret_cast<char*>(entry.cubin.data())) != NVRTC_SUCCESS) return status;
  entry.metadata = log_of(program.real);
  program.entry = std::move(entry), program.shared = true;
  return status;
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(nvrtcResult result) {
  return behind().nvrtcGetErrorString == nullptr ? "no NVRTC is behind the tests' one"
                                                 : behind().nvrtcGetErrorString(result);
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
  return behind().nvrtcVersion == nullptr ? NVRTC_ERROR_INTERNAL_ERROR : behind().nvrtcVersion(major, minor);
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) { return behind().nvrtcGetNumSupportedArchs(count); }

nvrtcResult nvrtcGetSupportedArchs(int* archs) { return behind().nvrtcGetSupportedArchs(archs); }

nvrtcResult nvrtcCreateProgram(nvrtcProgram* handle, const char* source, const char* name, int headers,
                               const char* const* header_sources, const char* const* header_names) {
  auto program = std::make_unique<Program>();
  const nvrtcResult status =
      behind().nvrtcCreateProgram(&program->real, source, name, headers, header_sources, header_names);
  if (status != NVRTC_SUCCESS) return status;
  // The library's sources have no headers, and those of another one would have to be part of the key.
  if (headers == 0) program->source = source, program->name = name == nullptr ? "" : name;
  *handle = reinterpret_cast<nvrtcProgram>(program.release());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* handle) {
  const std::unique_ptr<Program> program(&program_of(*handle));
  *handle = nullptr;
  return behind().nvrtcDestroyProgram(&program->real);
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* options) {
  Program& program = program_of(handle);
  program.shared = false;
  CubinCache* const cubins = program.source.empty() ? nullptr : behind().cubins.get();
  if (cubins == nullptr) return compile_behind(program, count, options);
  const std::string key = leanattn::cubin_key(program.source, {options, options + count}, behind().build, program.name);
  const auto find = [&] {
    auto found = cubins->load(key);
    if (found) program.entry = *std::move(found), program.shared = true;
    return program.shared;
  };
  if (find()) return NVRTC_SUCCESS;
  const leanattn::CompileTurn turn = cubins->wait_for_turn(key);
  if (turn.held() && find()) return NVRTC_SUCCESS;
  const nvrtcResult status = compile_behind(program, count, options);
  if (program.shared) cubins->store(key, program.entry);
  return status;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, std::size_t* size) {
  const Program& program = program_of(handle);
  if (!program.shared) return behind().nvrtcGetCUBINSize(program.real, size);
  *size = program.entry.cubin.size();
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char* cubin) {
  const Program& program = program_of(handle);
  if (!program.shared) return behind().nvrtcGetCUBIN(program.real, cubin);
  std::memcpy(cubin, program.entry.cubin.data(), program.entry.cubin.size());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size) {
  const Program& program = program_of(handle);
  if (!program.shared) return behind().nvrtcGetProgramLogSize(program.real, size);
  *size = program.entry.metadata.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char* log) {
  const Program& program = program_of(handle);
  if (!program.shared) return behind().nvrtcGetProgramLog(program.real, log);
  std::memcpy(log, program.entry.metadata.c_str(), program.entry.metadata.size() + 1);
  return NVRTC_SUCCESS;
}

}  // extern "C"
