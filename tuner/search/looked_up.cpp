#include "tuner/search/looked_up.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tuner/search/group_screen.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

Result<WinnersByProblem> winners_of(const DeviceModel& model, TuningDb& db) {
  Result<std::vector<Winner>> winners = db.winners(model);
  if (!winners) return tl::unexpected(winners.error());
  LayeredWinners layered;
  for (Winner& winner : *winners) layered.entries.push_back({std::move(winner), "user"});
  return by_problem(std::move(layered));
}

}  // namespace

Result<LookedUp> looked_up_configs(const TuneRequest& request, const DeviceFacts& device, const DeviceModel& model,
                                   const Environment& environment, TuningDb& db) {
  for (bool again = false;; again = true) {
    Result<WinnersByProblem> winners =
        request.open_winners ? request.open_winners(model, environment) : winners_of(model, db);
    if (!winners) return tl::unexpected(winners.error());
    const WinnerTable table(device, *std::move(winners));
    LookedUp answers;
    for (const Shape& shape : request.shapes) {
      std::vector<Config>& order = answers.configs.emplace_back();
      for (Choice& choice : table.launch_order(request.problem, shape)) {
        // All candidates of a problem with pdl are dependent launches. Where an ordinary launch answers, the dependent
        // one of its configuration takes part.
        choice.config.spec.pdl = base_spec(device.arch, request.problem).pdl;
        if (std::find(order.begin(), order.end(), choice.config) == order.end()) order.push_back(choice.config);
      }
    }
    answers.warnings = table.warnings();
    if (!table.locked()) return answers;
    if (again)
      return fail(ErrorCode::database_busy,
                  fmt::format("it is not known what look-ups answer, so nothing could be compared with that: {}",
                              fmt::join(answers.warnings, "; ")),
                  "Run it again when the process that keeps the database locked has ended.");
  }
}

Result<bool> try_looked_up(ShapeContext& context, const CostModel& model, Measurer& measurer, TimedCandidates& timed) {
  const bool group = in_group(context.step.problem.features);
  for (Config config : context.session.looked_up[static_cast<std::size_t>(context.index)]) {
    if (!context.fits(config)) continue;
    context.session.compiles.enqueue({&config.spec, 1}, /*urgent=*/true);
    context.report("screen", kernel_name(config.spec), 0, 0, 0);
    const auto ready = measurer.compiled(config.spec, model, context.deadline_s);
    context.started_s = context.session.backend.now_s();
    if (ready) {
      if (group) config = cut_for_group(context, config, *ready);
      const RankedConfig once{config, 0};
      if (auto done = measurer.try_configs({&once, 1}, "screen", context.deadline_s, timed); !done)
        return tl::unexpected(done.error());
      if (timed.find(config) != nullptr) {
        context.looked_up = config;
        return true;
      }
    }
    if (!measurer.failed(config)) return false;
  }
  return true;
}

}  // namespace v1
}  // namespace leanattn
