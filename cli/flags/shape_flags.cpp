#include "cli/flags/shape_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "cli/flags/model_catalogue.hpp"
#include "cli/flags/model_config.hpp"
#include "cli/flags/sizes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

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
  if (model.q_heads == 0 || model.head_dim == 0) {
    return fail(
        ErrorCode::invalid_argument, "no model was given",
        "Name one with --model (llama-3-8b ...), --model-config config.json, or --heads, --kv-heads and --head-dim.");
  }
  return model;
}

}  // namespace

void add_shape_flags(CLI::App& command, ShapeFlags& flags, const std::string& batch_default,
                     const std::string& context_default) {
  std::string models;
  for (const ModelShape& model : model_catalogue()) models += (models.empty() ? "" : ", ") + model.name;
  constexpr const char* kGroup = "Shape";
  const auto option = [&](const char* names, std::string& value, const std::string& help) {
    return command.add_option(names, value, help)->group(kGroup);
  };
  option("--model", flags.model, "One of the built-in models: " + models)->type_name("NAME");
  option("--model-config", flags.model_config, "The Hugging Face config.json of a model")->type_name("FILE");
  option("--heads", flags.heads, "The number of query heads")->type_name("N");
  option("--kv-heads", flags.kv_heads, "The number of KV heads, which divides the number of query heads")
      ->type_name("N");
  option("--head-dim", flags.head_dim, "The head size: a multiple of 16 up to 512")->type_name("N");
  option("--dtype", flags.dtype, "The type of Q and O, bf16 or fp16; default: the model's, else bf16")
      ->type_name("TYPE");
  option(
      "--layout", flags.layout,
      "How K and V lie in memory. contiguous: the tokens of a KV head are adjacent; strided: any token stride; default "
      "contiguous")
      ->type_name("LAYOUT");
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

Result<Workload> resolve(const ShapeFlags& flags, const std::string& batch_default,
                         const std::string& context_default) {
  Workload workload;
  const Result<ModelShape> model = resolve_model(flags);
  if (!model) return tl::unexpected(model.error());
  workload.model = model->name;
  DecodeProblem& problem = workload.problem;
  problem.q_heads = model->q_heads;
  problem.kv_heads = model->kv_heads;
  problem.head_dim = model->head_dim;
  problem.dtype = model->dtype.value_or(DType::bf16);
  problem.lse = flags.lse;
  problem.pdl = flags.pdl;
  if (!flags.dtype.empty()) {
    const Result<DType> dtype = parse_dtype(flags.dtype);
    if (!dtype) return tl::unexpected(dtype.error());
    problem.dtype = *dtype;
  }
  if (!flags.layout.empty()) {
    const Result<KvLayout> layout = parse_kv_layout(flags.layout);
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

std::string describe(const DecodeProblem& problem) {
  std::string features;
  for (const char letter : features_name(problem.features)) {
    if (letter == '_') {
      features += ", ";
    } else {
      features += letter;
    }
  }
  return fmt::format("{}/{} heads x {}, {}{}{}{}{}", problem.q_heads, problem.kv_heads, problem.head_dim,
                     to_string(problem.dtype), problem.layout == KvLayout::strided ? ", strided" : "",
                     problem.lse ? ", lse" : "", problem.pdl ? ", pdl" : "", features);
}

std::string describe(const Shape& shape) {
  return fmt::format("batch {}, context {}", shape.batch, format_size(shape.longest_context));
}

}  // namespace v1
}  // namespace leanattn
