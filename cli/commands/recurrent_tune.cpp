#include "cli/commands/recurrent_tune.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands/progress_line.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "generator/recurrent/recurrent_json.hpp"
#include "tuner/evaluate/device_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

std::string progress_text(const RecurrentProgress& progress) {
  const std::string size = progress.batch > 0 ? fmt::format("batch {}  ", progress.batch) : "";
  return fmt::format("{}{} {}/{}", size, progress.phase, progress.done, progress.total);
}

double over(double us, double limit_us) { return us > 0 && limit_us > 0 ? us / limit_us : 0; }

Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json step_json(const TunedRecurrentStep& step) {
  return {{"batch", step.batch},
          {"kernel", step.winner ? Json(kernel_name(*step.winner)) : Json(nullptr)},
          {"config", step.winner ? Json::parse(to_json(*step.winner)) : Json(nullptr)},
          {"median_us", known(step.median_us)},
          {"low_us", known(step.low_us)},
          {"high_us", known(step.high_us)},
          {"copy_us", known(step.copy_us)},
          {"ratio_to_copy", known(over(step.median_us, step.copy_us))},
          {"rule_kernel", kernel_name(step.by_rule)},
          {"rule_us", known(step.by_rule_us)},
          {"timed", step.timed},
          {"noise", step.noise},
          {"no_memory", step.no_memory},
          {"finished", step.finished}};
}

Json summary_json(const RecurrentTuneRequest& request, const RecurrentTuneSummary& summary,
                  const std::optional<Error>& not_kept) {
  Json document{{"schema_version", 1},
                {"device", device_json(summary.device)},
                {"problem", Json::parse(to_json(request.problem))},
                {"policy", to_string(request.policy)},
                {"candidates", summary.candidates},
                {"rejected", summary.rejected},
                {"incorrect", summary.incorrect},
                {"failure", summary.failure},
                {"seconds", summary.seconds},
                {"interrupted", summary.interrupted},
                {"not_kept", not_kept ? not_kept->message : std::string()},
                {"steps", Json::array()}};
  for (const TunedRecurrentStep& step : summary.steps) document["steps"].push_back(step_json(step));
  return document;
}

void print_summary(const RecurrentTuneRequest& request, const RecurrentTuneSummary& summary) {
  print_text(fmt::format("{}, {}: {} kernels tried in {:.1f} s, {} L2\n", summary.device.name,
                         describe(request.problem), summary.candidates, summary.seconds, to_string(request.policy)));
  Table table{
      .headings = {"batch", "us", "95% interval", "x copy", "x rule", "kernel"}, .rows = {}, .right_aligned = "rrrrrl"};
  const auto ratio = [](double value) { return value > 0 ? fmt::format("{:.3f}", value) : std::string("-"); };
  for (const TunedRecurrentStep& step : summary.steps) {
    if (!step.winner) continue;
    table.rows.push_back({std::to_string(step.batch), fmt::format("{:.2f}", step.median_us),
                          fmt::format("{:.2f}..{:.2f}", step.low_us, step.high_us),
                          ratio(over(step.median_us, step.copy_us)), ratio(over(step.median_us, step.by_rule_us)),
                          kernel_name(*step.winner)});
  }
  print_table(table);
}

}  // namespace

int tune_recurrent_steps(const Console& console, RecurrentTuneRequest request, const DeviceFacts& device,
                         bool missing) {
  const Result<Caches> caches = open_caches(console, CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  const auto db = open_tuning(*caches, OpenMode::read_write, CacheNeed::durable);
  if (!db) return report_error(db.error());
  if (missing) {
    auto left = missing_batches(request, **db, device);
    if (!left) return report_error(left.error());
    request.batches = *std::move(left);
    if (request.batches.empty()) {
      note(console, "Every batch has a winner of this driver, NVRTC and kernel.");
      if (console.json) print_json(summary_json(request, {.device = device}, std::nullopt));
      return kExitOk;
    }
  }
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(console.quiet, is_terminal(stderr));
  const auto sink = [&line](const RecurrentProgress& progress) { line.show_transient(progress_text(progress)); };
  const auto summary = tune_recurrent(request, **db, caches->cubins.get(), sink, stop);
  line.clear();
  if (auto warning = (*db)->take_warning()) warn(*warning);
  if (!summary) return report_error(summary.error());
  const std::optional<Error> not_kept = (*db)->not_kept();
  if (console.json) {
    print_json(summary_json(request, *summary, not_kept));
  } else {
    print_summary(request, *summary);
  }
  int code = kExitOk;
  if (summary->incorrect > 0)
    warn(fmt::format("{} kernels give wrong results, the last one: {}. Run leanattn verify --only recurrent.",
                     summary->incorrect, summary->failure));
  for (const TunedRecurrentStep& step : summary->steps) {
    if (!step.noise.empty()) warn(fmt::format("batch {}: {}, so times may be off", step.batch, step.noise));
    if (!step.no_memory.empty()) {
      warn(fmt::format("batch {} is left out: {}", step.batch, step.no_memory));
    } else if (!step.winner && step.timed == 0 && !summary->interrupted)
      code = report_error({ErrorCode::kernel_rejected,
                           fmt::format("batch {}: no kernel can be launched, the last one for this reason: {}",
                                       step.batch, summary->failure),
                           {},
                           {}});
  }
  if (not_kept)
    code = report_error({not_kept->code, "not everything that was measured is kept: " + not_kept->message,
                         not_kept->hint, not_kept->log});
  if (!summary->interrupted) return code;
  note(console, "The tuning was interrupted. These are the best so far, and every finished trial is kept.");
  return kExitInterrupted;
}

}  // namespace v1
}  // namespace leanattn
