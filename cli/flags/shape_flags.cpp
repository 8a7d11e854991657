#include "cli/flags/shape_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "cli/flags/aliases.hpp"
#include "cli/flags/model_catalogue.hpp"
#include "cli/flags/model_config.hpp"
#include "cli/flags/sizes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

/// Leaves the problem of the layers that --layers names. Without the flag those without a window are meant.
Result<void> choose_layers(const ShapeFlags& flags, ModelShape& model, std::vector<std::string>& notes) {
  const bool some = model.layer_window > 0;
  if (flags.layers.empty()) {
    if (some && flags.features.window.empty()) {
      notes.push_back(fmt::format(
          "Some layers of {} have a window of {} tokens. This is about the others; --layers window is about those.",
          model.name, model.layer_window));
    }
    return {};
  }
  if (flags.layers != "full" && flags.layers != "window") {
    return fail(ErrorCode::invalid_argument, fmt::format("--layers '{}' is not a kind of layers", flags.layers),
                "Give full or window.");
  }
  const bool window = flags.layers == "window";
  if (!some && window != (model.features.window > 0)) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("--layers {}: {}", flags.layers,
                            model.name.empty() ? "no model was named"
                            : window           ? "no layer of " + model.name + " has a window"
                                               : "every layer of " + model.name + " has a window"),
                "Leave --layers out, or give --window.");
  }
  if (some && window) model.features.window = model.layer_window;
  return {};
}

/// Heads, head size and features of a model, a config.json or the three flags. The flags override a model's numbers.
Result<ModelShape> resolve_model(const ShapeFlags& flags) {
  if (!flags.model.empty() && !flags.model_config.empty()) {
    return fail(ErrorCode::invalid_argument, "--model and --model-config cannot be given together");
  }
  ModelShape model;
  if (!flags.model.empty()) {
    Result<ModelShape> found = find_model(flags.model);
    if (!found) return found;
    model = *found;
  } else if (!flags.model_config.empty()) {
    Result<ModelShape> found = model_from_config_file(flags.model_config);
    if (!found) return found;
    model = *found;
  }
  struct Field {
    const char* flag;
    const std::string& text;
    int& value;
  };
  for (const Field& field :
       {Field{"--heads", flags.heads, model.q_heads}, Field{"--kv-heads", flags.kv_heads, model.kv_heads},
        Field{"--head-dim", flags.head_dim, model.head_dim}}) {
    if (field.text.empty()) continue;
    const Result<std::int64_t> value = parse_size(field.flag, field.text, 1, kMaxInt);
    if (!value) return tl::unexpected(value.error());
    field.value = static_cast<int>(*value);
  }
  // Without --kv-heads, every query head has a KV head of its own.
  if (model.q_heads > 0 && model.kv_heads == 0) model.kv_heads = model.q_heads;
  std::vector<std::string> given, missing;
  for (const auto& [flag, text] : {std::pair("--heads", &flags.heads), std::pair("--kv-heads", &flags.kv_heads),
                                   std::pair("--head-dim", &flags.head_dim)}) {
    if (!text->empty()) given.push_back(fmt::format("{} {}", flag, *text));
  }
  if (model.q_heads == 0) missing.emplace_back("--heads");
  if (model.head_dim == 0) missing.emplace_back("--head-dim");
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
  option("--layers", flags.layers,
         "Of a model in which only some layers have a window: those without it or those with it; default full")
      ->type_name("full|window");
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

Result<Workload> resolve(const ShapeFlags& flags, const std::string& batch_default,
                         const std::string& context_default) {
  Workload workload;
  Result<ModelShape> model = resolve_model(flags);
  if (!model) return tl::unexpected(model.error());
  if (const Result<void> chosen = choose_layers(flags, *model, workload.notes); !chosen)
    return tl::unexpected(chosen.error());
  if (!model->other_dtype.empty() && flags.dtype.empty()) {
    workload.notes.push_back(
        fmt::format("{} has {} weights, for which there is no kernel. This is about a cache of bf16; "
                    "--dtype fp16 is about one of fp16.",
                    model->name, model->other_dtype));
  }
  workload.model = model->name;
  DecodeProblem& problem = workload.problem;
  problem.q_heads = model->q_heads;
  problem.kv_heads = model->kv_heads;
  problem.head_dim = model->head_dim;
  problem.dtype = model->dtype.value_or(DType::bf16);
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
  Result<Features> features = with_flags(model->features, flags.features, problem.dtype);
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
  if (canonical(shape).total_context == 0) return fmt::format("batch {}, context {}", shape.batch, longest);
  return fmt::format("batch {}, context up to {}, {} tokens in all", shape.batch, longest, shape.total_context);
}

}  // namespace v1
}  // namespace leanattn
