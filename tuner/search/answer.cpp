#include "tuner/search/answer.hpp"

#include <fmt/format.h>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Puts the last readable one of the winners with this key into `tuned`.
void take_winner(const std::vector<Winner>& winners, const WinnerKey& key, TunedShape& tuned) {
  for (const Winner& winner : winners) {
    if (winner.problem != key.problem || winner.shape != key.shape || winner.policy != key.policy) continue;
    const Result<Config> config = config_from_json(winner.config);
    if (!config) continue;
    tuned.winner = *config;
    tuned.median_us = winner.median_us, tuned.low_us = winner.low_us, tuned.high_us = winner.high_us;
    if (tuned.read_limit_us == 0) tuned.read_limit_us = winner.read_limit_us;
  }
}

}  // namespace

TunedShape known_answer(const TuneRequest& request, const DeviceFacts& device, const Shape& shape, TuningDb& db) {
  TunedShape known;
  known.shape = shape;
  known.winner = default_config({device, request.problem, shape});
  known.finished = false;
  const DeviceModel model = device_model(device);
  const Result<std::vector<Winner>> winners = db.winners(model);
  if (!winners) return known;
  const std::string problem = to_json(request.problem), wanted = to_json(shape);
  take_winner(*winners, {model, problem, wanted, to_string(request.policy)}, known);
  return known;
}

std::string no_winner_text(const TunedShape& shape) {
  return fmt::format("batch {}, longest context {}: no new winner is stored{}, because {}", shape.shape.batch,
                     shape.shape.longest_context, shape.median_us > 0 ? " and the earlier one stays" : "",
                     shape.no_winner);
}

Result<TunedShape> stored_answer(TuningDb& db, const WinnerKey& key, TunedShape tuned) {
  if (auto rebuilt = db.rebuild_winners(key.device_model, key.problem, key.shape, key.policy); !rebuilt)
    return tl::unexpected(rebuilt.error());
  const Result<std::vector<Winner>> winners = db.winners(key.device_model);
  if (!winners) return tl::unexpected(winners.error());
  take_winner(*winners, key, tuned);
  return tuned;
}

}  // namespace v1
}  // namespace leanattn
