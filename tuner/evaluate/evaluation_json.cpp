// evaluation_json.cpp -- writes evaluations as JSON, with the environment that they were measured in.
#include <nlohmann/json.hpp>

#include "tuner/evaluate/evaluation.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(const std::string& text) { return Json::parse(text); }

Json header(const EvaluationSetup& setup, const char* kind, bool interrupted) {
  const Environment& environment = setup.environment;
  return {{"schema_version", 1},
          {"evaluation", kind},
          {"device",
           {{"name", setup.device.name},
            {"arch", to_string(setup.device.arch)},
            {"sm_count", setup.device.sm_count},
            {"l2_bytes", setup.device.l2_bytes}}},
          {"environment",
           {{"driver_version", environment.driver_version},
            {"driver_release", environment.driver_release},
            {"nvrtc_version", environment.nvrtc_version},
            {"clock_khz", environment.clock_khz},
            {"power_limit_mw", environment.power_limit_mw},
            {"ecc", environment.ecc},
            {"library_revision", environment.library_revision}}},
          {"command", setup.request.command},
          {"problem", parsed(to_json(setup.request.problem))},
          {"policy", to_string(setup.request.policy)},
          {"interrupted", interrupted}};
}

Json tuned_json(const TunedShape& tuned) {
  return {{"config", parsed(to_json(tuned.winner))}, {"median_us", tuned.median_us}, {"gpu_seconds", tuned.gpu_seconds},
          {"candidates", tuned.candidates},          {"kernels", tuned.compiled},    {"incorrect", tuned.incorrect}};
}

void add_duel(Json& json, const Duel& duel) {
  json["ratio"] = duel.ratio.ratio;
  json["ratio_low"] = duel.ratio.low;
  json["ratio_high"] = duel.ratio.high;
  json["rounds"] = duel.ratio.pairs;
  if (!duel.noise.empty()) json["noise"] = duel.noise;
}

std::string text(const Json& document) { return document.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string to_json(const EvaluationSetup& setup, const SearchEvaluation& evaluation) {
  Json document = header(setup, "search", evaluation.interrupted);
  document["cases"] = Json::array();
  for (const SearchCase& one : evaluation.cases) {
    Json json{{"shape", parsed(to_json(one.shape))},
              {"search", tuned_json(one.searched)},
              {"exhaustive", tuned_json(one.exhaustive)},
              {"share_of_gpu_time", one.share_of_gpu_time()}};
    add_duel(json, one.duel);
    document["cases"].push_back(std::move(json));
  }
  document["share_of_gpu_time"] = evaluation.share_of_gpu_time();
  document["worst_ratio"] = evaluation.worst_ratio();
  return text(document);
}

std::string to_json(const EvaluationSetup& setup, const RegretEvaluation& evaluation, std::uint64_t seed) {
  Json document = header(setup, "regret", evaluation.interrupted);
  if (evaluation.several_problems) document.erase("problem");
  document["seed"] = seed;
  document["cases"] = Json::array();
  for (const RegretCase& one : evaluation.cases) {
    Json json{{"problem", parsed(to_json(one.problem))},
              {"shape", parsed(to_json(one.shape))},
              {"answer", std::string(to_string(one.choice.provenance))},
              {"looked_up", parsed(to_json(one.choice.config))},
              {"looked_up_us", one.duel.first_us},
              {"predicted_us", one.choice.predicted_us},
              {"best", parsed(to_json(one.swept.winner))},
              {"best_us", one.duel.second_us},
              {"regret", one.regret()},
              {"swept_candidates", one.swept.candidates},
              {"swept_kernels", one.swept.compiled}};
    add_duel(json, one.duel);
    document["cases"].push_back(std::move(json));
  }
  document["median"] = evaluation.median_regret();
  document["p95"] = evaluation.high_regret();
  document["max"] = evaluation.largest_regret();
  return text(document);
}

std::string to_json(const EvaluationSetup& setup, const RepeatEvaluation& evaluation) {
  Json document = header(setup, "repeat", evaluation.interrupted);
  document["cases"] = Json::array();
  for (const RepeatCase& one : evaluation.cases) {
    Json json{{"shape", parsed(to_json(one.shape))},
              {"same", one.same()},
              {"first", tuned_json(one.first)},
              {"second", tuned_json(one.second)},
              {"predicted_ratio", one.predicted_ratio}};
    add_duel(json, one.duel);
    document["cases"].push_back(std::move(json));
  }
  document["differing"] = evaluation.differing();
  document["largest_difference"] = evaluation.largest_difference();
  return text(document);
}

}  // namespace v1
}  // namespace leanattn
