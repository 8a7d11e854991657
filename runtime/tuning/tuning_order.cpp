// tuning_order.cpp -- orders and messages to text and back.
#include "runtime/tuning/tuning_order.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "generator/generator.hpp"
#include "generator/parse_json.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <class T>
T value_or_throw(Result<T> value) {
  if (!value) throw std::invalid_argument(value.error().message);
  return *std::move(value);
}

std::string library() {
  return fmt::format("{}.{}.{} ({})", LEANATTN_VERSION_MAJOR, LEANATTN_VERSION_MINOR, LEANATTN_VERSION_PATCH,
                     generator_revision());
}

TuningOrder read_order(const Json& json) {
  TuningOrder order;
  order.problem = value_or_throw(problem_from_json(text_of(json.at("problem"))));
  const Json& shapes = json.at("shapes");
  if (!shapes.is_array()) throw std::invalid_argument("shapes is no list");
  for (const Json& shape : shapes) order.shapes.push_back(value_or_throw(shape_from_json(text_of(shape))));
  order.budget = std::chrono::milliseconds(require_count<std::int64_t>(json.at("budget_ms")));
  order.memory_bytes = require_count<std::int64_t>(json.at("memory_bytes"));
  order.uuid = json.at("uuid").get<std::string>();
  order.ordinal = require_count<int>(json.at("ordinal"));
  order.sm_count = require_count<int>(json.at("sm_count"));
  order.cache_directory = json.at("cache_directory").get<std::string>();
  order.parent = require_count<pid_t>(json.at("parent"));
  return order;
}

TuningMessage read_message(const Json& json) {
  const std::string kind = json.at("is").get<std::string>();
  if (kind == "progress") {
    return TuningProgress{.shape = require_count<int>(json.at("shape")),
                          .phase = json.at("phase").get<std::string>(),
                          .done = require_count<int>(json.at("done")),
                          .total = require_count<int>(json.at("total")),
                          .best_us = require_measured(json.at("best_us")),
                          .elapsed_s = require_measured(json.at("elapsed_s"))};
  }
  if (kind == "result") {
    return TuningResult{.shape = require_count<int>(json.at("shape")),
                        .median_us = require_measured(json.at("median_us")),
                        .read_limit_us = require_measured(json.at("read_limit_us")),
                        .default_us = require_measured(json.at("default_us")),
                        .candidates = require_count<int>(json.at("candidates")),
                        .rejected = require_count<int>(json.at("rejected")),
                        .incorrect = require_count<int>(json.at("incorrect")),
                        .finished = json.at("finished").get<bool>()};
  }
  if (kind == "warning") return TuningWarning{json.at("text").get<std::string>()};
  if (kind == "error") return require_error(json);
  if (kind == "end") return TuningEnd{};
  throw std::invalid_argument("there is no message of this kind");
}

struct MessageToJson {
  Json operator()(const TuningProgress& said) const {
    return {{"is", "progress"},    {"shape", said.shape},     {"phase", said.phase},        {"done", said.done},
            {"total", said.total}, {"best_us", said.best_us}, {"elapsed_s", said.elapsed_s}};
  }
  Json operator()(const TuningResult& result) const {
    return {{"is", "result"},
            {"shape", result.shape},
            {"median_us", result.median_us},
            {"read_limit_us", result.read_limit_us},
            {"default_us", result.default_us},
            {"candidates", result.candidates},
            {"rejected", result.rejected},
            {"incorrect", result.incorrect},
            {"finished", result.finished}};
  }
  Json operator()(const TuningWarning& warning) const { return {{"is", "warning"}, {"text", warning.text}}; }
  Json operator()(const Error& error) const {
    Json json = error_json(error);
    json["is"] = "error";
    return json;
  }
  Json operator()(const TuningEnd&) const { return {{"is", "end"}}; }
};

}  // namespace

std::string to_json(const TuningOrder& order) {
  Json shapes = Json::array();
  for (const Shape& shape : order.shapes) shapes.push_back(Json::parse(to_json(shape)));
  return text_of({{"library", library()},
                  {"problem", Json::parse(to_json(order.problem))},
                  {"shapes", std::move(shapes)},
                  {"budget_ms", order.budget.count()},
                  {"memory_bytes", order.memory_bytes},
                  {"uuid", order.uuid},
                  {"ordinal", order.ordinal},
                  {"sm_count", order.sm_count},
                  {"cache_directory", order.cache_directory},
                  {"parent", order.parent}});
}

Result<TuningOrder> tuning_order_from_json(std::string_view text) {
  const Json json = parse_json(text);
  // The version comes first, because another version's order may mean anything.
  const auto sender = json.is_object() ? json.find("library") : json.end();
  if (!json.is_object() || sender == json.end() || !sender->is_string())
    return fail(ErrorCode::invalid_argument, "the text is no order of a tuning");
  if (const std::string version = sender->get<std::string>(); version != library()) {
    return fail(ErrorCode::unsupported,
                fmt::format("this program is leanattn {}, and the library that asks is {}", library(), version),
                "Install both from one build, or set LEANATTN_PROGRAM to the program of the library's version.");
  }
  try {
    return read_order(json);
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("the order of a tuning cannot be read: {}", json_reason(error)));
  }
}

std::string to_json(const TuningMessage& message) { return text_of(std::visit(MessageToJson{}, message)); }

Result<TuningMessage> tuning_message_from_json(std::string_view line) {
  std::string why = "not JSON";
  try {
    if (const Json json = parse_json(line); json.is_object()) return read_message(json);
  } catch (const std::exception& error) {
    why = json_reason(error);
  }
  return fail(ErrorCode::internal, fmt::format("'{:.80}' is no message: {}", line, why));
}

}  // namespace v1
}  // namespace leanattn
