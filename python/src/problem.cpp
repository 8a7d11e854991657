// problem.cpp -- reads problems, and checks what the library would refuse later.
#include "problem.hpp"

#include "errors.hpp"
#include "names.hpp"
#include "runtime/problem.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

/// A problem as the run-time has it. The public enumerators have the values of its own.
DecodeProblem to_runtime(const Problem& problem) {
  static_assert(static_cast<int>(DataType::bf16) == 0 && static_cast<int>(CacheLayout::contiguous) == 0);
  static_assert(static_cast<int>(AttentionMask::full) == static_cast<int>(QueryMask::full));
  static_assert(static_cast<int>(CacheFormat::fp8_ds_mla) == static_cast<int>(KvFormat::fp8_ds_mla));
  static_assert(static_cast<int>(CacheScale::token) == static_cast<int>(KvScale::token));
  static_assert(static_cast<int>(RopePairing::interleaved) == static_cast<int>(Rope::interleaved));
  DecodeProblem made;
  made.q_heads = problem.q_heads;
  made.kv_heads = problem.kv_heads;
  made.head_dim = problem.head_dim;
  made.dtype = problem.dtype == DataType::bf16 ? DType::bf16 : DType::fp16;
  made.layout = problem.layout == CacheLayout::contiguous ? KvLayout::contiguous : KvLayout::strided;
  made.lse = problem.lse;
  made.pdl = problem.pdl;
  made.features = {.page_size = problem.page_size,
                   .q_len = problem.q_len,
                   .ragged_q = problem.ragged_q,
                   .mask = static_cast<QueryMask>(problem.query_mask),
                   .window = problem.window,
                   .sink_tokens = problem.sink_tokens,
                   .sink_logits = problem.sink_logits,
                   .soft_cap = problem.soft_cap,
                   .alibi = problem.alibi,
                   .score = problem.score,
                   .kv_format = static_cast<KvFormat>(problem.kv_format),
                   .kv_scale = static_cast<KvScale>(problem.kv_scale),
                   .v_head_dim = problem.v_head_dim,
                   .latent = problem.latent,
                   .append = problem.append,
                   .rope = static_cast<Rope>(problem.rope),
                   .rope_dim = problem.rope_dim,
                   .batch_invariant = problem.batch_invariant,
                   .selection_block = problem.selection_block,
                   .selection_in_pool = problem.selection_in_pool,
                   .second_cache = problem.second_cache,
                   .context_parallel = problem.context_parallel,
                   .context_interleave = problem.context_interleave,
                   .replicate_output = problem.replicate_output};
  return made;
}

}  // namespace

Problem read_problem(nb::handle object) {
  const auto integer = [&](const char* name) { return int_of(object.attr(name), name); };
  const auto flag = [&](const char* name) { return bool_of(object.attr(name), name); };
  Problem problem;
  problem.q_heads = integer("q_heads");
  problem.kv_heads = integer("kv_heads");
  problem.head_dim = integer("head_dim");
  problem.dtype = static_cast<DataType>(number_of(kDataTypes, object.attr("dtype"), "dtype"));
  problem.layout = static_cast<CacheLayout>(number_of(kCacheLayouts, object.attr("kv_layout"), "kv_layout"));
  problem.lse = flag("lse");
  problem.pdl = flag("pdl");
  problem.page_size = integer("page_size");
  problem.q_len = integer("q_len");
  problem.ragged_q = flag("ragged_q");
  problem.query_mask = static_cast<AttentionMask>(number_of(kMasks, object.attr("mask"), "mask"));
  problem.window = integer("window");
  problem.sink_tokens = integer("sink_tokens");
  problem.sink_logits = flag("sink_logits");
  problem.alibi = flag("alibi");
  problem.soft_cap = float_of(object.attr("soft_cap"), "soft_cap");
  problem.score = text_of(object.attr("score"), "score");
  problem.kv_format = static_cast<CacheFormat>(number_of(kCacheFormats, object.attr("kv_dtype"), "kv_dtype"));
  problem.kv_scale = static_cast<CacheScale>(number_of(kCacheScales, object.attr("kv_scale"), "kv_scale"));
  problem.v_head_dim = integer("v_head_dim");
  problem.batch_invariant = flag("batch_invariant");
  problem.append = flag("append");
  problem.rope = static_cast<RopePairing>(number_of(kRopes, object.attr("rope"), "rope"));
  problem.rope_dim = integer("rope_dim");
  problem.latent = flag("latent");
  problem.selection_block = integer("selection_block");
  problem.selection_in_pool = flag("selection_in_pool");
  problem.second_cache = flag("second_cache");
  problem.context_parallel = integer("context_parallel");
  problem.context_interleave = integer("context_interleave");
  problem.replicate_output = flag("replicate_output");
  return problem;
}

void bind_problem(nb::module_& module) {
  module.def(
      "_check_problem", [](nb::handle problem) { unwrap(validate(to_runtime(read_problem(problem)))); },
      nb::arg("problem"), nb::sig("def _check_problem(problem: leanattn.Problem) -> None"),
      "Raises where no kernel can be made for a problem; the message names the field. Needs neither GPU nor NVRTC.");
}

}  // namespace leanattn::python
