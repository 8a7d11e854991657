#include "cli/models/model_shapes.hpp"

#include <fmt/format.h>

#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
inline namespace v1 {

std::string describe_layers(const ModelShapes& model, const LayerShape& shape) {
  if (shape.layers.empty() || model.layers == 0 || shape.layers.size() == static_cast<std::size_t>(model.layers))
    return "";
  return fmt::format("{} of {} layers", shape.layers.size(), model.layers);
}

std::string leave_output(RecurrentProblem& problem, Arch arch) {
  RecurrentProblem rest = problem;
  rest.output_gate = OutputGate::none, rest.norm_heads = 1;
  if (!recurrent_search_space(arch, problem).empty() || recurrent_search_space(arch, rest).empty()) return "";
  const std::string output = describe_output(problem);
  const std::string why = problem.v_heads % problem.norm_heads != 0
                              ? "a group lies on several GPUs"
                              : fmt::format("no kernel of {} has it", to_string(arch));
  problem = rest;
  return fmt::format("{} is left to the engine: {}.", output, why);
}

std::vector<std::string> notes_of(const ModelShapes& model) {
  std::vector<std::string> notes;
  for (const OtherLayers& others : model.others)
    notes.push_back(fmt::format("{} of {} layers of {} are {}.", others.layers, model.layers, model.name, others.what));
  return notes;
}

}  // namespace v1
}  // namespace leanattn
