// c_recurrent.cpp -- the C ABI of layers with a recurrent state.
#include <fmt/format.h>

#include <array>

#include "leanattn/recurrent.h"
#include "runtime/api/c_structs.hpp"
#include "runtime/api/last_error.hpp"
#include "runtime/engine/engine.hpp"

namespace {

using namespace leanattn;

static_assert(static_cast<int>(RecurrentKind::gated_delta) == LEANATTN_GATED_DELTA &&
              static_cast<int>(RecurrentKind::rwkv7) == LEANATTN_RWKV7 && kRecurrentKinds.size() == LEANATTN_RWKV7 + 1);
static_assert(static_cast<int>(Gates::given) + 1 == LEANATTN_GATES_GIVEN &&
              static_cast<int>(Gates::constant) + 1 == LEANATTN_GATES_CONSTANT);

/// The enumerator of this number. Errors: invalid_argument.
template <class Enum, std::size_t N>
Result<Enum> enumerator(const char* name, std::int32_t value, const std::array<Enum, N>& all) {
  if (value >= 0 && static_cast<std::size_t>(value) < N) return all[static_cast<std::size_t>(value)];
  return fail(ErrorCode::invalid_argument, fmt::format("{} is {}", name, value), fmt::format("Give 0 to {}.", N - 1));
}

Result<RecurrentProblem> read_layer(const leanattn_recurrent_layer* layer) {
  leanattn_recurrent_layer storage;
  const auto found = leanattn::detail::read_struct("recurrent_layer", layer, storage);
  if (!found) return tl::unexpected(found.error());
  const leanattn_recurrent_layer& read = **found;
  const auto kind = enumerator("recurrence", read.recurrence, kRecurrentKinds);
  const auto dtype = enumerator("dtype", read.dtype, std::array{DType::bf16, DType::fp16});
  const auto state = enumerator("state", read.state, kStateTypes);
  const auto output = enumerator("output", read.output, kOutputGates);
  if (!kind) return tl::unexpected(kind.error());
  if (!dtype) return tl::unexpected(dtype.error());
  if (!state) return tl::unexpected(state.error());
  if (!output) return tl::unexpected(output.error());
  constexpr int kFlags = LEANATTN_RECURRENT_NORMALISE | LEANATTN_RECURRENT_RAGGED | LEANATTN_RECURRENT_SNAPSHOTS |
                         LEANATTN_RECURRENT_KEYS_FIRST;
  if ((read.flags & ~kFlags) != 0)
    return fail(ErrorCode::invalid_argument, fmt::format("flags is {}, with bits that have no meaning", read.flags),
                "Give LEANATTN_RECURRENT_* values.");
  RecurrentProblem problem = usual_problem(*kind);
  if (read.gates != LEANATTN_GATES_USUAL) {
    const auto gates = enumerator("gates", read.gates - 1, kGates);
    if (!gates) return tl::unexpected(gates.error());
    problem.gates = *gates;
  }
  problem.qk_heads = read.qk_heads, problem.v_heads = read.v_heads;
  problem.key_dim = read.key_dim, problem.value_dim = read.value_dim;
  problem.dtype = *dtype, problem.state = *state, problem.output_gate = *output;
  problem.tokens = read.tokens != 0 ? read.tokens : 1, problem.conv_width = read.conv_width;
  problem.norm_heads = read.norm_heads != 0 ? read.norm_heads : 1, problem.ring = read.ring;
  problem.normalises = (read.flags & LEANATTN_RECURRENT_NORMALISE) != 0;
  problem.ragged = (read.flags & LEANATTN_RECURRENT_RAGGED) != 0;
  problem.snapshots = (read.flags & LEANATTN_RECURRENT_SNAPSHOTS) != 0;
  problem.keys_first = (read.flags & LEANATTN_RECURRENT_KEYS_FIRST) != 0;
  return problem;
}

const RecurrentPlanCore& core_of_recurrent(const leanattn_recurrent_plan* plan) {
  return *static_cast<const RecurrentPlanCore*>(plan);
}

}  // namespace

extern "C" {

leanattn_status leanattn_engine_recurrent_plan(leanattn_engine* engine, const leanattn_recurrent_layer* layer,
                                               int32_t batch, leanattn_stream stream,
                                               const leanattn_recurrent_plan** plan) noexcept {
  return leanattn::detail::guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(leanattn::detail::null_argument("plan"));
    *plan = nullptr;
    if (engine == nullptr) return tl::unexpected(leanattn::detail::null_argument("engine"));
    const auto problem = read_layer(layer);
    if (!problem) return tl::unexpected(problem.error());
    auto& core = *static_cast<EngineCore*>(engine);
    if (!core.in_its_process()) return tl::unexpected(ProcessMark::forked());
    const auto made = core.plan_recurrent(*problem, batch, stream);
    if (!made) return tl::unexpected(made.error());
    *plan = *made;
    return {};
  });
}

leanattn_status leanattn_recurrent_plan_launch(const leanattn_recurrent_plan* plan, const leanattn_recurrent_args* args,
                                               leanattn_stream stream) noexcept {
  return leanattn::detail::guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(leanattn::detail::null_argument("plan"));
    leanattn_recurrent_args storage;
    const auto read = leanattn::detail::read_struct("recurrent_args", args, storage);
    if (!read) [[unlikely]]
      return tl::unexpected(read.error());
    return core_of_recurrent(plan).launch(**read, stream);
  });
}

const char* leanattn_recurrent_plan_kernel(const leanattn_recurrent_plan* plan) noexcept {
  return plan == nullptr ? nullptr : core_of_recurrent(plan).name().c_str();
}

}  // extern "C"
