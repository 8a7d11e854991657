// fuzz_model_config.cpp -- any config.json gives heads that fit each other, or an error that names the file.
#include "cli/flags/model_config.hpp"
#include "fuzz.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model = model_from_config(fuzz::text_of(data, size), "config.json");
  if (!model) {
    fuzz::expect(model.error().message.find("config.json") != std::string::npos, "an error names the file");
    return 0;
  }
  fuzz::expect(model->q_heads >= 1 && model->kv_heads >= 1 && model->head_dim >= 1, "a model has heads");
  fuzz::expect(model->q_heads % model->kv_heads == 0, "KV heads divide query heads");
  return 0;
}
