// oracle_kernels.cpp -- compiles, loads and enqueues templates/check/kernels.cuh.
#include "tuner/oracle/oracle_kernels.hpp"

#include <algorithm>
#include <cassert>
#include <string_view>

#include "cache/cubin/cubin_db.hpp"
#include "generator/kv_encoding.hpp"
#include "generator/score_expression.hpp"
#include "generator/templates.hpp"
#include "runtime/cuda/compiler.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr unsigned kThreads = 512;               // kCheckThreads of templates/check/kernels.cuh
constexpr std::int64_t kMostBlocksPerRow = 256;  // of fill_kv(): enough to saturate memory with one row
constexpr std::int64_t kMostGridY = 65535;

LaunchDims dims(std::int64_t grid_x, std::int64_t grid_y = 1) {
  return {.grid_x = static_cast<unsigned>(grid_x), .grid_y = static_cast<unsigned>(grid_y), .threads = kThreads};
}

}  // namespace

void append_template(std::string& source, std::string_view name) {
  const auto templates = embedded_templates();
  const auto found =
      std::find_if(templates.begin(), templates.end(), [&](const EmbeddedTemplate& t) { return t.name == name; });
  assert(found != templates.end());
  source.append("// ---- templates/").append(name).append(" ----\n").append(found->text).append("\n");
}

std::string oracle_source(std::string_view score) {
  std::string source = "// Helper kernels of leanattn's checks: data, FP64 oracle, plain implementation.\n";
  source += kAllArguments;
  if (!score.empty()) {
    source.append("#define CHECK_SCORE(score, q_index, kv_index, head) (").append(score).append(")\n");
  }
  for (const std::string_view name :
       {"kernel_args.cuh", "check/features.cuh", "check/data.cuh", "check/layout.cuh", "check/kernels.cuh"})
    append_template(source, name);
  return source;
}

CheckFeatures check_features(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale) {
  const Features& features = problem.features;
  const RowFormat* const row = row_format(features);
  return {.seed = seed,
          .scale = scale,
          .soft_cap = features.soft_cap,
          .kind = static_cast<int>(kind),
          .format = problem.dtype == DType::bf16 ? 0 : 1,
          .q_heads = problem.q_heads,
          .head_dim = problem.head_dim,
          .v_head_dim = features.v_head_dim > 0 ? features.v_head_dim : problem.head_dim,
          .q_len = features.q_len,
          .ragged_q = features.ragged_q,
          .mask = static_cast<int>(features.mask),
          .window = features.window,
          .sink_tokens = features.sink_tokens,
          .sink_logits = features.sink_logits,
          .alibi = features.alibi,
          .spans = features.spans,
          .packed_kv = features.packed_kv,
          .page_size = features.page_size,
          .max_pages = 0,
          .shared_prefix = 0,
          .kv_format = static_cast<int>(kv_encoding(features).element),
          .kv_scale = static_cast<int>(has_token_scales(features) ? KvScale::token : features.kv_scale),
          .append = features.append,
          .rope = static_cast<int>(features.rope),
          .rope_dim = features.rope_dim > 0 ? features.rope_dim : turning_dims(features, problem.head_dim),
          .first_rope_dim = first_turning_dim(features, problem.head_dim),
          .latent = features.latent,
          .hole_every = 0,
          .selection_block = features.selection_block,
          .selection_in_pool = features.selection_in_pool,
          .selection_heads = has_selection(features) ? problem.kv_heads : 0,
          .selection_spread = 1,
          .selection_holes = 0,
          .row_bytes = row != nullptr ? row->bytes : 0,
          .row_plane = row != nullptr ? row->plane_bytes : 0,
          .row_latent = row != nullptr ? row->latent_offset : 0,
          .row_latent_format = row != nullptr ? static_cast<int>(kv_encoding(features).element) : 0,
          .row_latent_columns = row != nullptr ? row->latent_columns : 0,
          .row_group = row != nullptr ? row->group_columns : 0,
          .row_scales = row != nullptr ? row->scales_offset : 0,
          .row_rope = row != nullptr ? row->rope_offset : 0,
          .second_cache = features.second_cache,
          .data_request = 0,
          .rank = 0,
          .ranks = 1,
          .interleave = 0};
}

Result<CompiledKernel> OracleKernels::compile(Arch arch, CubinCache* cubins, std::string_view score) {
  Result<std::string> expression = std::string();
  if (!score.empty()) expression = score_source(score);
  if (!expression) return tl::unexpected(expression.error());
  return compile_source(oracle_source(*expression), arch, cubins);
}

Result<std::shared_ptr<const OracleKernels>> OracleKernels::load(Arch arch, CubinCache* cubins,
                                                                 std::string_view score) {
  const Result<CompiledKernel> compiled = compile(arch, cubins, score);
  if (!compiled) return tl::unexpected(compiled.error());
  Result<LoadedSource> loaded = LoadedSource::load(*compiled);
  if (!loaded) return tl::unexpected(loaded.error());
  std::shared_ptr<OracleKernels> kernels(new OracleKernels(std::move(*loaded)));
  kernels->arch_ = arch;
  kernels->cubins_ = cubins;
  kernels->score_ = score;
  const std::pair<const char*, CUfunc_st**> entries[] = {
      {"check_fill_q", &kernels->fill_q_},        {"check_fill_table", &kernels->fill_table_},
      {"check_fill_rope", &kernels->fill_rope_},  {"check_new_rows", &kernels->new_rows_},
      {"check_fill_kv", &kernels->fill_kv_},      {"check_oracle", &kernels->oracle_},
      {"check_plain", &kernels->plain_},          {"check_fill_selection", &kernels->fill_selection_},
      {"check_fill_spans", &kernels->fill_spans_}};
  for (const auto& [name, slot] : entries) {
    const Result<CUfunc_st*> function = kernels->source_.function(name);
    if (!function) return tl::unexpected(function.error());
    *slot = *function;
  }
  return std::shared_ptr<const OracleKernels>(std::move(kernels));
}

Result<std::shared_ptr<const OracleKernels>> OracleKernels::for_score(const std::string& score) const {
  const auto found = variants_.find(score);
  if (found != variants_.end()) return found->second;
  auto made = load(arch_, cubins_, score);
  if (made) variants_.emplace(score, *made);
  return made;
}

Result<std::shared_ptr<const OracleKernels>> OracleKernels::in_current_context() const {
  return load(arch_, cubins_, score_);
}

std::int64_t all_query_tokens(const LeanDecodeArgs& args, const CheckFeatures& check) {
  return check.ragged_q != 0 ? args.query_tokens : std::int64_t{args.batch} * check.q_len;
}

Result<void> OracleKernels::fill_q(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const {
  const std::int64_t rows = all_query_tokens(args, check) * check.q_heads;
  return launch_with(fill_q_, dims(std::clamp<std::int64_t>(rows, 1, 65536)), stream, args, check);
}

Result<void> OracleKernels::fill_table(const LeanDecodeArgs& args, const CheckFeatures& check, const int* pages,
                                       CUstream_st* stream) const {
  const std::int64_t entries = std::int64_t{args.batch} * check.max_pages;
  const std::int64_t blocks = std::clamp<std::int64_t>((entries + kThreads - 1) / kThreads, 1, 65536);
  return launch_with(fill_table_, dims(blocks), stream, args, check, pages);
}

Result<void> OracleKernels::fill_spans(const LeanDecodeArgs& args, const CheckFeatures& check,
                                       CUstream_st* stream) const {
  const std::int64_t blocks = (all_query_tokens(args, check) + kThreads - 1) / kThreads;
  return launch_with(fill_spans_, dims(std::clamp<std::int64_t>(blocks, 1, 65536)), stream, args, check);
}

Result<void> OracleKernels::fill_selection(const LeanDecodeArgs& args, const CheckFeatures& check,
                                           CUstream_st* stream) const {
  const std::int64_t lists = std::int64_t{args.batch} * check.q_len * check.selection_heads;
  return launch_with(fill_selection_, dims(std::min<std::int64_t>(lists, 65536)), stream, args, check);
}

Result<void> OracleKernels::fill_rope(const CheckFeatures& check, std::int64_t positions, float* table,
                                      CUstream_st* stream) const {
  const std::int64_t blocks =
      std::clamp<std::int64_t>((positions * check.rope_dim / 2 + kThreads - 1) / kThreads, 1, 65536);
  return launch_with(fill_rope_, dims(blocks), stream, check, static_cast<long long>(positions), table);
}

Result<void> OracleKernels::new_rows(NewRowsStep step, const LeanDecodeArgs& args, const CheckFeatures& check,
                                     std::uint64_t* wrong, CUstream_st* stream) const {
  const std::int64_t rows = all_query_tokens(args, check) * args.kv_heads;
  return launch_with(new_rows_, dims(std::clamp<std::int64_t>(rows, 1, 65536)), stream, args, check,
                     static_cast<int>(step), wrong);
}

Result<void> OracleKernels::fill_kv(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const {
  const std::int64_t rows = std::int64_t{args.batch} * args.kv_heads;
  const std::int64_t chunks = std::int64_t{args.context_capacity} * (std::max(check.head_dim, check.v_head_dim) / 8);
  const std::int64_t blocks = std::clamp<std::int64_t>((chunks + kThreads - 1) / kThreads, 1, kMostBlocksPerRow);
  return launch_with(fill_kv_, dims(blocks, std::min(rows, kMostGridY)), stream, args, check);
}

Result<void> OracleKernels::oracle(const LeanDecodeArgs& args, const CheckFeatures& check, std::int64_t first_row,
                                   std::int64_t rows, std::int64_t longest, double* weights, double* o, double* lse,
                                   CUstream_st* stream) const {
  return launch_with(oracle_, dims(rows), stream, args, check, static_cast<long long>(first_row),
                     static_cast<long long>(longest), weights, o, lse);
}

Result<void> OracleKernels::plain(const LeanDecodeArgs& args, const CheckFeatures& check, std::int64_t first_row,
                                  std::int64_t rows, std::int64_t longest, float* weights, std::uint16_t* o,
                                  CUstream_st* stream) const {
  return launch_with(plain_, dims(rows), stream, args, check, static_cast<long long>(first_row),
                     static_cast<long long>(longest), weights, static_cast<unsigned short*>(o));
}

}  // namespace v1
}  // namespace leanattn
