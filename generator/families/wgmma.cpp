#include "generator/families/wgmma.hpp"

#include <fmt/format.h>

#include <vector>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kTensorRun = 8;  // tokens of the smallest tensor copy, which starts at a swizzle atom

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

/// Of a row that waits beside the ring. Scales of a plane come with those of the token beside it.
int buffered_row_bytes(const KernelSpec& spec) {
  const RowFormat* const row = row_format(spec.features);
  return row != nullptr ? row->bytes + 2 * row->plane_bytes : cache_token_bytes(spec);
}

}  // namespace

Result<void> supports_wgmma(const KernelSpec& spec, ByteRows bytes) {
  const Features& features = spec.features;
  if (auto ok = refuse_staged_scales(spec); !ok) return ok;
  if (has_one_byte_elements(features)) {
    const auto refuse = [&](std::string_view with) {
      return unsupported_spec(
          fmt::format("load path {} with KV format {}{}", to_string(spec.load), to_string(features.kv_format), with),
          "use bulk, cp_async or ldg, which convert in registers");
    };
    if (!features.latent && bytes == ByteRows::latent) return refuse(" and V apart from K");
    if (!features.latent && features.append) return refuse(", V apart from K and append");
    if (features.kv_scale == KvScale::token) return refuse(" and a scale per token");
    if (has_part_of_context(features)) return refuse(" and context_parallel");
    // Of other widths no kernel has been verified.
    if (features.latent && value_dim(spec) % 128 != 0)
      return refuse(fmt::format(" and {} columns of V", value_dim(spec)));
  }
  if (spec.arch != Arch{9, 0, true})
    return unsupported_spec(fmt::format("load path tensor needs wgmma, which {} has not", to_string(spec.arch)),
                            "use bulk, cp_async or ldg on other architectures than sm_90a");
  if (spec.head_dim % 64 != 0 || value_dim(spec) % 64 != 0)
    return unsupported_spec(fmt::format("load path tensor with head sizes {} and {}", spec.head_dim, value_dim(spec)),
                            "it takes multiples of 64; use bulk, cp_async or ldg");
  return {};
}

Result<void> fits_wgmma(const KernelSpec& spec, const KernelLayout& layout, int gathered_step) {
  if (spec.warps % 4 != 0)
    return invalid_spec(fmt::format("warps is {} with load path tensor", spec.warps), "choose 4, 8, 12 or 16");
  if (spec.features.latent && spec.warps > 8)
    return unsupported_spec(fmt::format("{} warps over a latent cache", spec.warps), "choose 4 or 8");
  if (layout.gathers_rows && (layout.step_tokens > gathered_step || layout.step_tokens % kMatrixRows != 0))
    return unsupported_spec(fmt::format("steps of {} tokens, whose rows are gathered", layout.step_tokens),
                            "choose warp_tokens 16");
  return {};
}

void lay_out_producer(const KernelSpec& spec, KernelLayout& layout, bool buffers, bool warpgroup) {
  const Features& features = spec.features;
  layout.step_tokens = 4 * spec.warp_tokens;
  const RowFormat* const row = row_format(features);
  layout.converts_rows = row != nullptr || has_one_byte_elements(features);
  // A tensor map reaches one cache.
  const int run = adjacent_tokens(features, layout.step_tokens);
  const bool copies_runs = run >= kTensorRun && !features.second_cache;
  layout.page_run = layout.converts_rows || !copies_runs ? 1 : run;
  layout.gathers_rows = layout.converts_rows || (features.page_size > 0 && layout.page_run == 1);
  const bool to_buffer = layout.converts_rows && buffers && features.latent;
  layout.gathering_warps = to_buffer ? 8 : layout.gathers_rows ? 4 : 0;
  layout.row_buffer_bytes = to_buffer ? lean_row_buffer_bytes(layout.step_tokens, buffered_row_bytes(spec)) : 0;
  layout.appends_to_stage = features.append && !layout.converts_rows;
  layout.producer_warps = layout.gathers_rows ? layout.gathering_warps : warpgroup ? 4 : 1;
  const auto trade = [&](int consumer, int producer) {
    layout.consumer_registers = consumer, layout.producer_registers = producer;
  };
  if (layout.producer_warps == 8)
    spec.warps == 8 ? trade(152, 104) : trade(232, 136);
  else if (layout.producer_warps == 4 && (spec.warps == 8 || !layout.gathers_rows))
    features.append || layout.gathers_rows ? trade(200, 104) : trade(224, 56);
  if (row != nullptr && !to_buffer) layout.static_bytes += spec.stages * layout.step_tokens * scale_bytes(*row);
}

bool writes_rows_whole(const KernelSpec& spec, const KernelLayout& layout, int warps_of_row) {
  return layout.holds_results && !in_group(spec.features) && value_dim(spec) % (64 * warps_of_row) == 0 &&
         value_dim(spec) <= spec.head_dim;
}

void add_producer(KernelSource& source, const std::string& instructions) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  const bool selects = has_selection(spec.features), paged = spec.features.page_size > 0;
  source.add({"line/shared_walk.cuh", "attend/wgmma.cuh"});
  source.text +=
      "//// this kernel's matrix instructions\n"
      "// D[64 x N] = A[64 x 16] B[16 x N], added to D if `accumulate` (PTX ISA, \"wgmma.mma_async\"). d: a thread's "
      "share of\n"
      "// each eight columns. b, and a of wgmma_shared, describe operands in shared memory; a of wgmma_registers is a\n"
      "// thread's share of A. A transposed operand's rows of A, or columns of B, are adjacent in shared memory, "
      "instead\n"
      "// of its 16 inner elements.\n" +
      instructions;
  source.add({"kv/tensor.cuh"});
  if (layout.gathers_rows) source.add({"kv/row_lanes.cuh", "kv/gatherers.cuh"});
  const bool latent = spec.features.latent, buffers = layout.row_buffer_bytes > 0;
  if (layout.gathers_rows && !(layout.converts_rows && latent))
    source.add({selects ? "kv/selected_tokens.cuh" : paged ? "kv/paged_tokens.cuh" : "kv/dense_tokens.cuh"});
  if (layout.converts_rows) source.add({"kv/row_scales.cuh", "kv/row_copies.cuh"});
  if (layout.converts_rows && latent) source.add({selects ? "kv/selected_places.cuh" : "kv/row_places.cuh"});
  if (layout.converts_rows && !buffers) source.add({"kv/byte_panels.cuh"});
  if (layout.converts_rows && latent) source.add({buffers ? "kv/row_buffer.cuh" : "kv/row_panels.cuh"});
  if (row_format(spec.features) != nullptr && spec.features.append)
    source.add({"kv/append_rows.cuh", "kv/append_to_cache.cuh"});
  if (layout.appends_to_stage) source.add({"kv/append_to_stage.cuh"});
  source.add({buffers                          ? "kv/produce_buffered_rows.cuh"
              : layout.converts_rows && latent ? "kv/produce_rows.cuh"
              : layout.converts_rows           ? "kv/produce_bytes.cuh"
              : layout.gathers_rows            ? "kv/produce_gathered.cuh"
              : selects                        ? "kv/produce_selected.cuh"
              : paged                          ? "kv/produce_paged.cuh"
                                               : "kv/produce_dense.cuh"});
}

void add_constants_of_warpgroups(KernelSource& source, ConstantGroup group) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  switch (group) {
    case ConstantGroup::rows: break;
    case ConstantGroup::warps: source.number("kWarps", spec.warps, "per CTA; four make a warpgroup"); break;
    case ConstantGroup::steps:
      source.number("kStepTokens", layout.step_tokens, "tokens one warpgroup takes per step");
      source.number("kConsumerRegisters", layout.consumer_registers,
                    "of a thread, once the producer handed its own over");
      source.number("kProducerRegisters", layout.producer_registers, "and of its threads; 0: all keep what they have");
      source.number("kStageParts", layout.stage_parts, "parts of a step that arrive one after the other");
      source.number("kStages", spec.stages, "ring depth");
      source.number("kCtasPerSm", spec.ctas_per_sm, "occupancy the register allocation must allow");
      source.flag("kColumnsAreSplit", layout.family == &kWgmmaTokens && spec.features.latent && spec.warps == 8,
                  "two warpgroups take every step, and each has half of O's columns");
      source.flag("kRowsAreSplit", layout.family->rows_are_split, "they do, and each has half of the query rows");
      source.flag("kHasRoles", layout.family == &kWgmmaRoles, "they do, and one makes the weights for both");
      break;
    case ConstantGroup::copies:
      source.number("kConvertingCtas", layout.converting_ctas, "CTAs of a cluster that share this work");
      if (layout.converting_ctas > 1) source.define("LEAN_CLUSTER");
      source.number("kRowBufferBytes", layout.row_buffer_bytes, "rows that wait beside the ring as they are");
      break;
  }
}

std::string matrix_instruction(const KernelSource& source, std::string_view name, int columns, bool a_in_registers) {
  // Inline PTX can neither count its operands nor name them, so its text depends on the number of columns.
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
      operand(), columns, operand_type(source.spec) == DType::bf16 ? "bf16" : "f16",
      wrapped(names, "\"\n               \""), a, b, transposed, wrapped(outputs, "\n                 "),
      wrapped(inputs, "\n                 "));
}

}  // namespace v1
}  // namespace leanattn
