#include "cli/commands/tune_output.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/console/console.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/sizes.hpp"
#include "tuner/model/search_space.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/offline.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

std::string share(double part, double whole) {
  return part > 0 && whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-";
}

void print_winners(const Workload& workload, const TuneSummary& summary) {
  Table table{
      .headings = {"batch", "context", "us", "95% interval", "GB/s", "of read limit", "vs default", "grid", "kernel"},
      .rows = {},
      .right_aligned = "rrrrrrrrl"};
  for (const TunedShape& tuned : summary.shapes) {
    if (tuned.median_us <= 0) {
      table.rows.push_back({std::to_string(tuned.shape.batch), contexts_name(tuned.shape), "-", "-", "-", "-", "-", "-",
                            tuned.no_winner.empty() ? "(nothing was measured)" : "(no winner)"});
      continue;
    }
    table.rows.push_back(
        {std::to_string(tuned.shape.batch), contexts_name(tuned.shape), fmt::format("{:.1f}", tuned.median_us),
         fmt::format("{:.1f}..{:.1f}", tuned.low_us, tuned.high_us),
         fmt::format("{:.0f}", gb_per_s(kv_bytes(workload.problem, tuned.shape), tuned.median_us)),
         share(tuned.read_limit_us, tuned.median_us),
         tuned.default_us > 0 ? fmt::format("{:.2f}x", tuned.default_us / tuned.median_us) : "-",
         std::to_string(tuned.winner.grid), kernel_name(tuned.winner.spec) + (tuned.finished ? "" : " (cut short)")});
  }
  print_table(table);
  for (const TunedShape& tuned : summary.shapes) {
    if (!tuned.no_winner.empty()) print_text(fmt::format("{}\n", no_winner_text(tuned)));
  }
}

Json winners_json(const Workload& workload, const ModelSummary& model) {
  const TuneSummary& summary = model.summary;
  Json shapes = Json::array();
  for (const TunedShape& tuned : summary.shapes) {
    shapes.push_back({{"shape", Json::parse(to_json(tuned.shape))},
                      {"winner", tuned.median_us > 0 ? Json::parse(to_json(tuned.winner)) : Json(nullptr)},
                      {"kernel", tuned.median_us > 0 ? Json(kernel_name(tuned.winner.spec)) : Json(nullptr)},
                      {"median_us", tuned.median_us},
                      {"low_us", tuned.low_us},
                      {"high_us", tuned.high_us},
                      {"gb_per_s", gb_per_s(kv_bytes(workload.problem, tuned.shape), tuned.median_us)},
                      {"read_limit_us", tuned.read_limit_us},
                      {"default_us", tuned.default_us},
                      {"looked_up_us", tuned.looked_up_us},
                      {"candidates", tuned.candidates},
                      {"compiled", tuned.compiled},
                      {"rejected", tuned.rejected},
                      {"incorrect", tuned.incorrect},
                      {"gpu_seconds", tuned.gpu_seconds},
                      {"neighbours", tuned.neighbours},
                      {"raced", tuned.raced},
                      {"no_winner", tuned.no_winner},
                      {"finished", tuned.finished}});
  }
  Json failures = Json::array();
  for (const auto& [ordinal, error] : model.failures)
    failures.push_back({{"ordinal", ordinal}, {"error", error_code_name(error.code)}, {"message", error.message}});
  return {{"schema_version", 1},
          {"mode", "measured"},
          {"model", workload.model},
          {"layers", workload.layers},
          {"device", summary.device.name},
          {"arch", to_string(summary.device.arch)},
          {"ordinals", model.ordinals},
          {"failures", std::move(failures)},
          {"not_kept", model.not_kept ? model.not_kept->message : std::string()},
          {"problem", Json::parse(to_json(workload.problem))},
          {"seconds", summary.seconds},
          {"interrupted", summary.interrupted},
          {"shapes", std::move(shapes)}};
}

}  // namespace

void put(Json document, Json* tunings) {
  if (tunings != nullptr) {
    tunings->push_back(std::move(document));
  } else {
    print_json(document);
  }
}

void print_winners_json(const Workload& workload, const std::vector<ModelSummary>& models, Json* tunings) {
  Json document;
  if (models.size() == 1) {
    document = winners_json(workload, models.front());
  } else {
    document = {{"schema_version", 1}, {"mode", "measured_models"}, {"models", Json::array()}};
    for (const ModelSummary& model : models) document["models"].push_back(winners_json(workload, model));
  }
  put(std::move(document), tunings);
}

void print_candidates(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& shapes,
                      bool dry_run) {
  constexpr std::size_t kShown = 5;
  print_text(fmt::format("{} with {} SMs (assumed), {}{}: predictions of the cost model\n", to_string(facts.arch),
                         facts.sm_count, describe(workload.problem),
                         workload.layers.empty() ? "" : fmt::format(" ({} of {})", workload.layers, workload.model)));
  for (const OfflineShape& offline : shapes) {
    Table table{.headings = {"predicted us", "candidates", "regs", "smem", "CTAs/SM", "grid", "kernel of the first"},
                .rows = {},
                .right_aligned = "rrrrrrl"};
    const std::vector<OfflineTie> ties = model_ties(offline);
    std::size_t accepted = 0;
    for (const OfflineTie& tie : ties) {
      accepted += tie.count;
      if (table.rows.size() == kShown) continue;
      const OfflineCandidate& first = offline.candidates[tie.first];
      const double last_us = offline.candidates[tie.first + tie.count - 1].predicted_us;
      std::string us = fmt::format("{:.1f}", first.predicted_us);
      if (const std::string last = fmt::format("{:.1f}", last_us); last != us) us += ".." + last;
      table.rows.push_back({us, std::to_string(tie.count), first.registers > 0 ? std::to_string(first.registers) : "-",
                            format_bytes(first.shared_bytes), std::to_string(first.resident_ctas),
                            std::to_string(first.config.grid), kernel_name(first.config.spec)});
    }
    const std::size_t rejected = offline.candidates.size() - accepted;
    std::string counts = fmt::format("{} candidates {}", accepted, dry_run ? "would be compiled" : "were compiled");
    if (rejected > 0) counts += fmt::format(", {} were rejected", rejected);
    if (offline.skipped > 0) counts += fmt::format(", {} were not reached", offline.skipped);
    print_text(fmt::format("\n{}: {}\n", describe(offline.shape), counts));
    print_table(table);
  }
  print_text(
      fmt::format("\nA line has the candidates whose predictions differ by less than {:.0f} %, which the model cannot "
                  "tell apart.\n",
                  100 * kModelResolution));
}

void print_candidates_json(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& offline,
                           const OfflineRun& run, Json* tunings) {
  Json shapes = Json::array();
  for (const OfflineShape& shape : offline) {
    Json candidates = Json::array();
    std::vector<Json> ties(shape.candidates.size());  // of those that were accepted, the number of their tie
    const std::vector<OfflineTie> groups = model_ties(shape);
    for (std::size_t tie = 0; tie < groups.size(); ++tie)
      std::fill_n(ties.begin() + static_cast<std::ptrdiff_t>(groups[tie].first), groups[tie].count, Json(tie));
    for (std::size_t i = 0; i < shape.candidates.size(); ++i) {
      const OfflineCandidate& candidate = shape.candidates[i];
      candidates.push_back({{"kernel", kernel_name(candidate.config.spec)},
                            {"config", Json::parse(to_json(candidate.config))},
                            {"accepted", candidate.accepted},
                            {"reason", candidate.reason},
                            {"registers", candidate.registers},
                            {"spill_bytes", candidate.spill_bytes},
                            {"shared_bytes", candidate.shared_bytes},
                            {"resident_ctas", candidate.resident_ctas},
                            {"compile_ms", candidate.compile_ms},
                            {"predicted_us", candidate.predicted_us},
                            {"tie", ties[i]}});
    }
    shapes.push_back({{"shape", Json::parse(to_json(shape.shape))},
                      {"skipped", shape.skipped},
                      {"candidates", std::move(candidates)}});
  }
  put({{"schema_version", 1},
       {"mode", "offline"},
       {"model", workload.model},
       {"layers", workload.layers},
       {"arch", to_string(facts.arch)},
       {"sms", facts.sm_count},
       {"l2_bytes", facts.l2_bytes},
       {"problem", Json::parse(to_json(workload.problem))},
       {"dry_run", run.dry_run},
       {"model_resolution", kModelResolution},
       {"interrupted", run.interrupted},
       {"not_kept", run.not_kept},
       {"shapes", std::move(shapes)}},
      tunings);
}

void print_model(const Workload& workload, const TuneRequest& request, const ModelSummary& model) {
  const TuneSummary& summary = model.summary;
  print_text(fmt::format("{}{}, {}{}: {}\n", summary.device.name,
                         model.ordinals.size() > 1 ? fmt::format(" (devices {})", fmt::join(model.ordinals, ", ")) : "",
                         describe(workload.problem),
                         workload.model.empty()    ? ""
                         : workload.layers.empty() ? " (" + workload.model + ")"
                                                   : " (" + workload.layers + " of " + workload.model + ")",
                         request.dry_run
                             ? "what would be tried"
                             : fmt::format("{} in {:.1f} s, {} L2", request.revalidate ? "measured again" : "tuned",
                                           summary.seconds, to_string(request.policy))));
  if (!request.dry_run) return print_winners(workload, summary);
  for (const TunedShape& shape : summary.shapes)
    print_text(fmt::format("{}: {} candidates\n", describe(shape.shape), shape.candidates));
}

}  // namespace v1
}  // namespace leanattn
