// c_api.cpp -- the C ABI's engines, plans, workspaces and launches: arguments checked, then EngineCore and PlanCore.
#include "generator/workspace.hpp"
#include "leanattn/leanattn.h"
#include "runtime/api/c_structs.hpp"
#include "runtime/api/last_error.hpp"
#include "runtime/engine/engine.hpp"

namespace {

using namespace leanattn;
using leanattn::detail::guarded;
using leanattn::detail::null_argument;

static_assert(static_cast<int>(Provenance::exact) == LEANATTN_EXACT &&
              static_cast<int>(Provenance::fallback) == LEANATTN_FALLBACK &&
              static_cast<int>(Provenance::without_pdl) == LEANATTN_WITHOUT_PDL);

EngineCore& core_of(leanattn_engine* engine) { return *static_cast<EngineCore*>(engine); }
const EngineCore& core_of(const leanattn_engine* engine) { return *static_cast<const EngineCore*>(engine); }
const PlanCore& core_of(const leanattn_plan* plan) { return *static_cast<const PlanCore*>(plan); }

Result<EngineCoreOptions> read_options(const leanattn_engine_options* options) {
  EngineCoreOptions result;
  if (options == nullptr) return result;
  leanattn_engine_options storage;
  const auto found = detail::read_struct("engine_options", options, storage);
  if (!found) return tl::unexpected(found.error());
  const leanattn_engine_options& read = **found;
  if ((read.flags & ~LEANATTN_ENGINE_NO_DISK_CACHE) != 0) {
    return fail(ErrorCode::invalid_argument,
                "engine_options.flags is " + std::to_string(read.flags) + ", with bits that have no meaning",
                "Give LEANATTN_ENGINE_* values.");
  }
  result.device = read.device;
  result.disk_cache = (read.flags & LEANATTN_ENGINE_NO_DISK_CACHE) == 0;
  if (read.cache_dir != nullptr) result.cache_dir = read.cache_dir;
  return result;
}

Result<WhenNotLoaded> read_when_missing(const leanattn_plan_options* options) {
  if (options == nullptr) return WhenNotLoaded::compile;
  leanattn_plan_options storage;
  const auto read = detail::read_struct("plan_options", options, storage);
  if (!read) [[unlikely]]
    return tl::unexpected(read.error());
  const std::int32_t value = (*read)->when_missing;
  if (value != LEANATTN_WHEN_MISSING_COMPILE && value != LEANATTN_WHEN_MISSING_FALLBACK) [[unlikely]] {
    return fail(ErrorCode::invalid_argument, "when_missing is " + std::to_string(value),
                "Give LEANATTN_WHEN_MISSING_COMPILE (0) or LEANATTN_WHEN_MISSING_FALLBACK (1).");
  }
  if ((*read)->reserved != 0) [[unlikely]] {
    return fail(ErrorCode::invalid_argument, "plan_options.reserved is " + std::to_string((*read)->reserved),
                "Leave it 0; leanattn_plan_options_init does.");
  }
  return value == LEANATTN_WHEN_MISSING_COMPILE ? WhenNotLoaded::compile : WhenNotLoaded::stand_in;
}

leanattn_choice to_c(const DecodeProblem& problem, const Shape& shape, const Choice& choice) {
  leanattn_choice out{};
  const bool tuned = choice.provenance != Provenance::fallback;
  const KernelSpec& spec = choice.config.spec;
  out.provenance = static_cast<std::int32_t>(choice.provenance);
  out.stale = choice.stale;
  out.grid = choice.config.grid;
  out.workspace_bytes = workspace_for(problem, plan_size(problem, shape), choice.config).total_bytes;
  out.tuned_us = choice.tuned_us;
  out.tuned_longest_context = tuned ? choice.tuned_shape.longest_context : 0;
  out.tuned_total_context = tuned ? total_tokens(choice.tuned_shape) : 0;
  out.tuned_batch = tuned ? choice.tuned_shape.batch : 0;
  detail::copy_text(out.layer, choice.layer);
  detail::copy_text(out.kernel_name, kernel_name(spec));
  out.pdl = spec.pdl;
  out.tuned_pdl = choice.tuned_pdl;
  return out;
}

leanattn_plan_info to_c(const PlanCore& plan) {
  const Choice& choice = plan.choice();
  const PreparedKernel& kernel = plan.kernel();
  leanattn_plan_info out{};
  out.kernel_name = plan.name().c_str();
  out.layer = choice.layer.c_str();
  out.grid = choice.config.grid;
  out.workspace_bytes = plan.limits().workspace.total_bytes;
  out.tuned_us = choice.tuned_us;
  out.compile_ms = kernel.compile_ms;
  out.provenance = static_cast<std::int32_t>(choice.provenance);
  out.stale = choice.stale;
  out.max_batch = plan.limits().size.batch;
  out.threads = kernel.threads;
  out.shared_bytes = kernel.shared_bytes;
  out.registers = kernel.registers;
  out.ctas_per_sm = kernel.resident_ctas_per_sm;
  out.pdl = choice.config.spec.pdl;
  out.tuned_pdl = choice.tuned_pdl;
  out.stand_in = plan.stand_in();
  return out;
}

}  // namespace

extern "C" {

leanattn_status leanattn_engine_create(const leanattn_engine_options* options, leanattn_engine** engine) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    *engine = nullptr;
    const auto read = read_options(options);
    if (!read) return tl::unexpected(read.error());
    auto opened = EngineCore::open(*read);
    if (!opened) return tl::unexpected(std::move(opened.error()));
    *engine = opened->release();
    return {};
  });
}

void leanattn_engine_destroy(leanattn_engine* engine) noexcept {
  if (engine == nullptr || !core_of(engine).in_its_process()) return;
  delete &core_of(engine);
}

const char* leanattn_engine_warnings(const leanattn_engine* engine) noexcept {
  if (engine == nullptr || !core_of(engine).in_its_process()) return "";
  try {
    return core_of(engine).warnings();
  } catch (const std::exception&) {  // out of memory
    return "";
  }
}

leanattn_status leanattn_engine_reload(leanattn_engine* engine) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    if (!core_of(engine).in_its_process()) return tl::unexpected(ProcessMark::forked());
    core_of(engine).reload();
    return {};
  });
}

leanattn_status leanattn_shape_of_requests(const int32_t* context_lengths, const int32_t* query_tokens, int32_t batch,
                                           leanattn_shape* shape) noexcept {
  return guarded([&]() -> Result<void> {
    if (context_lengths == nullptr) return tl::unexpected(null_argument("context_lengths"));
    if (batch < 1)
      return fail(ErrorCode::invalid_argument, fmt::format("batch is {}", batch), "Give at least one request.");
    const auto requests = static_cast<std::size_t>(batch);
    RequestLengths lengths{.context_lengths = {context_lengths, requests}};
    if (query_tokens != nullptr) lengths.query_tokens = {query_tokens, requests};
    // The mix is that of a problem with prefill; others do not look at it.
    DecodeProblem problem;
    problem.features.ragged_q = true, problem.features.q_len = kMostPrefillTokens;
    const Shape found = shape_of(problem, lengths);
    leanattn_shape out;
    leanattn_shape_init(&out);
    out.batch = found.batch, out.longest_context = found.longest_context, out.total_context = found.total_context;
    out.query_tokens = found.mix.query_tokens, out.chunks = found.mix.chunks;
    out.chunk_context = found.mix.chunk_context, out.chunk_pairs = found.mix.chunk_pairs;
    return detail::write_struct("shape", out, shape);
  });
}

leanattn_status leanattn_engine_lookup(const leanattn_engine* engine, const leanattn_problem* problem,
                                       const leanattn_shape* shape, leanattn_choice* choice) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    DecodeProblem the_problem;
    if (auto ok = detail::read_problem(problem, the_problem); !ok) [[unlikely]]
      return ok;
    Shape the_shape;
    if (auto ok = detail::read_shape(shape, the_problem, the_shape); !ok) [[unlikely]]
      return ok;
    if (!core_of(engine).in_its_process()) return tl::unexpected(ProcessMark::forked());
    const auto found = core_of(engine).lookup(the_problem, the_shape);
    if (!found) return tl::unexpected(found.error());
    return detail::write_struct("choice", to_c(the_problem, the_shape, *found), choice);
  });
}

leanattn_status leanattn_engine_plan_with(leanattn_engine* engine, const leanattn_problem* problem,
                                          const leanattn_shape* shape, const leanattn_plan_options* options,
                                          leanattn_stream stream, const leanattn_plan** plan) noexcept {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(null_argument("plan"));
    *plan = nullptr;
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    DecodeProblem the_problem;
    if (auto ok = detail::read_problem(problem, the_problem); !ok) [[unlikely]]
      return ok;
    Shape the_shape;
    if (auto ok = detail::read_shape(shape, the_problem, the_shape); !ok) [[unlikely]]
      return ok;
    const auto when_missing = read_when_missing(options);
    if (!when_missing) [[unlikely]]
      return tl::unexpected(when_missing.error());
    const auto made = core_of(engine).plan(the_problem, the_shape, stream, *when_missing);
    if (!made) return tl::unexpected(made.error());
    *plan = *made;
    return {};
  });
}

leanattn_status leanattn_engine_plan(leanattn_engine* engine, const leanattn_problem* problem,
                                     const leanattn_shape* shape, leanattn_stream stream,
                                     const leanattn_plan** plan) noexcept {
  return leanattn_engine_plan_with(engine, problem, shape, nullptr, stream, plan);
}

leanattn_status leanattn_engine_merge_partials(leanattn_engine* engine, const leanattn_merge_args* args,
                                               leanattn_stream stream) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    leanattn_merge_args storage;
    const auto read = detail::read_struct("merge_args", args, storage);
    if (!read) return tl::unexpected(read.error());
    if (!core_of(engine).in_its_process()) return tl::unexpected(ProcessMark::forked());
    return core_of(engine).merge_partials(**read, stream);
  });
}

leanattn_status leanattn_plan_get_info(const leanattn_plan* plan, leanattn_plan_info* info) noexcept {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(null_argument("plan"));
    return detail::write_struct("plan_info", to_c(core_of(plan)), info);
  });
}

int64_t leanattn_plan_workspace_bytes(const leanattn_plan* plan) noexcept {
  return plan == nullptr ? -1 : core_of(plan).limits().workspace.total_bytes;
}

leanattn_status leanattn_plan_init_workspace(const leanattn_plan* plan, void* workspace, int64_t workspace_bytes,
                                             leanattn_stream stream) noexcept {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(null_argument("plan"));
    return core_of(plan).init_workspace(workspace, workspace_bytes, stream);
  });
}

leanattn_status leanattn_plan_reset_workspace(const leanattn_plan* plan, void* workspace, int64_t workspace_bytes,
                                              leanattn_stream stream) noexcept {
  return leanattn_plan_init_workspace(plan, workspace, workspace_bytes, stream);
}

leanattn_status leanattn_engine_check(const leanattn_engine* engine) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    if (!core_of(engine).in_its_process()) return tl::unexpected(ProcessMark::forked());
    return core_of(engine).check();
  });
}

leanattn_status leanattn_engine_acknowledge(leanattn_engine* engine) noexcept {
  return guarded([&]() -> Result<void> {
    if (engine == nullptr) return tl::unexpected(null_argument("engine"));
    if (!core_of(engine).in_its_process()) return tl::unexpected(ProcessMark::forked());
    core_of(engine).acknowledge();
    return {};
  });
}

leanattn_status leanattn_plan_launch(const leanattn_plan* plan, const leanattn_decode_args* args, void* workspace,
                                     leanattn_stream stream) noexcept {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return tl::unexpected(null_argument("plan"));
    leanattn_decode_args storage;
    const auto read = detail::read_struct("decode_args", args, storage);
    if (!read) [[unlikely]]
      return tl::unexpected(read.error());
    return core_of(plan).launch(**read, workspace, stream);
  });
}

}  // extern "C"
