#include "cli/commands/tune_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "cli/console/console.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

double weight_of(const TuneWork& work) {
  if (work.weights.empty()) return static_cast<double>(work.workload.shapes.size());
  return std::accumulate(work.weights.begin(), work.weights.end(), 0.0);
}

Workload workload_of(const DecodeProblem& problem) { return {.model = {}, .problem = problem, .shapes = {}}; }

}  // namespace

double share_of(const std::vector<TuneWork>& works, std::size_t index) {
  double left = 0;
  for (std::size_t i = index; i < works.size(); ++i) left += weight_of(works[i]);
  return weight_of(works[index]) / left;
}

std::vector<TuneWork> captured_work(const CallCaptureSum& capture, L2Policy policy) {
  std::vector<TuneWork> works;
  for (const CapturedShape& captured : capture.shapes) {
    if (works.empty() || !(works.back().workload.problem == captured.problem))
      works.push_back({.workload = workload_of(captured.problem), .weights = {}, .policy = policy});
    works.back().workload.shapes.push_back(captured.shape);
    works.back().weights.push_back(static_cast<double>(captured.calls));
  }
  return works;
}

Result<std::vector<TuneWork>> stale_work(TuningDb& db, std::span<const DeviceFacts> devices) {
  std::map<std::pair<std::string, std::string>, std::size_t> indices;  // of the work of a (problem, policy)
  std::set<std::tuple<std::string, std::string, std::string>> seen;    // (problem, policy, shape)
  std::vector<TuneWork> works;
  for (const DeviceFacts& device : devices) {
    const Result<std::vector<Winner>> winners =
        db.winners(device_model(device), std::nullopt, with_kernels(current_environment(device)));
    if (!winners) return tl::unexpected(winners.error());
    for (const Winner& winner : *winners) {
      if (!winner.stale) continue;
      const Result<DecodeProblem> problem = problem_from_json(winner.problem);
      const Result<Shape> shape = shape_from_json(winner.shape);
      const Result<L2Policy> policy = parse_l2_policy(winner.policy);
      if (!problem || !shape || !policy) continue;  // Another version wrote it. lookup warns of such winners.
      if (!seen.emplace(winner.problem, winner.policy, winner.shape).second) continue;
      const auto [index, made] = indices.try_emplace({winner.problem, winner.policy}, works.size());
      if (made) {
        works.push_back({.workload = workload_of(*problem), .weights = {}, .policy = *policy});
      }
      works[index->second].workload.shapes.push_back(*shape);
    }
  }
  return works;
}

Result<std::vector<TuneWork>> missing_work(std::vector<TuneWork> works, TuningDb& db,
                                           std::span<const DeviceFacts> devices) {
  // max_batch does not decide what is fast, so shapes that differ in it alone are one.
  const auto key = [](const DecodeProblem& problem, const Shape& shape, std::string_view policy) {
    return std::tuple(to_json(problem), to_json(without_max_batch(shape)), std::string(policy));
  };
  std::map<std::tuple<std::string, std::string, std::string>, std::set<std::size_t>> won;  // on which of the devices
  for (std::size_t device = 0; device < devices.size(); ++device) {
    const Result<std::vector<Winner>> winners =
        db.winners(device_model(devices[device]), std::nullopt, with_kernels(current_environment(devices[device])));
    if (!winners) return tl::unexpected(winners.error());
    for (const Winner& winner : *winners) {
      const Result<DecodeProblem> problem = problem_from_json(winner.problem);
      const Result<Shape> shape = shape_from_json(winner.shape);
      if (problem && shape && !winner.stale) won[key(*problem, *shape, winner.policy)].insert(device);
    }
  }
  for (TuneWork& work : works) {
    std::vector<Shape> shapes;
    std::vector<double> weights;
    for (std::size_t i = 0; i < work.workload.shapes.size(); ++i) {
      const auto found = won.find(key(work.workload.problem, work.workload.shapes[i], to_string(work.policy)));
      if (found != won.end() && found->second.size() == devices.size()) continue;
      shapes.push_back(work.workload.shapes[i]);
      if (!work.weights.empty()) weights.push_back(work.weights[i]);
    }
    work.workload.shapes = std::move(shapes), work.weights = std::move(weights);
  }
  std::erase_if(works, [](const TuneWork& work) { return work.workload.shapes.empty(); });
  return works;
}

std::string describe(const CallCaptureSum& capture) {
  std::vector<std::pair<std::int64_t, std::string>> answers;
  for (const auto& [answer, calls] : capture.answers) answers.emplace_back(-calls, answer);
  std::sort(answers.begin(), answers.end());
  std::string text = fmt::format("{} calls of {} shapes", capture.calls, capture.shapes.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    text += fmt::format("{} {:.1f} % {}", i == 0 ? ":" : ",",
                        -100.0 * static_cast<double>(answers[i].first) / static_cast<double>(capture.calls),
                        answers[i].second);
  }
  if (capture.lost_calls > 0) text += fmt::format("; {} more calls were not written", capture.lost_calls);
  return text;
}

nlohmann::ordered_json to_json(const CallCaptureSum& capture) {
  Json shapes = Json::array();
  for (const CapturedShape& captured : capture.shapes) {
    shapes.push_back({{"problem", Json::parse(to_json(captured.problem))},
                      {"shape", Json::parse(to_json(captured.shape))},
                      {"calls", captured.calls},
                      {"answers", captured.answers}});
  }
  return {
      {"calls", capture.calls},     {"lost_calls", capture.lost_calls}, {"unreadable_lines", capture.unreadable_lines},
      {"answers", capture.answers}, {"devices", capture.devices},       {"shapes", std::move(shapes)}};
}

}  // namespace v1
}  // namespace leanattn
