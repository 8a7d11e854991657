// fake_nvrtc.cpp -- a libnvrtc that loads and answers, but cannot find its built-in functions.
#include <nvrtc.h>

#include <cstring>

extern "C" {
const char* nvrtcGetErrorString(nvrtcResult) { return "told to fail"; }
nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 90;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*,
                               const char* const*) {
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_PROGRAM; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* size) {
  *size = sizeof "nvrtc: error: failed to open libnvrtc-builtins";
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  std::strcpy(log, "nvrtc: error: failed to open libnvrtc-builtins");
  return NVRTC_SUCCESS;
}
}
