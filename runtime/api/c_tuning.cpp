// c_tuning.cpp -- the C ABI's tuning: arrays of structs in and out, then EngineCore.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "leanattn/leanattn.h"
#include "runtime/api/c_structs.hpp"
#include "runtime/api/last_error.hpp"
#include "runtime/engine/engine.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

static_assert(static_cast<int>(Autotune::off) == LEANATTN_AUTOTUNE_OFF &&
              static_cast<int>(Autotune::background) == LEANATTN_AUTOTUNE_BACKGROUND &&
              static_cast<int>(Autotune::wait) == LEANATTN_AUTOTUNE_WAIT);

/// Element `index` of an array whose elements have the size of the first, which may not be that of this library.
template <class Struct>
Struct* element(Struct* first, std::size_t index) {
  using Byte = std::conditional_t<std::is_const_v<Struct>, const char, char>;
  return reinterpret_cast<Struct*>(reinterpret_cast<Byte*>(first) + index * first->struct_size);
}

Result<TuneOptions> read_tune_options(const leanattn_tune_options* options) {
  TuneOptions result;
  if (options == nullptr) return result;
  leanattn_tune_options storage;
  const auto found = detail::read_struct("tune_options", options, storage);
  if (!found) return tl::unexpected(found.error());
  const leanattn_tune_options& read = **found;
  if (read.reserved != 0) {
    return fail(ErrorCode::invalid_argument, fmt::format("tune_options.reserved is {}", read.reserved),
                "Leave it 0; leanattn_tune_options_init does.");
  }
  result.budget_s = read.budget_s;
  result.shape_budget_s = read.shape_budget_s;
  result.memory_bytes = read.memory_bytes;
  result.retune = read.retune != 0;
  if (read.program != nullptr) result.program = read.program;
  if (read.progress != nullptr) {
    result.progress = [callback = read.progress, context = read.progress_context](const TuneStep& step) {
      leanattn_tune_progress said{};
      said.struct_size = sizeof said;
      said.phase = step.phase.c_str();
      said.shape = step.shape;
      said.shape_count = step.shape_count;
      said.done = step.done;
      said.total = step.total;
      said.best_us = step.best_us;
      said.elapsed_s = step.elapsed_s;
      return callback(&said, context) == 0;
    };
  }
  return result;
}

Result<std::vector<Shape>> read_shapes(const leanattn_shape* shapes, std::int32_t count, const DecodeProblem& problem) {
  if (count < 1)
    return fail(ErrorCode::invalid_argument, fmt::format("shape_count is {}", count), "Give at least one shape.");
  if (shapes == nullptr) return tl::unexpected(detail::null_argument("shapes"));
  std::vector<Shape> read;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const leanattn_shape* const shape = element(shapes, i);
    if (shape->struct_size != shapes->struct_size) {
      return fail(ErrorCode::invalid_argument,
                  fmt::format("shapes[{}].struct_size is {}, and that of shapes[0] is {}", i, shape->struct_size,
                              shapes->struct_size),
                  "Make each with leanattn_shape_init.");
    }
    if (auto ok = detail::read_shape(shape, problem, read.emplace_back()); !ok) return tl::unexpected(ok.error());
  }
  return read;
}

leanattn_tuned_shape to_c(const ShapeTuning& tuned) {
  leanattn_tuned_shape out{};
  out.status = static_cast<std::int32_t>(tuned.status);
  out.provenance = static_cast<std::int32_t>(tuned.choice.provenance);
  out.measured = tuned.measured;
  out.finished = tuned.finished;
  out.median_us = tuned.choice.provenance == Provenance::exact ? tuned.choice.tuned_us : 0;
  out.read_limit_us = tuned.read_limit_us;
  out.default_us = tuned.default_us;
  out.candidates = tuned.candidates;
  out.rejected = tuned.rejected;
  out.incorrect = tuned.incorrect;
  return out;
}

/// Checks before the tuning what would be a pity to find wrong after it.
Result<void> check_results(leanattn_tuned_shape* results, std::size_t count) {
  for (std::size_t i = 0; results != nullptr && i < count; ++i) {
    const std::size_t size = (i == 0 ? results : element(results, i))->struct_size;
    if (size < detail::kFirstSize<leanattn_tuned_shape> || size > detail::kLargestStruct ||
        size != results->struct_size)
      return tl::unexpected(detail::bad_struct_size("tuned_shape", size, sizeof(leanattn_tuned_shape)));
  }
  return {};
}

Result<EngineCore*> engine_here(leanattn_engine* engine) {
  if (engine == nullptr) return tl::unexpected(detail::null_argument("engine"));
  auto* const core = static_cast<EngineCore*>(engine);
  if (!core->in_its_process()) return tl::unexpected(ProcessMark::forked());
  return core;
}

Result<void> tune_for_c(leanattn_engine* engine, const leanattn_problem* problem, const leanattn_shape* shapes,
                        std::int32_t shape_count, const leanattn_tune_options* options, leanattn_tuned_shape* results) {
  const Result<EngineCore*> core = engine_here(engine);
  if (!core) return tl::unexpected(core.error());
  DecodeProblem the_problem;
  if (auto ok = detail::read_problem(problem, the_problem); !ok) return ok;
  const auto the_shapes = read_shapes(shapes, shape_count, the_problem);
  if (!the_shapes) return tl::unexpected(the_shapes.error());
  const auto the_options = read_tune_options(options);
  if (!the_options) return tl::unexpected(the_options.error());
  if (auto ok = check_results(results, the_shapes->size()); !ok) return ok;
  const Result<TuneReport> report = (*core)->tune(the_problem, *the_shapes, *the_options);
  if (!report) return tl::unexpected(report.error());
  for (std::size_t i = 0; results != nullptr && i < report->shapes.size(); ++i) {
    if (auto ok = detail::write_struct("tuned_shape", to_c(report->shapes[i]), element(results, i)); !ok) return ok;
  }
  if (report->error) return tl::unexpected(*report->error);
  return {};
}

}  // namespace
}  // namespace v1
}  // namespace leanattn

extern "C" {

leanattn_status leanattn_engine_tune(leanattn_engine* engine, const leanattn_problem* problem,
                                     const leanattn_shape* shapes, int32_t shape_count,
                                     const leanattn_tune_options* options, leanattn_tuned_shape* results) noexcept {
  return leanattn::detail::guarded(
      [&] { return leanattn::tune_for_c(engine, problem, shapes, shape_count, options, results); });
}

leanattn_status leanattn_engine_autotune(leanattn_engine* engine, leanattn_autotune_mode mode,
                                         const leanattn_tune_options* options) noexcept {
  using namespace leanattn;
  return leanattn::detail::guarded([&]() -> Result<void> {
    const Result<EngineCore*> core = engine_here(engine);
    if (!core) return tl::unexpected(core.error());
    if (mode < LEANATTN_AUTOTUNE_OFF || mode > LEANATTN_AUTOTUNE_WAIT) {
      return fail(ErrorCode::invalid_argument, fmt::format("mode is {}", static_cast<int>(mode)),
                  "Give LEANATTN_AUTOTUNE_OFF (0), LEANATTN_AUTOTUNE_BACKGROUND (1) or LEANATTN_AUTOTUNE_WAIT (2).");
    }
    auto the_options = read_tune_options(options);
    if (!the_options) return tl::unexpected(the_options.error());
    the_options->progress = {};
    return (*core)->set_autotune(static_cast<Autotune>(mode), *the_options);
  });
}

}  // extern "C"
