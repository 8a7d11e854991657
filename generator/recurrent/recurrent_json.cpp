#include "generator/recurrent/recurrent_json.hpp"

#include <fmt/format.h>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

/// Reads those keys of an object that it has. What they throw names the key.
class KeyReader {
 public:
  explicit KeyReader(const Json& object) : object_(object) {}

  template <class T>
  void read(const char* key, T& out) const {
    if (!object_.contains(key)) return;
    if constexpr (std::is_same_v<T, bool>) {
      out = require<bool>(object_, key);
    } else {
      out = read_key(object_, key, [](const Json& value) { return require_integer<T>(value); });
    }
  }
  template <class T>
  void read(const char* key, T& out, Result<T> (*parse)(std::string_view)) const {
    if (!object_.contains(key)) return;
    const auto parsed = parse(require<std::string>(object_, key));
    if (!parsed) throw std::out_of_range(parsed.error().message);
    out = *parsed;
  }

 private:
  const Json& object_;
};

tl::unexpected<Error> no_such(const char* what, const std::string& why) {
  return fail(ErrorCode::invalid_argument, fmt::format("recurrent {}: {}", what, why));
}

/// Parses an object with `read`, and refuses what is then not in `written`, its text as this version writes it.
template <class T>
Result<T> read_object(const char* what, std::string_view text, void (*read)(const Json& object, T& out)) {
  const Json object = parse_json(text);
  if (!object.is_object()) return no_such(what, "not a JSON object");
  T out;
  try {
    read(object, out);
  } catch (const std::exception& error) {
    return no_such(what, json_reason(error));
  }
  if (auto ok = validate(out); !ok) return tl::unexpected(ok.error());
  const Json known = Json::parse(to_json(out));
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key) || (!value.is_object() && known[key] != value))
      return no_such(what, fmt::format("'{}' is not known", key));
  }
  return out;
}

void read_problem(const Json& object, RecurrentProblem& problem) {
  const KeyReader reader(object);
  require<std::string>(object, "kind");
  reader.read("kind", problem.kind, parse_recurrent_kind);
  reader.read("qk_heads", problem.qk_heads);
  reader.read("v_heads", problem.v_heads);
  reader.read("key_dim", problem.key_dim);
  reader.read("value_dim", problem.value_dim);
  reader.read("dtype", problem.dtype, parse_dtype);
  reader.read("state", problem.state, parse_state_type);
  reader.read("gates", problem.gates, parse_gates);
  reader.read("normalises", problem.normalises);
  reader.read("output_gate", problem.output_gate, parse_output_gate);
  reader.read("norm_heads", problem.norm_heads);
  reader.read("tokens", problem.tokens);
  reader.read("ragged", problem.ragged);
  reader.read("snapshots", problem.snapshots);
  reader.read("keys_first", problem.keys_first);
  reader.read("conv_width", problem.conv_width);
  reader.read("ring", problem.ring);
}

void read_spec(const Json& object, RecurrentSpec& spec) {
  const KeyReader reader(object);
  require<std::string>(object, "operation");
  const auto problem = recurrent_problem_from_json(require<Json>(object, "problem").dump());
  if (!problem) throw std::out_of_range(problem.error().message);
  spec.problem = *problem;
  reader.read("arch", spec.arch, parse_arch);
  reader.read("warps", spec.tunables.warps);
  reader.read("warp_rows", spec.tunables.warp_rows);
  reader.read("row_lanes", spec.tunables.row_lanes);
  reader.read("ctas_per_sm", spec.tunables.ctas_per_sm);
}

}  // namespace

std::string to_json(const RecurrentSpec& spec) {
  return Json{{"operation", "recurrent"},
              {"arch", to_string(spec.arch)},
              {"problem", Json::parse(to_json(spec.problem))},
              {"warps", spec.tunables.warps},
              {"warp_rows", spec.tunables.warp_rows},
              {"row_lanes", spec.tunables.row_lanes},
              {"ctas_per_sm", spec.tunables.ctas_per_sm}}
      .dump();
}

Result<RecurrentProblem> recurrent_problem_from_json(std::string_view text) {
  return read_object<RecurrentProblem>("problem", text, read_problem);
}

Result<RecurrentSpec> recurrent_spec_from_json(std::string_view text) {
  return read_object<RecurrentSpec>("spec", text, read_spec);
}

std::string batch_to_json(int batch) { return Json{{"batch", batch}}.dump(); }

Result<int> batch_from_json(std::string_view text) {
  const Json object = parse_json(text);
  const bool alone = object.is_object() && object.size() == 1 && object.contains("batch");
  const auto batch = alone ? integer_of<int>(object["batch"]) : std::nullopt;
  if (!batch || *batch < 1) return no_such("step", fmt::format("{} is no {{\"batch\":N}}", text));
  return *batch;
}

}  // namespace v1
}  // namespace leanattn
