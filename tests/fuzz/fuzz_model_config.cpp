// fuzz_model_config.cpp -- any config.json gives heads that fit each other, or an error that names the file.
#include "cli/models/model_config.hpp"
#include "fuzz.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model = model_from_config(fuzz::text_of(data, size), "config.json");
  if (!model) {
    fuzz::expect(model.error().message.find("config.json") != std::string::npos, "an error names the file");
    return 0;
  }
  fuzz::expect(!model->shapes.empty(), "a model has attention layers");
  for (const LayerShape& shape : model->shapes) {
    fuzz::expect(shape.q_heads >= 1 && shape.kv_heads >= 1 && shape.head_dim >= 1, "a layer has heads");
    fuzz::expect(shape.q_heads % shape.kv_heads == 0, "KV heads divide query heads");
    fuzz::expect(!shape.layers.empty() && shape.layers.back() < model->layers,
                 "a shape is that of layers of the model");
  }
  return 0;
}
