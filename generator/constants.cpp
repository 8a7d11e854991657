// constants.cpp -- the constants of a kernel: those of the problem, and among them those of its family and of the
// merge.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>

#include "generator/families/family.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"
#include "generator/score_expression.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// A hash of what the columns that ranks send to each other depend on: their number and order, the dims of each, and
/// what scores mean.
std::uint32_t exchange_format(const KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const std::string text =
      fmt::format("{} {} {} {} {} {} {}", spec.head_dim, value_dim(spec), spec.group, to_string(spec.dtype),
                  to_json(spec.features), source.layout.family->exchange_order, kGeneratorVersion);
  return static_cast<std::uint32_t>(XXH3_64bits(text.data(), text.size()));
}

void add_constants_of_rows(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  const Features& features = spec.features;
  source.constant("int", "kHeadDim", fmt::format("{}, kValueDim = {}", spec.head_dim, value_dim(spec)),
                  "elements of one row of q and K, and of one of V and o");
  source.flag("kLatent", features.latent, "V is the first columns of K");
  source.number("kGroup", spec.group, "query heads per KV head");
  source.number("kQLen", has_selection(features) ? 1 : features.q_len, "most query tokens of a request");
  source.number("kQueryRows", query_rows(features, spec.group), "query rows per KV head: group * query tokens");
  source.constant("int", "kRowBlocks", fmt::format("{}, kRows = {}", layout.row_blocks, layout.rows),
                  "output tiles per KV head, and query rows of each");
  source.number("kRowsOfWarp", layout.rows_of_warp, "query rows of a warp, on the matrix rows");
  source.number("kRowBlocksInStep", layout.row_blocks_in_step, "CTAs that take a range together, a row block each");
  source.number("kMostPasses", layout.most_passes, "ranges of a CTA, at most");
  const KernelLayout::Share& share = layout.share;
  source.number("kFewTokens", share.few_tokens,
                "two walks share the CTA: one has requests of up to so many; 0: one walk");
  source.flag("kTakesFew", share.takes_few, "it is this one");
  source.number("kFirstBarrier", share.first_barrier, "of this walk's named barriers");
  source.number("kSharedBefore", share.shared_before, "bytes of dynamic shared memory in front of this walk's");
  source.constant("unsigned", "kTicketsBefore", fmt::to_string(share.tickets_before), "of another walk, for each CTA");
  source.constant("unsigned", "kPartialsBefore", fmt::to_string(share.partials_before), "floats, for each CTA");
  source.constant("unsigned", "kTilePositions", fmt::to_string(layout.tile_positions), "of a LeanTile on the line");
  source.constant("unsigned", "kLightTilePositions", fmt::to_string(layout.light_tile_positions),
                  "and where at most half of an output tile's rows exist");
}

void add_constants_of_steps(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const auto family = source.layout.family->add_constants;
  source.flag("kLse", spec.lse, "write LSE");
  source.flag("kStamped", source.variant == KernelVariant::stamped, "CTAs note when they reach which moment");
  source.flag("kPdl", spec.pdl, "programmatic dependent launch");
  source.number("kTile", spec.tile, "LeanTile, tokens");
  family(source, ConstantGroup::warps);
  source.number("kProducerWarps", source.layout.producer_warps, "warps beside those, which only request KV");
  source.text += fmt::format("#define LEAN_LOAD \"{}\"   // loads of q, K and V to registers\n",
                             spec.pdl || spec.features.append ? "ld.relaxed.gpu.global" : "ld.global.nc");
  family(source, ConstantGroup::steps);
}

void add_constants_of_features(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  const Features& features = spec.features;
  const bool selects = has_selection(features);
  source.text += "// what the problem asks for beside plain dense decode\n";
  Features beside_pages = features;
  beside_pages.page_size = 0;
  if (is_plain(beside_pages)) source.define("LEAN_PLAIN");
  if (layout.most_passes > 1) source.define("LEAN_PASSES");
  if (in_group(features)) source.define("LEAN_GROUP");
  if (needs_positions(features)) source.define("LEAN_POSITIONS");
  if (features.second_cache) source.define("LEAN_SECOND_CACHE");
  if (layout.appends_to_stage) source.define("LEAN_APPENDS_TO_STAGE");
  if (has_one_byte_elements(features) && layout.converts_rows) source.define("LEAN_SCALES");
  if (stages_scales(features)) source.define("LEAN_STAGED_SCALES");
  if (stages_scales(features) && has_token_scales(features)) source.define("LEAN_TOKEN_SCALES");
  if (has_block_scales(features)) source.define("LEAN_BLOCK_SCALES");
  if (has_nibbles(features)) source.define("LEAN_NIBBLES");
  if (layout.copies_boxes) source.define("LEAN_BOXES");
  if (layout.copies_boxes && has_scales_in_rows(features)) source.define("LEAN_ROW_BOXES");
  if (has_scales(features) && !has_token_scales(features)) source.define("LEAN_HELD_SCALE");
  if (layout.heads_in_step) source.define("LEAN_HEADS_IN_STEP");
  if (layout.weights_beside) source.define("LEAN_WEIGHTS_BESIDE");
  if (needs_positions(features) && features.window > 0) source.define("LEAN_WINDOW_OF_PART");
  if (features.window > 0 && features.q_len > 1 && features.mask == QueryMask::full) source.define("LEAN_SEES_AHEAD");
  if (features.spans) source.define("LEAN_SPANS");
  if (features.spans || features.second_cache || has_block_scales(features)) source.define("LEAN_LONG_ARGUMENTS");
  if (features.packed_kv) source.define("LEAN_PACKED_KV");
  if (needs_indices(features)) source.define("LEAN_INDEX_OF_PART");
  if (features.context_ranks > 0) source.define("LEAN_CONTEXT_RANKS");
  source.number("kPageSize", features.page_size, "tokens per page; 0: dense");
  source.number("kPageRun", layout.page_run, "tokens that steps of a paged cache take from one page at a time");
  source.flag("kRaggedQ", features.ragged_q, "each request has its own number of query tokens");
  source.number("kQueryMask", static_cast<int>(features.mask), "kCausal, kTree, kFull");
  source.number("kWindow", features.window, "tokens a query sees; 0: all");
  source.number("kSinkTokens", features.sink_tokens, "first tokens that stay visible beside the window");
  source.flag("kRowsSeeAlike",
              features.window == 0 && (selects || features.q_len == 1 || features.mask == QueryMask::full),
              "all query rows see the same tokens");
  source.flag("kSinkLogits", features.sink_logits, "a logit per query head in the denominator");
  source.flag("kChangesScores", transforms_scores(features), "scores change between scale and softmax");
  source.constant("float", "kSoftCap", fmt::format("{:#}f", static_cast<float>(features.soft_cap)), "0: none");
  source.flag("kAlibi", features.alibi, "slope * (kv index - q index) is added to scores");
  source.flag("kAppend", features.append, "the query tokens' own K and V are written into the cache");
  if (features.append) source.number("kStrideBytes", kv_element_bytes(features), "that strides of K and V count");
  if (features.append && !layout.appends_to_stage)
    source.flag("kCopyEngineReads", spec.load == LoadPath::bulk || layout.row_buffer_bytes > 0 || layout.copies_boxes,
                "the copy engine reads new rows from the cache (PTX ISA, \"Async proxy\")");
  if (features.rope != Rope::none) {
    source.number("kRope", static_cast<int>(features.rope), "kHalfSplit, kInterleaved");
    source.number("kRopeDim", features.rope_dim > 0 ? features.rope_dim : turning_dims(features, spec.head_dim),
                  "dims that turn");
    source.number("kFirstRopeDim", first_turning_dim(features, spec.head_dim), "the first of them");
  }
  source.flag("kBatchInvariant", features.batch_invariant, "every LeanTile is a partial of its own");
  source.flag("kSecondCache", features.second_cache,
              "a second cache beside the selection, whose first tokens are read");
  source.number("kSelectionBlock", features.selection_block, "tokens of an entry of a selection; 0: none");
  if (selects) {
    source.flag("kSelectionInPool", features.selection_in_pool, "entries count blocks of the pool");
    source.number("kSelectionQueries", features.q_len, "query tokens of a request, each with a selection");
    source.flag("kSelectionCausal", features.mask == QueryMask::causal, "a query token sees those up to itself");
  }
  source.number("kRanks", features.context_parallel, "GPUs that hold a part of every context each");
  if (needs_positions(features)) {
    source.number("kContextRanks", ranks_of_context(features), "GPUs to which the tokens of every context are dealt");
    source.number("kInterleave", features.context_interleave, "tokens of a unit, in turn; 0: contiguous parts");
  }
  if (in_group(features)) {
    source.flag("kReplicateOutput", features.replicate_output, "every rank writes all heads");
    source.constant("unsigned", "kRankBatch", fmt::to_string(std::min(features.context_parallel, merge_batch(layout))),
                    "ranks whose columns are in flight together, as registers allow");
    source.constant("unsigned", "kExchangeFormat", fmt::format("{:#010x}u", exchange_format(source)),
                    "kernels of one format understand each other");
  }
}

/// How a row of the cache becomes an operand.
void add_constants_of_encoding(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  const bool converts = layout.converts_rows, scaled = has_scales(spec.features), staged = stages_scales(spec.features);
  source.flag("kGathers", layout.gathers_rows, "rows are copied one by one");
  source.number("kGatherWarps", layout.gathering_warps, "producer warps that copy them");
  source.flag("kConvertsRows", converts, "these warps turn rows into operands of the matrix instructions");
  layout.family->add_constants(source, ConstantGroup::copies);
  source.number("kKvBytes", converts ? 2 : kv_element_bytes(spec.features),
                converts                     ? "bytes of an element of K and V in shared memory"
                : has_nibbles(spec.features) ? "bytes in which strides of K and V count: of two elements"
                                             : "bytes of an element of K and V");
  if (const RowFormat* const row = row_format(spec.features); row != nullptr) {
    source.number("kRowByteColumns", row->latent_columns, "of a row of the cache: fp8 e4m3, one byte each");
    source.number("kRowGroup", row->group_columns, "of these that share a scale");
    source.number("kRowFirstByte", row->latent_offset, "where the columns of one byte begin, in bytes");
    source.number("kRowScales", row->scales_offset, "where the groups' scales begin: fp32");
    source.number("kRowPlane", row->plane_bytes,
                  "of a token's scales behind the rows of its page: UE8M0; 0: in the row");
    source.number("kRowRope", row->rope_offset, "where the other columns begin: bf16");
    source.number("kRowBytes", row->bytes, "of a row");
  } else if (converts) {
    source.number("kRowByteColumns", spec.head_dim, "of a row of the cache, one byte each: all of them");
    source.number("kRowGroup", 0, "no columns have scales of their own");
    source.number("kRowFirstByte", 0, "where the columns of one byte begin, in bytes");
    source.number("kRowScales", 0, "none");
    source.number("kRowPlane", 0, "none");
    source.number("kRowRope", 0, "none");
    source.number("kRowBytes", spec.head_dim, "of a row");
  }
  if (staged) source.number("kCopyBytes", kv_copy_bytes(spec.features), "of a copy of rows to shared memory");
  if (const KvEncoding& encoding = kv_encoding(spec.features); has_block_scales(spec.features)) {
    const int bytes = encoding.block_scale_bytes(spec.head_dim);
    source.number("kBlockScaleBytes", bytes, "of the scales of a row: one for 16 columns");
    source.number("kBlockScaleCopy", block_scale_copy_bytes(bytes), "bytes of them that a copy brings");
  }
  source.flag("kHasScales", scaled && !(staged && has_token_scales(spec.features)),
              "scales of K and V lie beside the cache");
  if (scaled) {
    source.number("kKvFormat", static_cast<int>(kv_encoding(spec.features).element) - 1, "kE4m3, kE5m2, kInt8");
    source.number("kKvScale", static_cast<int>(spec.features.kv_scale),
                  "kScalePerTensor, kScalePerHead, kScalePerToken");
  }
  const auto type = [](DType dtype) { return dtype == DType::bf16 ? "Bf16" : "Fp16"; };
  if (operand_type(spec) != spec.dtype)
    source.text +=
        fmt::format("typedef struct {} Operand;   // of the matrix instructions\n", type(operand_type(spec)));
  // The last name of a list is the one that a kernel reaches whatever it does (prune/remove_unreached.cpp).
  source.text += fmt::format("typedef struct {} {}Element;   // of q and o\n", type(spec.dtype),
                             operand_type(spec) == spec.dtype ? "Operand, " : "");
}

}  // namespace

void add_constants(KernelSource& source) {
  source.text += "//// specialisation\n";
  add_constants_of_rows(source);
  source.layout.family->add_constants(source, ConstantGroup::rows);
  add_constants_of_steps(source);
  add_merge_constants(source);
  source.number("kSharedBytes", source.layout.shared_bytes, "dynamic shared memory the host launches with");
  add_constants_of_features(source);
  add_constants_of_encoding(source);
  const std::string& score = source.spec.features.score;
  source.text += fmt::format(
      "__device__ __forceinline__ float score_expression(float score, int q_index, int kv_index, int head) {{\n"
      "  return {};\n}}\n\n",
      score.empty() ? "score" : *score_source(score));
}

}  // namespace v1
}  // namespace leanattn
