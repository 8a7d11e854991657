// quick_nvrtc.cpp -- a libnvrtc for tests that run on the simulated driver, where no kernel is executed.
//   LEANATTN_NVRTC_DIR=<folder of this libnvrtc.so> QUICK_NVRTC=1 program
// The library finds it first, and it hands everything on to the NVRTC that the library would have found instead. With
// QUICK_NVRTC=1 that NVRTC checks a source's syntax and types, and then compiles kernels of the same names that do
// nothing, which takes a tenth of the time. Log and cubin of such kernels say that they are empty (kMark), and
// nvrtcVersion() is of this file, so that the cubins have keys of their own in a cubin.db (NvrtcApi::build). The
// compile matrix and the tests of compilation need NVRTC itself. Any process, any thread.
#include <nvrtc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tools/nvrtc_behind.hpp"

namespace {

/// The first line of a log, and a variable's value in the cubin, where kernels are empty.
constexpr const char* kMark = "quick_nvrtc checked the source and compiled empty kernels of the same names";

const NvrtcBehind& behind() { return nvrtc_behind(); }

bool quick() {
  static const bool asked = [] {
    const char* value = std::getenv("QUICK_NVRTC");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
}

/// What an nvrtcProgram of this library points to.
struct Program {
  nvrtcProgram given = nullptr, empty = nullptr;  ///< what the caller gave, and its kernels without their bodies
  std::string source;
  nvrtcProgram compiled() const { return empty != nullptr ? empty : given; }
  /// What stands before the log of compiled().
  std::string log_head() const { return empty != nullptr ? std::string(kMark) + '\n' : ""; }
};

Program& program_of(nvrtcProgram handle) { return *reinterpret_cast<Program*>(handle); }

/// Kernels of the same names as those of `source`, which do nothing, and kMark. Empty where `source` has no kernel.
std::string empty_kernels(const std::string& source) {
  static const std::regex kernel(R"(__global__\s+void\s+(?:__\w+__\([^)]*\)\s*)*([A-Za-z_]\w*)\s*\()");
  std::string kernels;
  for (std::sregex_iterator found(source.begin(), source.end(), kernel), end; found != end; ++found)
    kernels += "extern \"C\" __global__ void " + (*found)[1].str() + "() {}\n";
  if (!kernels.empty())
    kernels += "extern \"C\" __device__ const char quick_nvrtc_mark[] = \"" + std::string(kMark) + "\";\n";
  return kernels;
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
      behind().nvrtcCreateProgram(&program->given, source, name, headers, header_sources, header_names);
  if (status != NVRTC_SUCCESS) return status;
  program->source = source;
  *handle = reinterpret_cast<nvrtcProgram>(program.release());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* handle) {
  const std::unique_ptr<Program> program(&program_of(*handle));
  *handle = nullptr;
  if (program->empty != nullptr) behind().nvrtcDestroyProgram(&program->empty);
  return behind().nvrtcDestroyProgram(&program->given);
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int count, const char* const* options) {
  Program& program = program_of(handle);
  const std::string kernels = quick() ? empty_kernels(program.source) : "";
  if (kernels.empty()) return behind().nvrtcCompileProgram(program.given, count, options);
  std::vector<const char*> check(options, options + count);
  check.push_back("--fdevice-syntax-only");
  nvrtcResult status = behind().nvrtcCompileProgram(program.given, static_cast<int>(check.size()), check.data());
  if (status != NVRTC_SUCCESS) return status;
  status = behind().nvrtcCreateProgram(&program.empty, kernels.c_str(), "empty.cu", 0, nullptr, nullptr);
  return status == NVRTC_SUCCESS ? behind().nvrtcCompileProgram(program.empty, count, options) : status;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, std::size_t* size) {
  return behind().nvrtcGetCUBINSize(program_of(handle).compiled(), size);
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char* cubin) {
  return behind().nvrtcGetCUBIN(program_of(handle).compiled(), cubin);
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size) {
  const Program& program = program_of(handle);
  const nvrtcResult status = behind().nvrtcGetProgramLogSize(program.compiled(), size);
  if (status == NVRTC_SUCCESS) *size += program.log_head().size();
  return status;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char* log) {
  const std::string head = program_of(handle).log_head();
  return behind().nvrtcGetProgramLog(program_of(handle).compiled(), std::copy(head.begin(), head.end(), log));
}

}  // extern "C"
