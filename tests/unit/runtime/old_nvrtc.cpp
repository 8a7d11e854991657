// A libnvrtc that is no use, for the tests that the search goes on behind it. NVRTC_STAND_IN says why: it cannot load
// its "builtins", it knows no GPU but sm_80 ("archs"), or, where it is not set, it is of version 12.2.
#include <nvrtc.h>

#include <cstdlib>
#include <string_view>

namespace {
bool is(std::string_view fault) {
  const char* const told = std::getenv("NVRTC_STAND_IN");
  return told != nullptr && told == fault;
}
}  // namespace

extern "C" {
nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 12, *minor = is("builtins") || is("archs") ? 3 : 2;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "no error"; }
nvrtcResult nvrtcGetNumSupportedArchs(int* count) { return *count = is("builtins") ? 2 : 1, NVRTC_SUCCESS; }
nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 80;
  if (is("builtins")) archs[1] = 90;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*,
                               const char* const*) {
  return *program = nullptr, NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
}
