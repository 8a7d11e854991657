// planted_gpu.cpp -- sets up the fake driver's GPU as FAKE_* variables say when the library is loaded.
#include <cstdlib>
#include <string>

#include "tests/unit/runtime/fake_cuda.hpp"

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Makes an entry point fail once: "cuLibraryLoadData:200" gives the function and its status.
void plant_failure(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return;
  fake_gpu().fail_once[text.substr(0, colon)] = static_cast<CUresult>(std::atoi(text.c_str() + colon + 1));
}

// This runs after the constructors of fake_cuda.cpp, whose objects are linked first.
[[gnu::constructor]] void plant() {
  const int capability = number("FAKE_COMPUTE_CAPABILITY", 90);
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = capability / 10;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = capability % 10;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 50 << 20;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 228 << 10;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 227 << 10;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32;
  fake_gpu().memory_bytes = std::int64_t{80} << 30;
  fake_gpu().driver_version = number("FAKE_DRIVER_VERSION", 13000);
  fake_gpu().devices = number("FAKE_DEVICES", 1);
  if (const char* name = std::getenv("FAKE_NAME")) fake_gpu().name = name;
  if (const char* failure = std::getenv("FAKE_FAILURE")) plant_failure(failure);
}

}  // namespace
