// regret.cpp -- reads held-out cases and sorts them by regret.
#include "tuner/report/regret.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using nlohmann::json;

double positive_number(const json& object, const char* key) {
  const auto found = object.find(key);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(value) && value > 0 ? value : 0;
}

Result<HeldOutCase> read_case(const json& object) {
  if (!object.is_object()) return fail(ErrorCode::invalid_argument, "it is not an object");
  const json nothing;
  const auto part = [&](const char* key) { return object.contains(key) ? object.at(key) : nothing; };
  const Result<DecodeProblem> problem = problem_from_json(part("problem").dump());
  if (!problem) return tl::unexpected(problem.error());
  const Result<Shape> shape = shape_from_json(part("shape").dump());
  if (!shape) return tl::unexpected(shape.error());
  HeldOutCase one{.problem = *problem, .shape = *shape, .answer = {}};
  if (const json answer = part("answer"); answer.is_string()) one.answer = answer.get<std::string>();
  one.looked_up_us = positive_number(object, "looked_up_us"), one.best_us = positive_number(object, "best_us");
  one.ratio = positive_number(object, "ratio");
  if (one.looked_up_us == 0 || one.best_us == 0)
    return fail(ErrorCode::invalid_argument, "looked_up_us and best_us must be positive numbers");
  return one;
}

}  // namespace

Result<RegretReport> regret_from_json(std::string_view text) {
  const json document = parse_json(text);
  if (!document.is_object() || !document.contains("cases") || !document["cases"].is_array())
    return fail(ErrorCode::invalid_argument, "the file is not a JSON object with an array \"cases\"");
  if (document.value("schema_version", json()) != 1)
    return fail(ErrorCode::invalid_argument, "its schema_version is not 1");
  RegretReport report;
  for (const json& object : document["cases"]) {
    Result<HeldOutCase> one = read_case(object);
    if (!one)
      return fail(ErrorCode::invalid_argument, fmt::format("case {}: {}", report.cases.size(), one.error().message));
    report.cases.push_back(std::move(*one));
  }
  if (report.cases.empty()) return fail(ErrorCode::invalid_argument, "its array \"cases\" is empty");
  std::stable_sort(report.cases.begin(), report.cases.end(),
                   [](const HeldOutCase& a, const HeldOutCase& b) { return a.regret() > b.regret(); });
  // The nearest rank gives the quantile. Ranks count from the largest regret.
  const auto quantile = [&](double share) {
    const auto last = static_cast<double>(report.cases.size() - 1);
    return report.cases[static_cast<std::size_t>(std::lround((1 - share) * last))].regret();
  };
  report.median = quantile(0.5), report.ninetieth = quantile(0.9), report.largest = quantile(1);
  return report;
}

}  // namespace v1
}  // namespace leanattn
