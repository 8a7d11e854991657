#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/model_catalogue.hpp"
#include "cli/help/command_page.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::string others(const Features& features) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (features.soft_cap != 0) add(fmt::format("soft cap {}", features.soft_cap));
  if (features.sink_logits) add("sink logits");
  return text.empty() ? "-" : text;
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
  if (console.json) {
    print_json({{"schema_version", 1}, {"models", std::move(models)}});
    return kExitOk;
  }
  print_table(table);
  note(console,
       "A window is that of some layers. --layers window is about these, and without it the others are meant.");
  return kExitOk;
}

}  // namespace

Command add_models(CLI::App& program) {
  CLI::App* app = program.add_subcommand("models", "List the models that --model names");
  set_examples(*app, {{"List them as JSON", "leanattn models --json"}});
  return {app, run_models};
}

}  // namespace v1
}  // namespace leanattn
