#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/console/table.hpp"
#include "cli/help/command_page.hpp"
#include "cli/models/model_catalogue.hpp"
#include "cli/models/model_config.hpp"
#include "cli/models/models_json.hpp"
#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::string others(const Features& features) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (features.soft_cap != 0) add(fmt::format("soft cap {}", features.soft_cap));
  if (features.sink_logits) add("sink logits");
  if (features.alibi) add("ALiBi");
  if (features.latent) add("latent");
  if (features.v_head_dim > 0) add(fmt::format("V of {}", features.v_head_dim));
  return text.empty() ? "-" : text;
}

/// The same of a shape, and what no kernel has.
std::string others(const LayerShape& shape) {
  std::string text = others(shape.features);
  const auto add = [&](const std::string& word) { text = text == "-" ? word : text + ", " + word; };
  if (shape.chunk > 0) add(fmt::format("chunks of {}", shape.chunk));
  if (shape.selected > 0) add("selections");
  if (shape.position_bias) add("bias by distance");
  return text;
}

/// The layers of the model that a config.json describes.
int run_config(const Console& console, const std::string& file) {
  const Result<ModelShapes> model = model_from_config_file(file);
  if (!model) return report_error(model.error());
  if (console.json) {
    nlohmann::ordered_json document{{"schema_version", 1}};
    document.update(to_json(*model));
    print_json(document);
    return kExitOk;
  }
  Table table{.headings = {"layers", "heads", "KV heads", "head size", "window", "also"},
              .rows = {},
              .right_aligned = "rrrrrl"};
  for (const LayerShape& shape : model->shapes) {
    table.rows.push_back({fmt::format("{} of {}", shape.layers.size(), model->layers), std::to_string(shape.q_heads),
                          std::to_string(shape.kv_heads), std::to_string(shape.head_dim),
                          shape.features.window == 0 ? "-" : std::to_string(shape.features.window), others(shape)});
  }
  print_table(table);
  for (const std::string& text : notes_of(*model)) note(console, text);
  for (const RecurrentLayers& layers : model->recurrent) {
    RecurrentProblem problem = layers.problem;
    const std::string left = leave_output(problem, RecurrentSpec{}.arch);
    const auto valid = validate(problem);
    note(console, fmt::format("{} of {} layers keep a recurrent state: {}.{}{}", layers.layers.size(), model->layers,
                              describe(problem), left.empty() ? "" : " " + left,
                              valid ? "" : fmt::format(" There is no kernel: {}.", valid.error().message)));
  }
  for (const LayerShape& shape : model->shapes) {
    const std::string which =
        model->shapes.size() == 1 ? "" : fmt::format("{} of {} layers: ", shape.layers.size(), model->layers);
    for (const std::string& remark : shape.remarks) note(console, which + remark);
    if (const auto problem = problem_of(*model, shape); !problem)
      note(console, fmt::format("{}There is no kernel: {}.", which, problem.error().message));
  }
  return kExitOk;
}

int run_models(const Console& console) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  Table table{.headings = {"model", "heads", "KV heads", "head size", "dtype", "window", "also"},
              .rows = {},
              .right_aligned = "lrrrlrl"};
  for (const ModelShape& model : model_catalogue()) {
    const std::string dtype(to_string(model.dtype.value_or(DType::bf16)));
    table.rows.push_back({model.name, std::to_string(model.q_heads), std::to_string(model.kv_heads),
                          std::to_string(model.head_dim), dtype,
                          model.layer_window == 0 ? "-" : std::to_string(model.layer_window), others(model.features)});
    models.push_back({{"name", model.name},
                      {"q_heads", model.q_heads},
                      {"kv_heads", model.kv_heads},
                      {"head_dim", model.head_dim},
                      {"dtype", dtype},
                      {"layer_window", model.layer_window},
                      {"features", nlohmann::ordered_json::parse(to_json(model.features))}});
  }
  nlohmann::ordered_json recurrent = nlohmann::ordered_json::array();
  Table states{.headings = {"model", "recurrent state"}, .rows = {}, .right_aligned = "ll"};
  for (const RecurrentModel& model : recurrent_catalogue()) {
    states.rows.push_back({model.name, describe(model.problem)});
    recurrent.push_back({{"name", model.name}, {"problem", nlohmann::ordered_json::parse(to_json(model.problem))}});
  }
  if (console.json) {
    print_json({{"schema_version", 1}, {"models", std::move(models)}, {"recurrent", std::move(recurrent)}});
    return kExitOk;
  }
  print_table(table);
  print("\n");
  print_table(states);
  note(console,
       "A window is that of some layers. --layers window is about these, and --layers full about the others. Models "
       "with "
       "a recurrent state are for `leanattn recurrent`.");
  return kExitOk;
}

}  // namespace

Command add_models(CLI::App& program) {
  auto file = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand(
      "models", "List the models that --model names, or the layers that a config.json describes");
  app->add_option("--model-config", *file, "The Hugging Face config.json of a model, whose layers are listed instead")
      ->type_name("FILE");
  set_examples(*app, {{"List them as JSON", "leanattn models --json"},
                      {"Say what the layers of a model are", "leanattn models --model-config config.json"}});
  return {app,
          [file](const Console& console) { return file->empty() ? run_models(console) : run_config(console, *file); }};
}

}  // namespace v1
}  // namespace leanattn
