#include "generator/generator.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "generator/prune/prune.hpp"
#include "generator/row_format.hpp"
#include "generator/score_expression.hpp"
#include "generator/templates.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Counts changes of the text that this file writes itself. Changes of the templates show in their bytes.
constexpr std::string_view kGeneratorVersion = "5";

std::string_view template_text(std::string_view name) {
  for (const EmbeddedTemplate& t : embedded_templates()) {
    if (t.name == name) return t.text;
  }
  assert(false && "a module named here must exist in templates/");
  return {};
}

/// The modules that a spec uses, in the order in which they build on each other.
std::vector<std::string_view> modules_of(const KernelSpec& spec) {
  std::vector<std::string_view> modules{"kernel_args.cuh", "line/schedule.cuh", "shared_layout.cuh", "prelude.cuh"};
  const auto add = [&](std::initializer_list<std::string_view> names) { modules.insert(modules.end(), names); };
  const bool one_byte = has_one_byte_elements(spec.features), formatted = row_format(spec.features) != nullptr,
             converts = converts_rows(spec), paged = spec.features.page_size > 0,
             selects = has_selection(spec.features);
  if (spec.dtype == DType::bf16) add({"attend/bf16.cuh"});
  if (spec.dtype == DType::fp16 || one_byte) add({"attend/fp16.cuh"});
  const bool group = in_group(spec.features);
  add({"line/rows.cuh"});
  if (needs_positions(spec.features)) add({"line/part_of_context.cuh"});
  add({"line/find_start.cuh", "line/walk.cuh", "line/steps.cuh",
       selects              ? "kv/selection.cuh"
       : gathers_rows(spec) ? "kv/row_pages.cuh"
                            : "kv/page_table.cuh",
       "attend/score.cuh", one_byte ? "kv/elements_8bit.cuh" : "kv/elements_16bit.cuh",
       spec.features.rope != Rope::none ? "attend/rope.cuh" : "attend/no_rope.cuh"});
  if (gathers_rows(spec)) add({"kv/token_holes.cuh"});
  if (selects && !gathers_rows(spec)) add({"kv/run_holes.cuh"});
  const bool to_stage = appends_to_stage(spec);
  if (spec.features.append) add({"kv/append.cuh"});
  if (spec.features.append && !to_stage && !formatted) add({"kv/append_elements.cuh", "kv/append_to_cache.cuh"});
  if (one_byte) add({"attend/value_unit.cuh"});
  add({"bounded_wait.cuh"});
  if (spec.load == LoadPath::tensor) {
    add({"line/shared_walk.cuh", "attend/wgmma.cuh", "kv/tensor.cuh"});
    if (gathers_rows(spec)) add({"kv/row_lanes.cuh", "kv/gatherers.cuh"});
    if (gathers_rows(spec) && !converts) add({selects ? "kv/selected_tokens.cuh" : "kv/paged_tokens.cuh"});
    if (converts)
      add({selects ? "kv/selected_places.cuh" : "kv/row_places.cuh", "kv/row_copies.cuh",
           buffers_rows(spec) ? "kv/row_buffer.cuh" : "kv/row_panels.cuh"});
    if (formatted && spec.features.append) add({"kv/append_rows.cuh", "kv/append_to_cache.cuh"});
    if (to_stage) add({"kv/append_to_stage.cuh"});
    add({buffers_rows(spec)   ? "kv/produce_buffered_rows.cuh"
         : converts           ? "kv/produce_rows.cuh"
         : gathers_rows(spec) ? "kv/produce_gathered.cuh"
         : selects            ? "kv/produce_selected.cuh"
         : paged              ? "kv/produce_paged.cuh"
                              : "kv/produce_dense.cuh"});
    if (query_rows_lead(spec)) add({"attend/row_scores.cuh"});
    if (warpgroups_have_roles(spec) || writes_rows(spec)) add({"attend/store_matrices.cuh"});
    add({warpgroups_have_roles(spec) ? "attend/wgmma_roles.cuh"
         : query_rows_lead(spec)     ? "attend/wgmma_rows.cuh"
                                     : "attend/wgmma_tokens.cuh"});
  } else {
    add({"kv/tokens.cuh", selects ? "kv/selected.cuh" : paged ? "kv/paged.cuh" : "kv/dense.cuh"});
  }
  switch (spec.load) {
    case LoadPath::ldg: add({"kv/fragments.cuh", "kv/ldg.cuh", "attend/mma.cuh"}); break;
    case LoadPath::cp_async: add({"kv/fragments.cuh", "kv/warp_ring.cuh", "kv/cp_async.cuh", "attend/mma.cuh"}); break;
    case LoadPath::bulk: add({"kv/fragments.cuh", "kv/warp_ring.cuh", "kv/bulk.cuh", "attend/mma.cuh"}); break;
    case LoadPath::vector: add({"attend/vector.cuh"}); break;
    case LoadPath::tensor: break;
  }
  const bool roles = warpgroups_have_roles(spec);
  add({"merge/partial.cuh", "merge/output.cuh"});
  if (!holds_results(spec)) add({"merge/states.cuh"});
  add({"merge/workspace.cuh", keeps_partials_by_hint(spec) ? "merge/l2_hint.cuh" : "merge/l2_prefetch.cuh"});
  if (group) add({"merge/exchange.cuh", "merge/send_columns.cuh"});
  if (holds_results(spec)) {
    add({roles                   ? "merge/role_columns.cuh"
         : query_rows_lead(spec) ? "merge/row_columns.cuh"
                                 : "merge/token_columns.cuh",
         "merge/held_results.cuh", writes_rows(spec) ? "merge/write_rows.cuh" : "merge/write_columns.cuh"});
  } else {
    add({"merge/buffer_results.cuh"});
  }
  if (spec.fixup == FixUp::ticket) {
    add({"merge/ticket.cuh"});
    if (roles) add({"merge/no_pairs.cuh"});
  } else {
    if (strip_loads(spec) == 1) {
      add({"merge/slice.cuh"});
    } else {
      add({counts_partials(spec) ? "merge/counted_partials.cuh" : "merge/announced_partials.cuh",
           "merge/share_strips.cuh"});
    }
    add({"merge/shared_tiles.cuh", counts_partials(spec) ? "merge/wait_counted.cuh" : "merge/wait.cuh"});
  }
  if (group) add({"merge/receive_columns.cuh"});
  add({"merge/finish_segment.cuh", roles                           ? "decode_roles.cuh"
                                   : spec.load == LoadPath::tensor ? "decode_wgmma.cuh"
                                                                   : "decode.cuh"});
  return modules;
}

/// The type of the matrix instructions' operands: that of q, or fp16 where elements have one byte, because fp16 has all
/// their values.
DType operand_type(const KernelSpec& spec) { return has_one_byte_elements(spec.features) ? DType::fp16 : spec.dtype; }

std::string header_comment(const KernelSpec& spec) {
  return fmt::format(
      "// {}\n"
      "// LeanAttention decode for {}: {} q, k, v and o; head_dim {}; group {} ({} row block{} of {} query rows); {} "
      "KV{}{}.\n"
      "// LeanTile {} tokens; {} warps x {} tokens a step; load path {}, {} stage{}; fix-up {}; {} CTA{} per SM{}.\n"
      "// Launch: {} threads, {} bytes of dynamic shared memory. {}\n"
      "// Generated by leanattn; the spec as JSON: {}\n\n",
      kernel_name(spec), to_string(spec.arch), to_string(spec.dtype), spec.head_dim, spec.group, row_blocks(spec),
      row_blocks(spec) == 1 ? "" : "s", rows_per_block(spec), to_string(spec.layout), spec.lse ? "; writes LSE" : "",
      is_plain(spec.features) ? "" : "; " + to_json(spec.features), spec.tile, spec.warps, spec.warp_tokens,
      to_string(spec.load), spec.stages, spec.stages == 1 ? "" : "s", to_string(spec.fixup), spec.ctas_per_sm,
      spec.ctas_per_sm == 1 ? "" : "s", spec.pdl ? "; programmatic dependent launch" : "", cta_threads(spec),
      shared_bytes(spec),
      waits(spec) ? "Cooperative, because CTAs wait for each other: at most as many as are resident."
                  : "Any grid, because no CTA waits for another.",
      to_json(spec));
}

/// Partials that a thread loads together. n of them take about 6 n registers, beside what the main loop keeps across a
/// fix-up.
int merge_batch(const KernelSpec& spec) { return registers_for_each(spec) >= 112 ? 8 : 4; }

/// Columns of them, each a multiple of the CTA's worker threads apart.
int merge_columns(const KernelSpec& spec) {
  const int pairs = 2 * 32 * spec.warps * 4;  // values that the workers take at once, with two columns each
  const bool whole = rows_per_block(spec) * value_dim(spec) % pairs == 0;
  return has_large_partials(spec) && whole && registers_for_each(spec) >= 200 ? 2 : 1;
}

/// Joins `items` with commas, with `line_break` after each 90 characters or so.
std::string wrapped(const std::vector<std::string>& items, std::string_view line_break) {
  std::string text, line;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item = items[i] + (i + 1 < items.size() ? ", " : "");
    if (line.size() + item.size() > 90) {
      line.pop_back();  // the space
      text += line + std::string(line_break);
      line.clear();
    }
    line += item;
  }
  return text + line;
}

/// The function `name` for D[64 x columns] = A[64 x 16] B[16 x columns] (+ D). Inline PTX can neither count its
/// operands nor name them, so its text depends on the number of columns. A comes from shared memory, or from registers.
std::string matrix_instruction(std::string_view name, DType dtype, int columns, bool a_in_registers) {
  const int results = columns / 2;
  std::vector<std::string> names, outputs;
  for (int i = 0; i < results; ++i) {
    names.push_back(fmt::format("%{}", i));
    outputs.push_back(fmt::format("\"+f\"(d[{}][{}])", i / 4, i % 4));
  }
  std::vector<std::string> inputs =
      a_in_registers ? std::vector<std::string>{"\"r\"(a[0])", "\"r\"(a[1])", "\"r\"(a[2])", "\"r\"(a[3])"}
                     : std::vector<std::string>{"\"l\"(a)"};
  int next = results;
  const auto operand = [&] { return fmt::format("%{}", next++); };
  std::string a = operand();
  for (int i = 1; a_in_registers && i < 4; ++i) a += ", " + operand();
  if (a_in_registers) a = "{" + a + "}";
  const std::string b = operand();
  // Whether B, and A where that comes from shared memory, is transposed.
  std::string transposed = operand();
  if (!a_in_registers) transposed += ", " + operand();
  inputs.insert(inputs.end(), {"\"l\"(b)"});
  if (!a_in_registers) inputs.push_back("\"n\"(kTransposeA)");
  inputs.insert(inputs.end(), {"\"n\"(kTransposeB)", "\"r\"((u32)accumulate)"});
  return fmt::format(
      "template <int {0}kTransposeB>\n"
      "LEAN_DEVICE void {1}(float (&d)[{2}][4], {3}, u64 b, bool accumulate) {{\n"
      "  asm volatile(\"{{ .reg .pred p; setp.ne.u32 p, {4}, 0;\\n\"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n{5}k16.f32.{6}.{6} \"\n"
      "               \"{{{7}}}, \"\n"
      "               \"{8}, {9}, p, 1, 1, {10}; }}\"\n"
      "               : {11}\n"
      "               : {12});\n"
      "}}\n\n",
      a_in_registers ? "" : "kTransposeA, int ", name, columns / 8, a_in_registers ? "const u32 (&a)[4]" : "u64 a",
      operand(), columns, dtype == DType::bf16 ? "bf16" : "f16", wrapped(names, "\"\n               \""), a, b,
      transposed, wrapped(outputs, "\n                 "), wrapped(inputs, "\n                 "));
}

/// The matrix instructions that templates/attend/wgmma_tokens.cuh, wgmma_rows.cuh or wgmma_roles.cuh uses.
std::string matrix_instructions(const KernelSpec& spec) {
  const DType operand = operand_type(spec);
  std::string text =
      "// ---- this kernel's matrix instructions ----\n"
      "// D[64 x N] = A[64 x 16] B[16 x N], added to D if `accumulate` (PTX ISA, \"wgmma.mma_async\"). d: a thread's "
      "share of\n"
      "// each eight columns. b, and a of wgmma_shared, describe operands in shared memory; a of wgmma_registers is a\n"
      "// thread's share of A. A transposed operand's rows of A, or columns of B, are adjacent in shared memory, "
      "instead\n"
      "// of its 16 inner elements.\n";
  if (warpgroups_have_roles(spec))
    return text + matrix_instruction("wgmma_shared", operand, step_tokens(spec), false) +
           matrix_instruction("wgmma_registers", operand, value_dim(spec) / 2, true) +
           matrix_instruction("wgmma_values", operand, value_dim(spec) / 2, false);
  if (!query_rows_lead(spec))
    return text + matrix_instruction("wgmma_shared", operand, (rows_per_block(spec) + 7) / 8 * 8, false);
  return text + matrix_instruction("wgmma_shared", operand, step_tokens(spec), false) +
         matrix_instruction("wgmma_registers", operand, value_dim(spec), true);
}

/// A hash of what the columns that ranks send to each other depend on: their number and order, the dims of each, and
/// what scores mean.
std::uint32_t exchange_format(const KernelSpec& spec) {
  const std::string text =
      fmt::format("{} {} {} {} {} {} {}", spec.head_dim, value_dim(spec), spec.group, to_string(spec.dtype),
                  to_json(spec.features), exchange_order(spec), kGeneratorVersion);
  return static_cast<std::uint32_t>(XXH3_64bits(text.data(), text.size()));
}

std::string constants(const KernelSpec& spec) {
  std::string text = "// ---- specialisation ----\n";
  const auto add = [&](std::string_view type, std::string_view name, const auto& value, std::string_view why) {
    text += fmt::format("constexpr {} {} = {};   // {}\n", type, name, value, why);
  };
  const Features& features = spec.features;
  const bool changes_scores = transforms_scores(features), one_byte = has_one_byte_elements(features),
             selects = has_selection(features);
  const RowFormat* const row = row_format(features);
  add("int", "kHeadDim", spec.head_dim, "elements of one q or K row");
  add("int", "kValueDim", value_dim(spec), "elements of one V or o row");
  add("bool", "kLatent", features.latent, "V is the first columns of K");
  add("int", "kGroup", spec.group, "query heads per KV head");
  add("int", "kQLen", selects ? 1 : features.q_len, "most query tokens of a request");
  add("int", "kQueryRows", query_rows(features, spec.group), "query rows per KV head: group * query tokens");
  add("int", "kRowBlocks", row_blocks(spec), "output tiles per KV head");
  add("bool", "kRowBlocksInStep", row_blocks_in_step(spec), "CTAs of one range carry a row block each");
  add("int", "kRows", rows_per_block(spec), "query rows of one output tile");
  const bool tensor = spec.load == LoadPath::tensor;
  if (!tensor)
    add("bool", "kContiguous", spec.layout == KvLayout::contiguous, "consecutive tokens are adjacent in memory");
  add("bool", "kLse", spec.lse, "write LSE");
  add("bool", "kPdl", spec.pdl, "programmatic dependent launch");
  add("int", "kTile", spec.tile, "LeanTile, tokens");
  add("int", "kWarps", spec.warps, tensor ? "per CTA; four make a warpgroup" : "per CTA");
  add("int", "kProducerWarps", producer_warps(spec), "warps beside those, which only request KV");
  text += fmt::format("#define LEAN_LOAD \"{}\"   // loads of q, K and V to registers\n",
                      spec.pdl || features.append ? "ld.relaxed.gpu.global" : "ld.global.nc");
  if (tensor) {
    add("int", "kStepTokens", step_tokens(spec), "tokens one warpgroup takes per step");
    add("int", "kStageParts", stage_parts(spec), "parts of a step that arrive one after the other");
  } else {
    add("int", "kStepTokens", step_tokens(spec), "tokens one warp takes per step");
  }
  if (!loads_to_registers(spec.load)) add("int", "kStages", spec.stages, tensor ? "ring depth" : "ring depth per warp");
  add("int", "kCtasPerSm", spec.ctas_per_sm, "occupancy the register allocation must allow");
  if (!tensor)
    add("bool", "kPrefetchSegments", !loads_to_registers(spec.load),
        "request a segment's KV before the fix-up of the one before it");
  if (spec.fixup == FixUp::ticket) {
    add("unsigned", "kMergeBatch", merge_batch(spec),
        "partials whose loads are in flight together, as registers allow");
    add("int", "kMergeColumns", merge_columns(spec), "columns that a thread merges together");
  }
  add("bool", "kColumnsInBlocks", holds_results(spec) && rows_per_block(spec) % 8 == 0,
      "how columns of partials are numbered (merge/partial.cuh)");
  add("int", "kStateColumns", state_columns(spec), "columns of a partial that share a state");
  const bool strips = spec.fixup == FixUp::wait && strip_loads(spec) > 1;
  if (strips) {
    add("int", "kStripLoads", strip_loads(spec), "columns of partials that a thread asks for at once");
    add("bool", "kCountsPartials", counts_partials(spec), "partials are counted, instead of announcing themselves");
  }
  add("int", "kSharedBytes", shared_bytes(spec), "dynamic shared memory the host launches with");

  text += "// what the problem asks for beside plain dense decode\n";
  if (in_group(features)) text += "#define LEAN_GROUP\n";
  if (needs_positions(features)) text += "#define LEAN_POSITIONS\n";
  if (features.second_cache) text += "#define LEAN_SECOND_CACHE\n";
  if (appends_to_stage(spec)) text += "#define LEAN_APPENDS_TO_STAGE\n";
  if (one_byte && tensor) text += "#define LEAN_SCALES\n";
  if (needs_positions(features) && features.window > 0) text += "#define LEAN_WINDOW_OF_PART\n";
  if (needs_indices(features)) text += "#define LEAN_INDEX_OF_PART\n";
  if (features.context_ranks > 0) text += "#define LEAN_CONTEXT_RANKS\n";
  add("int", "kPageSize", features.page_size, "tokens per page; 0: dense");
  add("int", "kPageRun", page_run(spec), "tokens that steps of a paged cache take from one page at a time");
  add("bool", "kRaggedQ", features.ragged_q, "each request has its own number of query tokens");
  add("int", "kQueryMask", static_cast<int>(features.mask), "kCausal, kTree, kFull");
  add("int", "kWindow", features.window, "tokens a query sees; 0: all");
  add("int", "kSinkTokens", features.sink_tokens, "first tokens that stay visible beside the window");
  add("bool", "kRowsSeeAlike",
      features.window == 0 && (selects || features.q_len == 1 || features.mask == QueryMask::full),
      "all query rows see the same tokens");
  add("bool", "kSinkLogits", features.sink_logits, "a logit per query head in the denominator");
  add("bool", "kChangesScores", changes_scores, "scores change between scale and softmax");
  add("float", "kSoftCap", fmt::format("{:#}f", static_cast<float>(features.soft_cap)), "0: none");
  add("bool", "kAlibi", features.alibi, "slope * (kv index - q index) is added to scores");
  add("bool", "kAppend", features.append, "the query tokens' own K and V are written into the cache");
  if (features.append) add("int", "kStrideBytes", kv_element_bytes(features), "that strides of K and V count");
  if (features.append && !appends_to_stage(spec))
    add("bool", "kCopyEngineReads", spec.load == LoadPath::bulk || buffers_rows(spec),
        "the copy engine reads new rows from the cache (PTX ISA, \"Async proxy\")");
  if (features.rope != Rope::none) {
    add("int", "kRope", static_cast<int>(features.rope), "kHalfSplit, kInterleaved");
    add("int", "kRopeDim", features.rope_dim > 0 ? features.rope_dim : turning_dims(features, spec.head_dim),
        "dims that turn");
    add("int", "kFirstRopeDim", first_turning_dim(features, spec.head_dim), "the first of them");
  }
  add("bool", "kBatchInvariant", features.batch_invariant, "every LeanTile is a partial of its own");
  add("bool", "kSecondCache", features.second_cache,
      "a second cache beside the selection, whose first tokens are read");
  add("int", "kSelectionBlock", features.selection_block, "tokens of an entry of a selection; 0: none");
  if (selects) {
    add("bool", "kSelectionInPool", features.selection_in_pool, "entries count blocks of the pool");
    add("int", "kSelectionQueries", features.q_len, "query tokens of a request, each with a selection");
    add("bool", "kSelectionCausal", features.mask == QueryMask::causal, "a query token sees those up to itself");
  }
  add("int", "kRanks", features.context_parallel, "GPUs that hold a part of every context each");
  if (needs_positions(features)) {
    add("int", "kContextRanks", ranks_of_context(features), "GPUs to which the tokens of every context are dealt");
    add("int", "kInterleave", features.context_interleave, "tokens of a unit, in turn; 0: contiguous parts");
  }
  if (in_group(features)) {
    add("bool", "kReplicateOutput", features.replicate_output, "every rank writes all heads");
    add("unsigned", "kRankBatch", std::min(features.context_parallel, merge_batch(spec)),
        "ranks whose columns are in flight together, as registers allow");
    add("unsigned", "kExchangeFormat", fmt::format("{:#010x}u", exchange_format(spec)),
        "kernels of one format understand each other");
  }
  add("bool", "kGathers", gathers_rows(spec), "rows are copied one by one");
  add("int", "kGatherWarps", gathering_warps(spec), "producer warps that copy them");
  const bool converts = converts_rows(spec);
  add("bool", "kConvertsRows", converts, "these warps turn rows into operands of the matrix instructions");
  if (tensor) add("int", "kConvertingCtas", converting_ctas(spec), "CTAs of a cluster that share this work");
  if (converting_ctas(spec) > 1) text += "#define LEAN_CLUSTER\n";
  if (tensor) add("int", "kRowBufferBytes", row_buffer_bytes(spec), "rows that wait beside the ring as they are");
  add("int", "kKvBytes", converts ? 2 : kv_element_bytes(spec.features),
      converts ? "bytes of an element of K and V in shared memory" : "bytes of an element of K and V");
  if (row != nullptr) {
    add("int", "kRowByteColumns", row->latent_columns, "of a row of the cache: fp8 e4m3, one byte each");
    add("int", "kRowGroup", row->group_columns, "of these that share a scale");
    add("int", "kRowFirstByte", row->latent_offset, "where the columns of one byte begin, in bytes");
    add("int", "kRowScales", row->scales_offset, "where the groups' scales begin: fp32");
    add("int", "kRowRope", row->rope_offset, "where the other columns begin: bf16");
    add("int", "kRowBytes", row->bytes, "of a row");
  } else if (converts) {
    add("int", "kRowByteColumns", spec.head_dim, "of a row of the cache, one byte each: all of them");
    add("int", "kRowGroup", 0, "no columns have scales of their own");
    add("int", "kRowFirstByte", 0, "where the columns of one byte begin, in bytes");
    add("int", "kRowScales", 0, "none");
    add("int", "kRowRope", 0, "none");
    add("int", "kRowBytes", spec.head_dim, "of a row");
  }
  add("bool", "kHasScales", one_byte, "scales of K and V lie beside the cache");
  if (one_byte) {
    add("int", "kKvFormat", static_cast<int>(features.kv_format) - 1, "kE4m3, kE5m2, kInt8");
    add("int", "kKvScale", static_cast<int>(features.kv_scale), "kScalePerTensor, kScalePerHead, kScalePerToken");
  }
  const auto type = [&](std::string_view name, bool bf16, std::string_view why) {
    text += fmt::format("typedef struct {} {};   // {}\n", bf16 ? "Bf16" : "Fp16", name, why);
  };
  type("Element", spec.dtype == DType::bf16, "of q and o");
  type("Operand", operand_type(spec) == DType::bf16, "of the matrix instructions");
  text += fmt::format(
      "__device__ __forceinline__ float score_expression(float score, int q_index, int kv_index, int head) {{\n"
      "  return {};\n}}\n",
      features.score.empty() ? "score" : *score_source(features.score));
  return text + "\n";
}

/// Appends the lines of `text` that hold more than a comment.
void append_code(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto begin = line.find_first_not_of(' ');
    if (begin != std::string_view::npos && !line.substr(begin).starts_with("//")) out.append(line).push_back('\n');
  }
}

/// The module merge/output.cuh for kernels of a group, in which its names are those of what sends columns.
std::string with_own_names(std::string_view text) {
  std::string out(text);
  for (const auto& [name, own] : {std::pair<std::string_view, std::string_view>{"Output", "OwnOutput"},
                                  {"write_output", "write_own_output"},
                                  {"output_of", "own_output_of"}}) {
    for (std::size_t at = out.find(name); at != std::string::npos; at = out.find(name, at + own.size()))
      out.replace(at, name.size(), own);
  }
  return out;
}

std::string with_entry_name(std::string_view text, std::string_view entry) {
  constexpr std::string_view kPlaceholder = "KERNEL_NAME";
  std::string out(text);
  const auto at = out.find(kPlaceholder);
  assert(at != std::string::npos);
  return out.replace(at, kPlaceholder.size(), entry);
}

}  // namespace

int exchange_order(const KernelSpec& spec) {
  // first_dim of templates/attend/.
  return spec.load == LoadPath::tensor ? 1 : spec.load == LoadPath::vector ? 2 : 0;
}

Result<EmittedKernel> emit(const KernelSpec& spec) {
  if (auto ok = validate(spec); !ok) return tl::unexpected(ok.error());
  EmittedKernel kernel{.spec = spec,
                       .source = header_comment(spec),
                       .entry = kernel_name(spec),
                       .threads = cta_threads(spec),
                       .shared_bytes = shared_bytes(spec)};
  std::string modules = constants(spec);
  for (std::string_view name : modules_of(spec)) {
    modules += fmt::format("// ---- templates/{} ----\n", name);
    const std::string_view text = template_text(name);
    modules += name.starts_with("decode")                              ? with_entry_name(text, kernel.entry)
               : name == "merge/output.cuh" && in_group(spec.features) ? with_own_names(text)
                                                                       : std::string(text);
    modules += '\n';
    if (name == "attend/wgmma.cuh") modules += matrix_instructions(spec);
  }
  const int cuda_arch = 100 * spec.arch.major + 10 * spec.arch.minor;
  kernel.source += remove_unreached(shorten(resolve_branches(modules, cuda_arch)));
  return kernel;
}

std::string joined_templates(std::string_view first_line, std::initializer_list<std::string_view> names) {
  std::string source(first_line);
  source += '\n';
  for (const std::string_view name : names)
    source.append("// ---- templates/").append(name).append(" ----\n").append(template_text(name)).append("\n");
  return source;
}

const std::string& generator_revision() {
  static const std::string revision = revision_of(embedded_templates());
  return revision;
}

std::string revision_of(std::span<const EmbeddedTemplate> templates) {
  std::vector<EmbeddedTemplate> sorted(templates.begin(), templates.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string all(kGeneratorVersion);
  for (const EmbeddedTemplate& t : sorted) {
    all.append(t.name).push_back('\0');
    append_code(all, t.text);
    all.push_back('\0');
  }
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace v1
}  // namespace leanattn
