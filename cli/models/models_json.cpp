#include "cli/models/models_json.hpp"

#include <nlohmann/json.hpp>

#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
inline namespace v1 {

Result<DecodeProblem> problem_of(const ModelShapes& model, const LayerShape& shape) {
  DecodeProblem problem{.q_heads = shape.q_heads,
                        .kv_heads = shape.kv_heads,
                        .head_dim = shape.head_dim,
                        .dtype = model.dtype.value_or(DType::bf16),
                        .features = shape.features};
  if (const Result<void> valid = validate(problem); !valid) return tl::unexpected(valid.error());
  return problem;
}

nlohmann::ordered_json to_json(const ModelShapes& model) {
  using Json = nlohmann::ordered_json;
  Json shapes = Json::array();
  for (const LayerShape& shape : model.shapes) {
    Json json{{"layers", shape.layers.empty() ? Json(nullptr) : Json(shape.layers.size())},
              {"which", shape.layers},
              {"kind", shape.kind},
              {"q_heads", shape.q_heads},
              {"kv_heads", shape.kv_heads},
              {"head_dim", shape.head_dim},
              {"features", Json::parse(to_json(shape.features))},
              {"chunk", shape.chunk},
              {"selected", shape.selected},
              {"position_bias", shape.position_bias},
              {"remarks", shape.remarks}};
    if (const auto problem = problem_of(model, shape); !problem) json["unsupported"] = problem.error().message;
    shapes.push_back(std::move(json));
  }
  Json others = Json::array();
  for (const OtherLayers& other : model.others) others.push_back({{"layers", other.layers}, {"what", other.what}});
  Json recurrent = Json::array();
  for (const RecurrentLayers& layers : model.recurrent) {
    RecurrentProblem problem = layers.problem;
    const std::string left = leave_output(problem, RecurrentSpec{}.arch);
    recurrent.push_back({{"layers", layers.layers.size()},
                         {"which", layers.layers},
                         {"problem", Json::parse(to_json(problem))},
                         {"left", left}});
    if (const auto valid = validate(problem); !valid) recurrent.back()["unsupported"] = valid.error().message;
  }
  return {{"name", model.name},
          {"model_type", model.model_type},
          {"layers", model.layers > 0 ? Json(model.layers) : Json(nullptr)},
          {"dtype", model.dtype ? Json(to_string(*model.dtype)) : Json(nullptr)},
          {"weights", model.dtype ? std::string(to_string(*model.dtype)) : model.other_dtype},
          {"shapes", std::move(shapes)},
          {"others", std::move(others)},
          {"recurrent", std::move(recurrent)}};
}

}  // namespace v1
}  // namespace leanattn
