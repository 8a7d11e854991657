#include "cli/flags/shape_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <optional>

#include "cli/flags/aliases.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/models/model_catalogue.hpp"
#include "cli/models/model_config.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

/// Leaves the shapes of the layers that --layers names.
Result<void> choose_layers(const std::string& layers, ModelShapes& model) {
  if (layers.empty()) return {};
  const auto wrong = [&](const std::string& message, const char* hint) {
    return fail(ErrorCode::invalid_argument, fmt::format("--layers {}: {}", layers, message), hint);
  };
  std::vector<LayerShape> chosen;
  if (layers == "full" || layers == "window") {
    for (const LayerShape& shape : model.shapes) {
      if ((layers == "window") == (shape.features.window > 0)) chosen.push_back(shape);
    }
    if (chosen.empty())
      return wrong(model.name.empty()   ? "no model was named"
                   : layers == "window" ? "no layer of " + model.name + " has a window"
                                        : "every layer of " + model.name + " has a window",
                   "Leave --layers out, or give --window.");
  } else {
    const Result<std::int64_t> layer = parse_size("--layers", layers, 0, kMaxInt);
    if (!layer)
      return fail(ErrorCode::invalid_argument, fmt::format("--layers '{}' is not a kind of layers", layers),
                  "Give full, window, or the number of a layer of --model-config.");
    for (const LayerShape& shape : model.shapes) {
      if (std::find(shape.layers.begin(), shape.layers.end(), *layer) != shape.layers.end()) chosen.push_back(shape);
    }
    if (chosen.empty() && *layer < model.layers)
      return wrong(fmt::format("layer {} of {} is no attention", *layer, model.name),
                   "Leave --layers out, or name another layer.");
    if (chosen.empty())
      return wrong(model.layers == 0 ? "only layers of --model-config have numbers"
                                     : fmt::format("{} has {} layers, counted from 0", model.name, model.layers),
                   "Leave --layers out, or give full or window.");
  }
  model.shapes = std::move(chosen);
  return {};
}

/// The layers of a model, a config.json or the three flags. The flags override a model's numbers.
Result<ModelShapes> resolve_model(const ShapeFlags& flags) {
  if (!flags.model.empty() && !flags.model_config.empty()) {
    return fail(ErrorCode::invalid_argument, "--model and --model-config cannot be given together");
  }
  ModelShapes model{.name = {}, .shapes = {LayerShape{}}};
  if (!flags.model.empty()) {
    const Result<ModelShape> found = find_model(flags.model);
    if (!found) return tl::unexpected(found.error());
    model = shapes_of(*found);
  } else if (!flags.model_config.empty()) {
    Result<ModelShapes> found = model_from_config_file(flags.model_config);
    if (!found) return found;
    model = *std::move(found);
  }
  struct Field {
    const char* flag;
    const std::string& text;
    int LayerShape::*value;
  };
  for (const Field& field :
       {Field{"--heads", flags.heads, &LayerShape::q_heads}, Field{"--kv-heads", flags.kv_heads, &LayerShape::kv_heads},
        Field{"--head-dim", flags.head_dim, &LayerShape::head_dim}}) {
    if (field.text.empty()) continue;
    const Result<std::int64_t> value = parse_size(field.flag, field.text, 1, kMaxInt);
    if (!value) return tl::unexpected(value.error());
    for (LayerShape& shape : model.shapes) shape.*field.value = static_cast<int>(*value);
  }
  // Without --kv-heads, every query head has a KV head of its own.
  LayerShape& first = model.shapes.front();
  if (first.q_heads > 0 && first.kv_heads == 0) first.kv_heads = first.q_heads;
  std::vector<std::string> given, missing;
  for (const auto& [flag, text] : {std::pair("--heads", &flags.heads), std::pair("--kv-heads", &flags.kv_heads),
                                   std::pair("--head-dim", &flags.head_dim)}) {
    if (!text->empty()) given.push_back(fmt::format("{} {}", flag, *text));
  }
  if (first.q_heads == 0) missing.emplace_back("--heads");
  if (first.head_dim == 0) missing.emplace_back("--head-dim");
  if (!missing.empty() && !given.empty()) {
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("{} was given without {}", fmt::join(given, " "), fmt::join(missing, " and ")),
        fmt::format("Give {}, too, or name a model with --model or --model-config.", fmt::join(missing, " and ")));
  }
  if (!missing.empty()) {
    return fail(
        ErrorCode::invalid_argument, "no model was given",
        "Name one with --model (llama-3-8b ...), --model-config config.json, or --heads, --kv-heads and --head-dim.");
  }
  return model;
}

/// "25 of 30 layers of FILE", "the layers with a window of 512 tokens of gemma-3-1b".
std::string layers_in_words(const ModelShapes& model, const LayerShape& shape) {
  const std::string counted = describe_layers(model, shape);
  if (!counted.empty()) return fmt::format("{} of {}", counted, model.name);
  if (shape.features.window > 0)
    return fmt::format("The layers with a window of {} tokens of {}", shape.features.window, model.name);
  return fmt::format("The layers of {}", model.name);
}

/// The workload of one of a model's shapes.
Result<Workload> workload_of(const ShapeFlags& flags, const ModelShapes& model, const LayerShape& layer_shape,
                             const std::string& batch_default, const std::string& context_default) {
  Workload workload{.model = model.name, .problem = {}, .shapes = {}, .layers = describe_layers(model, layer_shape)};
  DecodeProblem& problem = workload.problem;
  problem.q_heads = layer_shape.q_heads;
  problem.kv_heads = layer_shape.kv_heads;
  problem.head_dim = layer_shape.head_dim;
  problem.dtype = model.dtype.value_or(DType::bf16);
  problem.lse = flags.lse;
  problem.pdl = flags.pdl;
  if (!flags.dtype.empty()) {
    const Result<DType> dtype = parse_dtype(without_alias(flags.dtype));
    if (!dtype) return tl::unexpected(dtype.error());
    problem.dtype = *dtype;
  }
  if (!flags.layout.empty()) {
    const Result<KvLayout> layout = parse_kv_layout(without_alias(flags.layout));
    if (!layout) return tl::unexpected(layout.error());
    problem.layout = *layout;
  }
  Result<Features> features = with_flags(layer_shape.features, flags.features, problem.dtype);
  if (!features) return tl::unexpected(features.error());
  problem.features = *std::move(features);
  if (const Result<void> valid = validate(problem); !valid) return tl::unexpected(valid.error());
  problem = canonical(std::move(problem));

  const auto batches = parse_size_list("--batch", flags.batch.empty() ? batch_default : flags.batch, 1, kMaxInt);
  if (!batches) return tl::unexpected(batches.error());
  // The kernels take context lengths as 32-bit integers.
  const auto contexts =
      parse_size_list("--context", flags.context.empty() ? context_default : flags.context, 1, kMaxInt);
  if (!contexts) return tl::unexpected(contexts.error());
  std::int64_t max_batch = 0;
  if (!flags.max_batch.empty()) {
    const auto parsed = parse_size("--max-batch", flags.max_batch, 1, kMaxInt);
    if (!parsed) return tl::unexpected(parsed.error());
    max_batch = *parsed;
  }
  for (const std::int64_t batch : *batches) {
    if (max_batch != 0 && batch > max_batch) {
      return fail(ErrorCode::invalid_argument,
                  fmt::format("--batch {} is larger than --max-batch {}", batch, max_batch));
    }
    for (const std::int64_t context : *contexts) {
      const Shape shape{.batch = static_cast<int>(batch),
                        .max_batch = static_cast<int>(max_batch),
                        .longest_context = context,
                        .total_context = 0};
      if (const Result<void> valid = validate(problem, shape); !valid) return tl::unexpected(valid.error());
      workload.shapes.push_back(shape);
    }
  }
  return workload;
}

}  // namespace

void add_shape_flags(CLI::App& command, ShapeFlags& flags, const std::string& batch_default,
                     const std::string& context_default) {
  constexpr const char* kGroup = "Shape";
  const auto option = [&](const char* names, std::string& value, const std::string& help) {
    return command.add_option(names, value, help)->group(kGroup);
  };
  option("--model", flags.model, "One of the built-in models, such as llama-3-8b; `leanattn models` lists them")
      ->type_name("MODEL");
  option("--model-config", flags.model_config, "The Hugging Face config.json of a model")->type_name("FILE");
  option(
      "--layers", flags.layers,
      "Of a model whose layers differ: those without a window, those with one, or those that are as layer N, counted "
      "from 0; default: all, for commands about one problem full")
      ->type_name("full|window|N");
  option("--heads", flags.heads, "The number of query heads")->type_name("N");
  option("--kv-heads", flags.kv_heads, "The number of KV heads, which divides the number of query heads")
      ->type_name("N");
  option("--head-dim", flags.head_dim, "The head size: a multiple of 16 up to 512 (--latent: 640)")->type_name("N");
  option("--dtype", flags.dtype, "The type of Q and O; default: the model's, else bf16")->type_name("bf16|fp16");
  option(
      "--layout", flags.layout,
      "How K and V lie in memory. contiguous: the tokens of a KV head are adjacent; strided: any token stride; default "
      "contiguous")
      ->type_name("contiguous|strided");
  command.add_flag("--lse", flags.lse, "The kernel also writes the log-sum-exp of every query row")->group(kGroup);
  command
      .add_flag("--pdl", flags.pdl,
                "Launches may overlap the kernel in front of them (programmatic dependent launch, sm_90 and later)")
      ->group(kGroup);
  option("--batch", flags.batch, "Batch sizes, separated by commas; default " + batch_default)->type_name("LIST");
  option("--max-batch", flags.max_batch,
         "The largest batch that the workspace has room for; default: each batch itself")
      ->type_name("N");
  option("--context", flags.context, "Context lengths in tokens, such as 1k,64k; default " + context_default)
      ->type_name("LIST");
  add_feature_flags(command, flags.features);
}

std::vector<CLI::Option*> shape_options(CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* option) { return option->get_group() == "Shape" || option->get_group() == "Features"; });
}

Result<ModelWorkloads> resolve_all(const ShapeFlags& flags, const std::string& batch_default,
                                   const std::string& context_default) {
  Result<ModelShapes> model = resolve_model(flags);
  if (!model) return tl::unexpected(model.error());
  ModelWorkloads all{.model = {}, .workloads = {}, .notes = notes_of(*model)};
  if (!model->name.empty()) all.model = *model;
  if (const Result<void> chosen = choose_layers(flags.layers, *model); !chosen) return tl::unexpected(chosen.error());
  if (!model->other_dtype.empty() && flags.dtype.empty()) {
    all.notes.push_back(
        fmt::format("{} has {} weights, for which there is no kernel. This is about a cache of bf16; "
                    "--dtype fp16 is about one of fp16.",
                    model->name, model->other_dtype));
  }
  std::optional<Error> first_fault;
  for (const LayerShape& layer_shape : model->shapes) {
    Result<Workload> workload = workload_of(flags, *model, layer_shape, batch_default, context_default);
    if (!workload) {
      // A wrong flag is wrong for every shape.
      if (model->shapes.size() > 1)
        all.notes.push_back(
            fmt::format("{} are left out: {}.", layers_in_words(*model, layer_shape), workload.error().message));
      if (!first_fault) first_fault = workload.error();
      continue;
    }
    for (const std::string& remark : layer_shape.remarks) {
      const std::string note =
          model->shapes.size() == 1 ? remark : layers_in_words(*model, layer_shape) + ": " + remark;
      if (std::find(all.notes.begin(), all.notes.end(), note) == all.notes.end()) all.notes.push_back(note);
    }
    const auto same = [&](const Workload& other) { return other.problem == workload->problem; };
    if (std::none_of(all.workloads.begin(), all.workloads.end(), same)) all.workloads.push_back(*std::move(workload));
  }
  if (all.workloads.empty()) return tl::unexpected(*first_fault);
  return all;
}

Result<ModelWorkloads> resolve_all(const Console& console, const ShapeFlags& flags, const std::string& batch_default,
                                   const std::string& context_default) {
  Result<ModelWorkloads> all = resolve_all(flags, batch_default, context_default);
  if (all) {
    for (const std::string& text : all->notes) note(console, text);
  }
  return all;
}

Result<Workload> resolve(const ShapeFlags& flags, const std::string& batch_default,
                         const std::string& context_default) {
  Result<ModelWorkloads> all = resolve_all(flags, batch_default, context_default);
  if (!all) return tl::unexpected(all.error());
  Workload workload = std::move(all->workloads.front());
  workload.notes = std::move(all->notes);
  if (all->workloads.size() > 1) {
    std::string others;
    for (std::size_t i = 1; i < all->workloads.size(); ++i)
      others += (i == 1 ? "" : "; ") + describe(all->workloads[i].problem);
    const int window = all->workloads[1].problem.features.window;
    workload.notes.push_back(
        all->workloads.size() == 2 && window > 0 && workload.problem.features.window == 0
            ? fmt::format("Some layers of {} have a window of {} tokens. This is about the others; --layers window is "
                          "about those.",
                          workload.model, window)
            : fmt::format("The layers of {} differ. This is about {}; --layers N is about layer N. Others: {}.",
                          workload.model, describe(workload.problem), others));
  }
  return workload;
}

Result<Workload> resolve(const Console& console, const ShapeFlags& flags, const std::string& batch_default,
                         const std::string& context_default) {
  Result<Workload> workload = resolve(flags, batch_default, context_default);
  if (workload) {
    for (const std::string& text : workload->notes) note(console, text);
  }
  return workload;
}

std::string describe(const DecodeProblem& problem) {
  std::string features;
  for (const char letter : features_name(problem.features)) {
    if (letter == '_') {
      features += ", ";
    } else {
      features += letter;
    }
  }
  const std::string link =
      problem.group_link == GroupLink::unknown ? "" : fmt::format(", {}", to_string(problem.group_link));
  return fmt::format("{}/{} heads x {}, {}{}{}{}{}{}", problem.q_heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.dtype), problem.layout == KvLayout::strided ? ", strided" : "",
                     problem.lse ? ", lse" : "", problem.pdl ? ", pdl" : "", features, link);
}

std::string describe(const Shape& shape) {
  const std::string longest = format_size(shape.longest_context);
  if (canonical(shape).mix != QueryMix{}) return detail::shape_name(shape);
  if (canonical(shape).total_context == 0) return fmt::format("batch {}, context {}", shape.batch, longest);
  return fmt::format("batch {}, context up to {}, {} tokens in all", shape.batch, longest, shape.total_context);
}

std::string contexts_name(const Shape& shape) {
  return canonical(shape).mix != QueryMix{} ? detail::shape_name(shape) : format_size(shape.longest_context);
}

}  // namespace v1
}  // namespace leanattn
