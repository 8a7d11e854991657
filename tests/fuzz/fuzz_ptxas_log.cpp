// fuzz_ptxas_log.cpp -- whatever a compiler's log has, no number read from it is negative, and it has a first line to
// report.
#include "fuzz.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/ptxas_log.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view log = fuzz::text_of(data, size);
  const KernelResources resources = parse_ptxas_log(log);
  for (const int number : {resources.registers, resources.stack_bytes, resources.spill_store_bytes,
                           resources.spill_load_bytes, resources.static_shared_bytes}) {
    fuzz::expect(number >= 0, "no resource is negative");
  }
  const std::string error = first_error(log);
  fuzz::expect(!error.empty() && error.find('\n') == std::string::npos, "an error is one line");
  return 0;
}
