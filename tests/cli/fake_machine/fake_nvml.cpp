// fake_nvml.cpp -- a libnvidia-ml.so.1 of one idle GPU. FAKE_* variables change what it says. The prototypes follow the
// NVML API reference.
#include <cstdlib>
#include <cstring>

namespace {

struct Device {};
Device the_device;

unsigned number(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 0));
}

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;
};

}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "580.1", length);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = number("FAKE_NVML_DEVICES", 1);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, Device** device) {
  *device = &the_device;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char*, Device** device) {
  *device = &the_device;
  return 0;
}
int nvmlDeviceGetP2PStatus(Device*, Device*, int, int* status) {
  *status = static_cast<int>(number("FAKE_P2P_STATUS", 0));  // over NVLink
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(Device*, unsigned* milliwatts) {
  *milliwatts = number("FAKE_POWER_LIMIT_W", 700) * 1000;
  return 0;
}
int nvmlDeviceGetPowerManagementDefaultLimit(Device*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetPowerUsage(Device*, unsigned* milliwatts) {
  *milliwatts = 90000;
  return 0;
}
int nvmlDeviceGetTemperature(Device*, unsigned, unsigned* celsius) {
  *celsius = 35;
  return 0;
}
int nvmlDeviceGetClockInfo(Device*, unsigned, unsigned* megahertz) {
  *megahertz = 1980;
  return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(Device*, unsigned long long* reasons) {
  *reasons = number("FAKE_THROTTLE_REASONS", 0x1);  // idle
  return 0;
}
int nvmlDeviceGetApplicationsClock(Device*, unsigned, unsigned* megahertz) {
  *megahertz = number("FAKE_APPLICATION_CLOCK_MHZ", 1980);
  return 0;
}
int nvmlDeviceGetDefaultApplicationsClock(Device*, unsigned, unsigned* megahertz) {
  *megahertz = 1980;
  return 0;
}
int nvmlDeviceGetComputeMode(Device*, int* mode) {
  *mode = static_cast<int>(number("FAKE_COMPUTE_MODE", 0));
  return 0;
}
int nvmlDeviceGetPersistenceMode(Device*, int* mode) {
  *mode = static_cast<int>(number("FAKE_PERSISTENCE", 1));
  return 0;
}
int nvmlDeviceGetMigMode(Device*, unsigned* current, unsigned* pending) {
  *current = *pending = number("FAKE_MIG_MODE", 0);
  return 0;
}
int nvmlDeviceGetUtilizationRates(Device*, Utilization* utilization) {
  *utilization = {number("FAKE_BUSY_PERCENT", 0), 0};
  return 0;
}
/// Reports this process and as many others as FAKE_OTHER_PROCESSES says, with one MiB each.
int nvmlDeviceGetComputeRunningProcesses_v3(Device*, unsigned* count, Process* processes) {
  const unsigned others = number("FAKE_OTHER_PROCESSES", 0);
  for (unsigned i = 0; i < others; ++i) processes[i] = {0x7ffffff0u + i, 1ull << 20, 0, 0};
  // The process ids are those of another container, so that one of them counts as the program itself.
  processes[others] = {0x7fffff00u, 0, 0, 0};
  *count = others + 1;
  return 0;
}
}
