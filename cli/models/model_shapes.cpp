#include "cli/models/model_shapes.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {

std::string describe_layers(const ModelShapes& model, const LayerShape& shape) {
  if (shape.layers.empty() || model.layers == 0 || shape.layers.size() == static_cast<std::size_t>(model.layers))
    return "";
  return fmt::format("{} of {} layers", shape.layers.size(), model.layers);
}

std::vector<std::string> notes_of(const ModelShapes& model) {
  std::vector<std::string> notes;
  for (const OtherLayers& others : model.others)
    notes.push_back(fmt::format("{} of {} layers of {} are {}.", others.layers, model.layers, model.name, others.what));
  return notes;
}

}  // namespace v1
}  // namespace leanattn
