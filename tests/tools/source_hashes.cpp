// source_hashes.cpp -- prints what a change of generator/ that should change no kernel must leave as it is, a line
// each:
//   source_hashes TUNING_DB [SPECS]
// - of every kernel of the compile matrix, of the configurations in TUNING_DB and of verify's plan for each arch: name,
//   spec, hash of the emitted source, threads and bytes of shared memory;
// - of SPECS specs (300,000 unless given) whose fields are drawn with a fixed seed: the layout, and the error where it
// is
//   refused.
// Two versions of the generator agree if their outputs do.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "generator/families/family.hpp"
#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/problem.hpp"
#include "tests/unit/generator/compile_matrix.hpp"
#include "tuner/search/recurrent_tune.hpp"
#include "tuner/verify/run_plan.hpp"

namespace leanattn {
namespace {

/// Of attention, or of operation `recurrent`.
template <class Spec>
void print_source(std::string_view origin, const Spec& spec) {
  const auto kernel = emit(spec);
  if (!kernel) {
    fmt::print("{} {} {} refused: {}\n", origin, kernel_name(spec), to_json(spec), kernel.error().message);
    return;
  }
  std::int64_t shared_bytes = 0;
  if constexpr (std::is_same_v<Spec, KernelSpec>) shared_bytes = kernel->shared_bytes;
  const XXH128_hash_t hash = XXH3_128bits(kernel->source.data(), kernel->source.size());
  fmt::print("{} {} {} {:016x}{:016x} {} {}\n", origin, kernel->entry, to_json(spec), hash.high64, hash.low64,
             kernel->threads, shared_bytes);
}

void print_sources(std::string_view origin, const std::vector<KernelSpec>& specs) {
  for (const KernelSpec& spec : specs) print_source(origin, spec);
}

/// The configurations of a tuning.db, which have to be the text that their JSON is written as. Whether they do.
bool print_configs(const char* path) {
  const SQLite::Database database(path, SQLite::OPEN_READONLY);
  SQLite::Statement rows(database, "SELECT json FROM configs ORDER BY json");
  bool canonical = true;
  while (rows.executeStep()) {
    const std::string text = rows.getColumn(0);
    const auto config = config_from_json(text);
    const auto recurrent = recurrent_spec_from_json(text);
    if (config && to_json(*config) == text) {
      print_source("configuration", config->spec);
    } else if (recurrent && to_json(*recurrent) == text) {
      print_source("configuration", *recurrent);
    } else if (!is_copy_config(text)) {
      std::fprintf(stderr, "not written as it was read: %s\n", text.c_str());
      canonical = false;
    }
  }
  return canonical;
}

/// Draws values of a field, the same on every machine. One of so many values is out of place.
class Draw {
 public:
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  template <class T>
  T of(std::initializer_list<T> values, std::initializer_list<T> rare) {
    return one_in(24) ? of(rare) : of(values);
  }
  bool one_in(unsigned count) { return random_() % count == 0; }

 private:
  std::mt19937_64 random_{47};
};

Features draw_features(Draw& draw) {
  Features features;
  if (draw.one_in(2)) features.page_size = draw.of({1, 4, 8, 16, 48, 64, 128}, {24, -1});
  if (draw.one_in(3)) features.q_len = draw.of({2, 3, 4, 8, 16}, {17, 40});
  if (features.q_len > 1 && draw.one_in(3)) features.mask = draw.of({QueryMask::tree, QueryMask::full});
  if (features.mask == QueryMask::full && draw.one_in(2)) features.q_len = 40;
  features.ragged_q = draw.one_in(8);
  if (draw.one_in(10)) features.window = draw.of({1, 100, 5000}, {-5});
  if (draw.one_in(features.window > 0 ? 2 : 50)) features.sink_tokens = draw.of({4, 64});
  features.sink_logits = draw.one_in(12);
  if (draw.one_in(16)) features.soft_cap = draw.of({30.0}, {-1.0});
  features.alibi = draw.one_in(16);
  if (draw.one_in(16)) features.score = draw.of<const char*>({"score * 0.5f"}, {"score +"});
  features.latent = draw.one_in(2);
  if (features.latent || draw.one_in(6)) features.v_head_dim = draw.of({64, 128, 256, 512, 512, 512}, {16, 600});
  if (draw.one_in(3)) features.kv_format = draw.of({KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8});
  if (draw.one_in(features.latent ? 4 : 40)) features.kv_format = KvFormat::fp8_ds_mla;
  if (features.kv_format != KvFormat::same && draw.one_in(4))
    features.kv_scale = draw.of({KvScale::head, KvScale::token});
  features.append = draw.one_in(5);
  if (draw.one_in(8)) features.rope = draw.of({Rope::half_split, Rope::interleaved});
  if (draw.one_in(features.rope != Rope::none ? 3 : 60)) features.rope_dim = draw.of({32, 64}, {80});
  features.batch_invariant = draw.one_in(16);
  if (draw.one_in(features.page_size > 0 ? 5 : 60)) features.selection_block = draw.of({1, 16, 32, 64, 128}, {7});
  features.selection_in_pool = draw.one_in(features.selection_block > 0 ? 2 : 80);
  features.second_cache = draw.one_in(features.selection_block > 0 ? 3 : 80);
  if (draw.one_in(10)) features.context_parallel = draw.of({2, 3, 8}, {9});
  if (draw.one_in(features.context_parallel > 1 ? 2 : 60)) features.context_interleave = draw.of({1, 16, 256});
  if (draw.one_in(24)) features.context_ranks = draw.of({2, 4, 8});
  features.replicate_output = draw.one_in(features.context_parallel > 1 ? 3 : 80);
  return features;
}

KernelSpec draw_spec(Draw& draw) {
  KernelSpec spec;
  if (draw.one_in(4))
    spec.arch = draw.of<Arch>({{8, 0}, {8, 6}, {8, 9}, {10, 0, true}, {12, 0, true}}, {{9, 0}, {7, 5}});
  if (draw.one_in(2)) spec.features = draw_features(draw);
  const bool format = spec.features.kv_format == KvFormat::fp8_ds_mla && !draw.one_in(8);
  if (format) spec.features.v_head_dim = 512, spec.features.kv_scale = KvScale::tensor;
  spec.head_dim = format                 ? 576
                  : spec.features.latent ? draw.of({576, 576, 512, 320, 192, 128, 640}, {656})
                                         : draw.of({64, 128, 128, 256, 96, 192, 480}, {8, 16, 80, 512});
  spec.group = draw.of({1, 2, 4, 8, 16, 32, 64, 128, 3, 7}, {129});
  spec.dtype = draw.of({DType::bf16, DType::fp16});
  spec.layout = draw.of({KvLayout::contiguous, KvLayout::strided});
  spec.lse = draw.one_in(2);
  spec.load = draw.of({LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::vector, LoadPath::tensor,
                       LoadPath::tensor, LoadPath::tensor, LoadPath::tensor});
  spec.fixup = draw.of({FixUp::ticket, FixUp::wait});
  spec.warp_tokens = draw.of({16, 16, 16, 32}, {64, 8});
  spec.tile = draw.of({64, 64, 128, 128, 256}, {16, 32, 48, 2048, 8192});
  spec.warps = draw.of({4, 8}, {1, 2, 6, 12, 16, 17});
  spec.stages = loads_to_registers(spec.load) && !draw.one_in(8) ? 1 : draw.of({1, 2, 2, 2, 3, 4}, {6, 8, 9});
  spec.ctas_per_sm = draw.of({1, 1, 1, 2}, {3, 4, 9});
  spec.pdl = draw.one_in(4);
  return spec;
}

void print_layout(const KernelSpec& s) {
  const KernelLayout l = layout_of(s);
  const bool roles = l.family == &kWgmmaRoles;
  const bool splits = l.family == &kWgmmaTokens && s.features.latent && s.warps == 8;
  fmt::print("drawn {} {}:", kernel_name(s), to_json(s.features));
  const bool values[] = {l.converts_rows,
                         l.gathers_rows,
                         l.appends_to_stage,
                         l.row_buffer_bytes > 0,
                         l.family->query_rows_lead,
                         roles,
                         splits,
                         l.row_blocks_in_step > 1,
                         l.counts_partials,
                         l.keeps_partials_by_hint,
                         l.has_large_partials,
                         l.holds_results,
                         l.writes_rows,
                         l.consumer_registers > 0};
  for (const bool value : values) fmt::print(" {}", value ? 1 : 0);
  const int numbers[] = {
      value_dim(s),     cache_columns(s),  cache_token_bytes(s), l.page_run,        l.rows,
      l.row_blocks,     l.gathering_warps, l.row_buffer_bytes,   l.converting_ctas, l.partial_columns,
      l.registers,      l.strip_loads,     l.state_columns,      l.stage_parts,     l.shared_bytes,
      l.producer_warps, l.threads,         l.step_tokens,        l.partial_floats,  l.family->exchange_order};
  for (const int number : numbers) fmt::print(" {}", number);
  for (const int number : {l.tile_positions, l.light_tile_positions, l.consumer_registers, l.producer_registers})
    fmt::print(" {}", number);
  const auto valid = validate(s);
  if (!valid)
    fmt::print(" {}: {}; {}", static_cast<int>(valid.error().code), valid.error().message, valid.error().hint);
  fmt::print("\n");
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) {
  using namespace leanattn;
  if (argc < 2) {
    std::fprintf(stderr, "usage: source_hashes TUNING_DB [SPECS]\n");
    return 2;
  }
  fmt::print("revision {}\n", generator_revision());
  print_sources("matrix", matrix(Combinations::all));
  print_sources("matrix", features_matrix(Combinations::all));
  const bool canonical = print_configs(argv[1]);
  for (const Arch arch : matrix_arches()) {
    for (const VerifyKernel& kernel : plan_run(arch, {}).kernels) print_sources("verify", kernel.specs);
  }
  Draw draw;
  const long count = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 300000;
  for (long i = 0; i < count; ++i) print_layout(draw_spec(draw));
  return canonical ? 0 : 1;
}
