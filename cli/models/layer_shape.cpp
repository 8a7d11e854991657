#include "cli/models/layer_shape.hpp"

#include <fmt/format.h>

#include <cmath>

#include "cli/models/read_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

/// The roles of a kind: what each quantity of a layer is called.
class Roles {
 public:
  Roles(const ConfigFields& fields, const Json& kind, int layer) : fields_(fields), kind_(kind), layer_(layer) {}

  /// The value of a role, which is a whole number; 0: the kind has no such role, or its fields are null.
  int whole(const char* role) {
    const double value = real(role);
    if (value != std::floor(value)) {
      complain(fmt::format("\"{}\" is {}, not a whole number", field_of(role), value));
      return 0;
    }
    return static_cast<int>(value);
  }

  /// The value of a role, which any number may be.
  double real(const char* role) {
    const auto expressions = kind_.find(role);
    if (error || expressions == kind_.end()) return 0;
    const auto value = fields_.first_of(*expressions, layer_);
    if (!value) error = value.error();
    return value && *value ? **value : 0;
  }

  /// The word of a role, of which the first counts whose flags are as they should be; empty: none.
  std::string word(const char* role) {
    const auto expressions = kind_.find(role);
    if (error || expressions == kind_.end()) return "";
    for (const Json& expression : *expressions) {
      const auto word = fields_.behind_flags(expression.get_ref<const std::string&>(), layer_);
      if (!word) error = word.error();
      if (!word) return "";
      if (*word) return std::string(**word);
    }
    return "";
  }

  /// The value of a role that every layer of this kind has.
  int required(const char* role) {
    const int value = whole(role);
    if (error || value > 0) return value;
    const std::string field = field_of(role);
    const Json* given = fields_.whole(field);
    complain(given == nullptr ? fmt::format("{} missing", all_fields_of(role))
                              : fmt::format("\"{}\" is {}, which is out of range", field, given->dump()));
    return 1;
  }

  bool has(const char* role) { return real(role) != 0; }

  void complain(std::string_view message) {
    if (!error) error = bad_config(fields_.file(), message).value();
  }

  std::optional<Error> error;

 private:
  /// The first field that a role's expressions name.
  std::string field_of(const char* role) const {
    std::string text = kind_.at(role).at(0);
    if (const auto question = text.find(" ? "); question != std::string::npos) text.erase(0, question + 3);
    if (const auto colon = text.find(':'); colon != std::string::npos) text.erase(0, colon + 1);
    return text.substr(0, text.find(' '));
  }
  std::string all_fields_of(const char* role) const {
    std::string first = field_of(role);
    if (kind_.at(role).size() < 2) return fmt::format("\"{}\" is", first);
    const std::string second = kind_.at(role).back().get<std::string>();
    return fmt::format("\"{}\" and \"{}\" are both", first, second.substr(0, second.find(' ')));
  }

  const ConfigFields& fields_;
  const Json& kind_;
  int layer_;
};

/// What the layer does that no kernel has, for the user to read.
void add_remarks(LayerShape& shape, Roles& roles) {
  shape.chunk = roles.whole("chunk");
  shape.selected = roles.whole("selected");
  shape.position_bias = roles.has("position_bias");
  if (shape.chunk > 0)
    shape.remarks.push_back(fmt::format(
        "Tokens see those of their own chunk of {} tokens only, so a context has at most so many.", shape.chunk));
  if (shape.selected > 1)
    shape.remarks.push_back(
        fmt::format("Each query token sees the {} tokens or blocks that an indexer selects, if its context is "
                    "longer; --selection-block with --page-size is about lists of them.",
                    shape.selected));
  if (shape.selected == 1)
    shape.remarks.push_back(
        "Each query token sees what an indexer selects; --selection-block with --page-size is about lists of it.");
  if (shape.position_bias)
    shape.remarks.emplace_back(
        "Scores get a learned bias by distance, for which there is no kernel; it is left out here.");
  if (roles.has("compressed"))
    shape.remarks.emplace_back(
        "Query tokens also see compressed tokens beside the window, which are left out here; --selection-block and "
        "--second-cache with --page-size and --window 0 are about steps that read both.");
  if (roles.has("prompt_window"))
    shape.remarks.emplace_back(
        "Query tokens see the prompt and a window of the tokens behind it; the window is left out here.");
  if (roles.has("blocksparse"))
    shape.remarks.emplace_back("Query tokens see a fixed pattern of blocks only, which is left out here.");
}

}  // namespace

Result<std::optional<LayerShape>> layer_shape(const ConfigFields& fields, const std::string& kind_name, int layer) {
  const Json& kind = fields.type().entry.at("kinds").at(kind_name);
  if (!kind.is_object()) return std::nullopt;
  Roles roles(fields, kind, layer);
  if (kind.contains("causal") && !roles.has("causal") && !roles.error) {
    const std::string condition = kind.at("causal").at(0);
    return fail(ErrorCode::unsupported,
                fmt::format("{}: \"{}\" is not {}, so the layers of this {} see tokens in both directions: it encodes "
                            "and does not decode",
                            fields.file(),
                            condition.substr(condition.starts_with('!') ? 1 : 0,
                                             condition.find(' ') - (condition.starts_with('!') ? 1 : 0)),
                            condition.starts_with('!') ? "false" : "true", fields.type().name));
  }
  LayerShape shape{.q_heads = roles.required("q_heads"), .kind = kind_name};
  if (const int rank = roles.whole("latent_rank"); rank > 0) {
    // With absorbed projections the query heads share one row a token: the latent vector, then the rotated columns.
    const int rotated = roles.whole("rotated_columns");
    shape.kv_heads = 1;
    shape.head_dim = rank + rotated;
    shape.features.latent = true;
    if (rotated > 0) shape.features.v_head_dim = rank;
  } else {
    shape.kv_heads = roles.whole("kv_heads");
    if (shape.kv_heads == 0 && !roles.error) shape.kv_heads = shape.q_heads;
    shape.head_dim = roles.required("head_dim");
    const int v_head_dim = roles.whole("v_head_dim");
    if (v_head_dim != shape.head_dim) shape.features.v_head_dim = v_head_dim;
    if (roles.has("k_is_v")) shape.features.latent = true;
  }
  shape.features.window = roles.whole("window");
  shape.features.sink_logits = roles.has("sinks");
  shape.features.alibi = roles.has("alibi");
  shape.features.soft_cap = roles.real("soft_cap");
  add_remarks(shape, roles);
  if (roles.error) return tl::unexpected(*roles.error);
  if (shape.q_heads % shape.kv_heads != 0)
    return bad_config(fields.file(),
                      fmt::format("{} query heads are not a multiple of {} KV heads", shape.q_heads, shape.kv_heads));
  return shape;
}

Result<std::optional<RecurrentProblem>> recurrent_layer(const ConfigFields& fields, const std::string& kind_name,
                                                        int layer) {
  const Json& entry = fields.type().entry;
  const auto recurrent = entry.find("recurrent");
  if (recurrent == entry.end() || !recurrent->contains(kind_name)) return std::nullopt;
  const Json& kind = recurrent->at(kind_name);
  Roles roles(fields, kind, layer);
  RecurrentProblem problem = usual_problem(parse_recurrent_kind(kind.at("kind").get<std::string>()).value());
  problem.qk_heads = roles.required("qk_heads");
  problem.v_heads = roles.required("v_heads");
  problem.key_dim = roles.required("key_dim");
  problem.value_dim = roles.required("value_dim");
  if (const std::string gates = roles.word("gates"); !gates.empty()) problem.gates = parse_gates(gates).value();
  if (const std::string gate = roles.word("output_gate"); !gate.empty())
    problem.output_gate = parse_output_gate(gate).value();
  // Heads that share q and k are a group, in the norm, too.
  if (problem.output_gate == OutputGate::silu_first) problem.norm_heads = problem.v_heads / problem.qk_heads;
  if (roles.error) return tl::unexpected(*roles.error);
  return problem;
}

}  // namespace v1
}  // namespace leanattn
