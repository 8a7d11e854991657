// tuning_order.cpp -- orders and messages to text and back.
#include "runtime/tuning/tuning_order.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
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

template <class Integer>
Integer not_negative(const Json& object, const char* key) {
  const auto number = require_integer<Integer>(object.at(key));
  if (number < 0) throw std::out_of_range(fmt::format("{} is {}", key, number));
  return number;
}

/// A time or a rate: not negative, and finite.
double measured(const Json& object, const char* key) {
  const double number = object.at(key).get<double>();
  if (!std::isfinite(number) || number < 0) throw std::out_of_range(fmt::format("{} is {}", key, number));
  return number;
}

TuningOrder read_order(const Json& json) {
  TuningOrder order;
  order.problem = value_or_throw(problem_from_json(text_of(json.at("problem"))));
  const Json& shapes = json.at("shapes");
  if (!shapes.is_array()) throw std::invalid_argument("shapes is no list");
  for (const Json& shape : shapes) order.shapes.push_back(value_or_throw(shape_from_json(text_of(shape))));
  order.budget = std::chrono::milliseconds(not_negative<std::int64_t>(json, "budget_ms"));
  order.memory_bytes = not_negative<std::int64_t>(json, "memory_bytes");
  order.uuid = json.at("uuid").get<std::string>();
  order.ordinal = not_negative<int>(json, "ordinal");
  order.sm_count = not_negative<int>(json, "sm_count");
  order.cache_directory = json.at("cache_directory").get<std::string>();
  order.parent = not_negative<pid_t>(json, "parent");
  return order;
}

ErrorCode read_code(const Json& object) {
  const int code = not_negative<int>(object, "code");
  if (code == 0 || code > static_cast<int>(ErrorCode::internal)) throw std::out_of_range("no code of an error");
  return static_cast<ErrorCode>(code);
}

TuningMessage read_message(const Json& json) {
  const std::string kind = json.at("is").get<std::string>();
  if (kind == "progress") {
    return TuningProgress{.shape = not_negative<int>(json, "shape"),
                          .phase = json.at("phase").get<std::string>(),
                          .done = not_negative<int>(json, "done"),
                          .total = not_negative<int>(json, "total"),
                          .best_us = measured(json, "best_us"),
                          .elapsed_s = measured(json, "elapsed_s")};
  }
  if (kind == "result") {
    return TuningResult{.shape = not_negative<int>(json, "shape"),
                        .median_us = measured(json, "median_us"),
                        .read_limit_us = measured(json, "read_limit_us"),
                        .default_us = measured(json, "default_us"),
                        .candidates = not_negative<int>(json, "candidates"),
                        .rejected = not_negative<int>(json, "rejected"),
                        .incorrect = not_negative<int>(json, "incorrect"),
                        .finished = json.at("finished").get<bool>()};
  }
  if (kind == "warning") return TuningWarning{json.at("text").get<std::string>()};
  if (kind == "error") {
    return Error{read_code(json), json.at("message").get<std::string>(), json.at("hint").get<std::string>(),
                 json.at("log").get<std::string>()};
  }
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
    return {{"is", "error"},
            {"code", static_cast<int>(error.code)},
            {"message", error.message},
            {"hint", error.hint},
            {"log", error.log}};
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
    return fail(ErrorCode::invalid_argument, fmt::format("the order of a tuning cannot be read: {}", error.what()));
  }
}

std::string to_json(const TuningMessage& message) { return text_of(std::visit(MessageToJson{}, message)); }

Result<TuningMessage> tuning_message_from_json(std::string_view line) {
  std::string why = "not JSON";
  try {
    if (const Json json = parse_json(line); json.is_object()) return read_message(json);
  } catch (const std::exception& error) {
    why = error.what();
  }
  return fail(ErrorCode::internal, fmt::format("'{:.80}' is no message: {}", line, why));
}

}  // namespace v1
}  // namespace leanattn
