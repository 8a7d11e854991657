// fuzz_config.cpp -- any text is read as a valid configuration that reads back as itself, or is an error.
#include "fuzz.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/problem.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = config_from_json(fuzz::text_of(data, size));
  if (!config) {
    fuzz::expect(!config.error().message.empty(), "an error has a message");
    return 0;
  }
  fuzz::expect(config->grid >= 1 && config->segment_cost >= 0, "a grid has CTAs");
  fuzz::expect(validate(config->spec).has_value(), "what was read can be generated");
  fuzz::expect(!kernel_name(config->spec).empty() && layout_of(config->spec).shared_bytes >= 0, "a kernel has a name");
  const auto again = config_from_json(to_json(*config));
  fuzz::expect(again && *again == *config, "a configuration reads back as itself");
  return 0;
}
