// emulated_nvrtc.cpp -- a libnvrtc whose cubins have the PTX of their kernels behind them, for the emulated driver.
//   LEANATTN_NVRTC_DIR=<folder of this libnvrtc.so> program
// It hands everything on to the NVRTC that the library would have found instead. nvrtcVersion() is of this file, so
// that the cubins have keys of their own in a cubin.db (NvrtcApi::build). Any process, any thread.
#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>

#include "tests/emulator/native_checks.hpp"
#include "tests/tools/nvrtc_behind.hpp"

namespace {

const NvrtcBehind& behind() { return nvrtc_behind(); }

/// The programs that are the kernels of checks as they stand in the templates.
class Checks {
 public:
  void add(nvrtcProgram program) {
    const std::lock_guard lock(mutex_);
    programs_.insert(program);
  }
  void remove(nvrtcProgram program) {
    const std::lock_guard lock(mutex_);
    programs_.erase(program);
  }
  bool has(nvrtcProgram program) {
    const std::lock_guard lock(mutex_);
    return programs_.contains(program);
  }

 private:
  std::mutex mutex_;
  std::set<nvrtcProgram> programs_;
};
Checks& checks() {
  static Checks& all = *new Checks;
  return all;
}
bool are_checks(std::string_view source) {
  // The templates define the score where a problem does not.
  constexpr std::string_view kScore = "#define CHECK_SCORE(";
  return source.find("check_oracle(") != std::string_view::npos && source.find(kScore) == source.rfind(kScore);
}
std::string_view mark_of(nvrtcProgram program) { return checks().has(program) ? emulator::kChecksMark : ""; }

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(nvrtcResult result) {
  return behind().nvrtcGetErrorString == nullptr ? "no NVRTC is behind the emulator's one"
                                                 : behind().nvrtcGetErrorString(result);
}
nvrtcResult nvrtcVersion(int* major, int* minor) {
  return behind().nvrtcVersion == nullptr ? NVRTC_ERROR_INTERNAL_ERROR : behind().nvrtcVersion(major, minor);
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) { return behind().nvrtcGetNumSupportedArchs(count); }
nvrtcResult nvrtcGetSupportedArchs(int* archs) { return behind().nvrtcGetSupportedArchs(archs); }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                               const char* const* header_sources, const char* const* header_names) {
  const nvrtcResult status = behind().nvrtcCreateProgram(program, source, name, headers, header_sources, header_names);
  if (status == NVRTC_SUCCESS && are_checks(source)) checks().add(*program);
  return status;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  checks().remove(*program);
  return behind().nvrtcDestroyProgram(program);
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  return behind().nvrtcCompileProgram(program, count, options);
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* size) {
  return behind().nvrtcGetProgramLogSize(program, size);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) { return behind().nvrtcGetProgramLog(program, log); }

// The text ends with a zero, which counts.
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  std::size_t text = 0;
  nvrtcResult status = behind().nvrtcGetPTXSize(program, &text);
  if (status == NVRTC_SUCCESS) status = behind().nvrtcGetCUBINSize(program, size);
  *size += mark_of(program).size() + text;
  return status;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::size_t size = 0;
  nvrtcResult status = behind().nvrtcGetCUBINSize(program, &size);
  if (status == NVRTC_SUCCESS) status = behind().nvrtcGetCUBIN(program, cubin);
  if (status != NVRTC_SUCCESS) return status;
  const std::string_view mark = mark_of(program);
  return behind().nvrtcGetPTX(program, std::copy(mark.begin(), mark.end(), cubin + size));
}

}  // extern "C"
