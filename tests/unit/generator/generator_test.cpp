#include "generator/generator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/kernel_source.hpp"
#include "generator/templates.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

std::vector<KernelSpec> one_of_each_family() {
  std::vector<KernelSpec> specs;
  for (LoadPath load : kLoadPaths) {
    for (FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      for (DType dtype : {DType::bf16, DType::fp16}) {
        specs.push_back({.group = load == LoadPath::vector ? 2 : 4,
                         .dtype = dtype,
                         .lse = true,
                         .load = load,
                         .fixup = fixup,
                         .stages = loads_to_registers(load) ? 1 : 2});
      }
    }
  }
  return specs;
}

TEST(Emit, LeavesNoConditionOfTheTemplatesToTheCompiler) {
  for (const Features& features : {Features{}, Features{.window = 100, .context_parallel = 2},
                                   Features{.q_len = 4, .ragged_q = true, .spans = true}, Features{.packed_kv = true},
                                   Features{.page_size = 64, .selection_block = 64, .second_cache = true}}) {
    const KernelSpec spec{.arch = {9, 0, true}, .features = features, .load = LoadPath::cp_async};
    const auto kernel = emit(spec);
    ASSERT_TRUE(kernel) << kernel.error().message;
    EXPECT_EQ(kernel->source.find("\n#if"), std::string::npos) << kernel->entry;
  }
}

TEST(Generator, TheSameSpecAlwaysGivesTheSameBytes) {
  for (const KernelSpec& spec : one_of_each_family()) EXPECT_EQ(emit(spec)->source, emit(spec)->source);
}

TEST(Generator, DifferentSpecsGiveDifferentSources) {
  std::set<std::string> sources, entries;
  for (const KernelSpec& spec : one_of_each_family()) {
    sources.insert(emit(spec)->source);
    entries.insert(emit(spec)->entry);
  }
  EXPECT_EQ(sources.size(), one_of_each_family().size());
  EXPECT_EQ(entries.size(), one_of_each_family().size());
}

TEST(Generator, SourcesAreFlatAndIncludeFree) {
  for (const KernelSpec& spec : one_of_each_family()) {
    const std::string source = emit(spec)->source;
    for (auto at = source.find('#'); at != std::string::npos; at = source.find('#', at + 1)) {
      const auto word = source.find_first_not_of(" \t", at + 1);
      EXPECT_NE(source.compare(std::min(word, source.size()), 7, "include"), 0) << kernel_name(spec);
    }
  }
}

TEST(Generator, ASourceOpensWithItsSpecAndEndsWithItsEntryPoint) {
  for (const KernelSpec& spec : one_of_each_family()) {
    const EmittedKernel kernel = emit(spec).value();
    EXPECT_TRUE(kernel.source.starts_with("// " + kernel_name(spec) + "\n"));
    const auto at = kernel.source.find("the spec as JSON: ");
    ASSERT_NE(at, std::string::npos);
    const auto begin = at + 18, end = kernel.source.find('\n', begin);
    EXPECT_EQ(kernel_spec_from_json(kernel.source.substr(begin, end - begin)).value(), spec);
    EXPECT_NE(kernel.source.find("extern \"C\" __global__ void"), std::string::npos);
    EXPECT_EQ(kernel.source.find("KERNEL_NAME"), std::string::npos);
    EXPECT_NE(kernel.source.find(kernel.entry + "(const __grid_constant__ LeanDecodeArgs args"), std::string::npos);
  }
}

TEST(Generator, OnlyTheModulesASpecUsesAreEmitted) {
  const auto has = [](const KernelSpec& spec, std::string_view module) {
    return emit(spec)->source.find(module) != std::string::npos;
  };
  const KernelSpec bulk{.load = LoadPath::bulk}, copies{.load = LoadPath::cp_async},
      direct{.load = LoadPath::ldg, .stages = 1};
  EXPECT_TRUE(has(bulk, "kv/bulk.cuh --") && !has(bulk, "kv/cp_async.cuh --") && !has(bulk, "kv/ldg.cuh --"));
  EXPECT_TRUE(has(copies, "kv/cp_async.cuh --") && !has(copies, "kv/bulk.cuh --"));
  EXPECT_TRUE(has(direct, "kv/ldg.cuh --") && !has(direct, "kv/warp_ring.cuh --"));
  EXPECT_TRUE(has({.fixup = FixUp::wait}, "merge/wait.cuh --") && !has({.fixup = FixUp::wait}, "merge/ticket.cuh --"));
  const KernelSpec step{.features = {.append = true, .rope = Rope::half_split}};
  EXPECT_TRUE(has(step, "kv/append.cuh --") && has(step, "attend/rope.cuh --") && has(step, "kRopeDim"));
  EXPECT_TRUE(!has(bulk, "kv/append.cuh --") && !has(bulk, "attend/rope.cuh --") && !has(bulk, "kRopeDim"));
  // Where the copy engine reads new rows from the cache, it has to see them first.
  constexpr std::string_view kFence = "fence.proxy.async.global";
  KernelSpec copied = bulk, staged{.features = {.append = true}, .load = LoadPath::tensor};
  copied.features.append = true;
  EXPECT_TRUE(has(copied, kFence) && has(copied, "kv/append_to_cache.cuh --"));
  EXPECT_TRUE(!has(step, kFence) && has(step, "kv/append_to_cache.cuh --"));
  EXPECT_TRUE(!has(staged, kFence) && has(staged, "kv/append_to_stage.cuh --"));
  EXPECT_FALSE(has(staged, "kv/append_to_cache.cuh --"));
  KernelSpec few{.group = 32, .load = LoadPath::tensor}, many{.group = 33, .load = LoadPath::tensor};
  EXPECT_TRUE(has(few, "attend/wgmma_tokens.cuh --") && has(few, "m64n32k16.f32.bf16.bf16"));
  EXPECT_TRUE(has(many, "attend/wgmma_rows.cuh --") && has(many, "m64n128k16") && has(many, "m64n64k16"));
  EXPECT_TRUE(has(many, "attend/steps_in_turn.cuh --") && !has(many, "attend/query_rows.cuh --"));
  KernelSpec prefill{.group = 65, .load = LoadPath::tensor, .warps = 8};
  EXPECT_TRUE(has(prefill, "attend/wgmma_prefill.cuh --") && has(prefill, "attend/query_rows.cuh --"));
  EXPECT_TRUE(!has(prefill, "attend/wgmma_rows.cuh --") && !has(prefill, "attend/steps_in_turn.cuh --"));
  EXPECT_FALSE(has(prefill, "positions_of_tile")) << "all its LeanTiles count one position";
  prefill.features = {.q_len = 40, .ragged_q = true};
  EXPECT_TRUE(has(prefill, "kLightTilePositions = 4") && has(prefill, "positions_of_tile"));
  // Only these kernels have what turns and parts need.
  for (const char* const text : {"produces_part", "begin_turn", "has_rows", "sync_held"}) {
    EXPECT_TRUE(has(prefill, text)) << text;
    EXPECT_TRUE(!has(few, text)) << text;
  }
}

TEST(Generator, WarpsWithQueryRowsOfTheirOwnShareARing) {
  const auto has = [](const KernelSpec& spec, std::string_view text) {
    return emit(spec)->source.find(text) != std::string::npos;
  };
  for (const Arch arch : matrix_arches()) {
    KernelSpec spec{.arch = arch, .features = {.page_size = 1, .q_len = 40, .ragged_q = true}};
    for (const char* const text : {"attend/mma_prefill.cuh --", "kv/shared_ring.cuh --", "ldmatrix", "mma.sync",
                                   "kRowsOfWarp = 32", "step_holes(args, s, step)"})
      EXPECT_TRUE(has(spec, text)) << to_string(arch) << ": " << text;
    EXPECT_EQ(has(spec, "stmatrix.sync"), arch.major >= 9) << to_string(arch);
    EXPECT_FALSE(has(spec, "kv/warp_ring.cuh --") || has(spec, "fence.proxy"));
    EXPECT_TRUE(has(spec, "__any_sync(kFullMask, place < 0)")) << "pages may be holes";
    spec.features.page_size = 0;
    EXPECT_FALSE(has(spec, "hole_note") || has(spec, "page_table)"));
  }
}

/// The lines that hold more than a comment.
std::vector<std::string> code_lines(const std::string& source) {
  std::vector<std::string> lines;
  std::istringstream in(source);
  for (std::string line; std::getline(in, line);) {
    const auto begin = line.find_first_not_of(' ');
    if (begin != std::string::npos && line.compare(begin, 2, "//") != 0) lines.push_back(line);
  }
  return lines;
}

TEST(Generator, EveryPollForPartialsIsBounded) {
  const auto count = [](const std::string& source, std::string_view text) {
    int found = 0;
    for (auto at = source.find(text); at != std::string::npos; at = source.find(text, at + 1)) ++found;
    return found;
  };
  std::vector<KernelSpec> specs = one_of_each_family();
  specs.push_back({.head_dim = 576,
                   .group = 16,
                   .features = {.v_head_dim = 512, .latent = true},
                   .load = LoadPath::tensor,
                   .warps = 4,
                   .stages = 2});
  for (KernelSpec spec : specs) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      spec.fixup = fixup;
      const auto emitted = emit(spec);
      ASSERT_TRUE(emitted) << emitted.error().message;
      const int loops = count(emitted->source, "} while (!all);"),
                leaves = count(emitted->source, "if (__all_sync(kFullMask, all)) break;");
      EXPECT_GT(loops + leaves, 0) << kernel_name(spec);
      EXPECT_EQ(count(emitted->source, "if (!all && !goes_on_waiting(args, waited)) {"), loops) << kernel_name(spec);
      EXPECT_EQ(count(emitted->source, " if (!goes_on_waiting(args, waited)) {"), leaves) << kernel_name(spec);
    }
  }
}

/// The kernel has one loop that begins so, which all others call, and it is bounded.
void expect_one_bounded_loop(const KernelSpec& spec, std::string_view loop) {
  const auto emitted = emit(spec);
  ASSERT_TRUE(emitted) << emitted.error().message;
  int loops = 0;
  for (const std::string& line : code_lines(emitted->source)) {
    if (line.find(loop) == std::string::npos) continue;
    ++loops;
    EXPECT_NE(line.find("goes_on_waiting(args, waited)"), std::string::npos) << kernel_name(spec) << ": " << line;
  }
  EXPECT_EQ(loops, 1) << kernel_name(spec) << ": " << loop;
}

KernelSpec with_roles() {
  KernelSpec spec{
      .arch = {9, 0, true}, .head_dim = 576, .group = 128, .load = LoadPath::tensor, .warps = 8, .stages = 2};
  spec.features.latent = true, spec.features.v_head_dim = 512, spec.features.page_size = 64;
  return spec;
}

TEST(Generator, WaitsForCountedPartialsAreBounded) {
  KernelSpec spec = with_roles();
  spec.fixup = FixUp::wait;
  ASSERT_TRUE(layout_of(spec).counts_partials);
  expect_one_bounded_loop(spec, "while (stored % kOneLeft");
}

TEST(Generator, EveryStoreToALargePartialHasAHintAndSmallOnesArePrefetched) {
  const auto lines_with = [](const EmittedKernel& kernel, const std::string& pattern) {
    const std::vector<std::string> lines = code_lines(kernel.source);
    const std::regex found(pattern);
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return std::regex_search(line, found); });
  };
  KernelSpec counted = with_roles();
  counted.fixup = FixUp::wait;
  KernelSpec tokens = with_roles();
  tokens.group = 16, tokens.warps = 4;
  const KernelSpec small{.group = 8, .load = LoadPath::tensor, .warps = 4, .stages = 2},
      wide{.group = 64, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  for (const KernelSpec& spec : {counted, with_roles(), tokens, small, wide}) {
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    const bool by_hint = layout_of(spec).keeps_partials_by_hint;
    EXPECT_EQ(by_hint, spec != small) << kernel_name(spec);
    // Stores of four words are those of columns of partials and of zeros in their place.
    const std::string hint = R"(\.L2::cache_hint)", columns = R"(\.(b128 \[%0\], x|v4\.u32 \[%0\]))",
                      store = R"(st\.(relaxed\.gpu\.)?global)";
    EXPECT_EQ(lines_with(*emitted, store + hint + columns) > 0, by_hint) << kernel_name(spec);
    EXPECT_EQ(lines_with(*emitted, store + columns) > 0, !by_hint) << kernel_name(spec);
    EXPECT_EQ(lines_with(*emitted, R"(keep_in_l2\(mine)") > 0, !by_hint) << kernel_name(spec);
  }
  KernelSpec invariant = with_roles();
  invariant.features.batch_invariant = true;
  const auto emitted = emit(invariant);
  ASSERT_TRUE(emitted) << emitted.error().message;
  EXPECT_FALSE(layout_of(invariant).keeps_partials_by_hint);
  EXPECT_EQ(lines_with(*emitted, "cache_hint.b128|keep_in_l2\\(mine"), 0);
}

TEST(Generator, EveryWaitForAStageOfTheRingIsBounded) {
  const KernelSpec tokens{.arch = {9, 0, true}, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  for (const KernelSpec& spec : {tokens, with_roles()}) expect_one_bounded_loop(spec, "while (!is_complete(");
}

TEST(Generator, AProducerFillsAStageAgainWhenItsLastCopyHasArrived) {
  const KernelSpec tokens{.arch = {9, 0, true}, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  for (const KernelSpec& spec : {tokens, with_roles()}) {
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    const auto claim = emitted->source.find("void claim("), end = emitted->source.find("\n  }", claim),
               arrived = emitted->source.find("wait_ring(args, full_barriers(ring, at)", claim),
               free = emitted->source.find("wait_ring(args, empty_barriers(ring, at)", claim);
    ASSERT_NE(claim, std::string::npos) << kernel_name(spec);
    EXPECT_LT(arrived, free) << kernel_name(spec) << ": a reader that gave up says that a stage is free";
    EXPECT_LT(free, end) << kernel_name(spec);
  }
}

TEST(Generator, ProducersThatConvertRowsTakeAStageForFreeOnlyOnceItsLastCopiesHaveCome) {
  KernelSpec spec{
      .arch = {9, 0, true}, .head_dim = 576, .group = 128, .load = LoadPath::tensor, .warps = 8, .stages = 2};
  spec.features = {.page_size = 64, .kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  const auto emitted = emit(spec);
  ASSERT_TRUE(emitted) << emitted.error().message;
  const auto begin = emitted->source.find("bool is_free("), end = emitted->source.find("\n}", begin);
  ASSERT_NE(begin, std::string::npos);
  const std::string body = emitted->source.substr(begin, end - begin);
  EXPECT_NE(body.find("is_complete_now(full_barriers("), std::string::npos) << body;
  EXPECT_NE(body.find("is_complete_now(empty_barriers("), std::string::npos) << body;
}

TEST(Generator, WorkersTakeTheSegmentThatOneThreadHasFound) {
  const KernelSpec tokens{.arch = {9, 0, true}, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  for (const auto& [spec, take] :
       {std::pair{tokens, "take_segment(0, walk)"}, {with_roles(), "take_segment(number, walk)"}}) {
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    const auto told = emitted->source.find("found_segment(0) = {walk, any};"),
               barrier = emitted->source.find("(kFirstBarrier + 2)", told), taken = emitted->source.find(take, barrier);
    ASSERT_NE(told, std::string::npos) << kernel_name(spec);
    ASSERT_NE(barrier, std::string::npos) << kernel_name(spec);
    EXPECT_NE(taken, std::string::npos) << kernel_name(spec);
  }
}

TEST(Generator, ScalesOfAConvertedCacheMultiplyScoresAndResults) {
  KernelSpec spec{
      .arch = {9, 0, true}, .head_dim = 576, .group = 16, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  spec.features = {.kv_format = KvFormat::fp8_e4m3, .v_head_dim = 512, .latent = true};
  for (const auto& [warps, group] : {std::pair{4, 16}, std::pair{8, 16}, std::pair{8, 64}}) {
    spec.warps = warps, spec.group = group;
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    const std::string& source = emitted->source;
    const auto scaled = source.find("scale_scores(score, k_scale);");
    ASSERT_NE(scaled, std::string::npos) << kernel_name(spec);
    EXPECT_EQ(source.find("scale_scores(score, k_scale);", scaled + 1), std::string::npos) << "once a step";
    EXPECT_NE(source.find("factor *= output_scale(args, output.kv_head);"), std::string::npos);
    EXPECT_NE(source.find("typedef struct Fp16 Operand;"), std::string::npos) << "fp16 has every byte's value";
    EXPECT_NE(source.find(".f32.f16.f16"), std::string::npos);
    EXPECT_EQ(source.find(".f32.bf16.bf16"), std::string::npos) << "one kind of operands";
  }
  spec.features.kv_format = KvFormat::same;
  EXPECT_EQ(emit(spec)->source.find("scale_scores"), std::string::npos);
}

TEST(Generator, PlainDenseKernelsHaveFewerThan1210LinesOfCode) {
  for (KernelSpec spec : one_of_each_family()) {
    spec.lse = false;
    EXPECT_LT(code_lines(emit(spec)->source).size(), 1210u) << kernel_name(spec);
  }
}

TEST(Generator, TheDefaultKernelsOfLlama3HaveFewerThan1670LinesWithComments) {
  KernelSpec spec{
      .arch = {9, 0, true}, .head_dim = 128, .group = 4, .load = LoadPath::tensor, .stages = 3, .ctas_per_sm = 2};
  for (const int page_size : {0, 16}) {
    spec.features.page_size = page_size;
    const std::string source = emit(spec)->source;
    EXPECT_LT(std::count(source.begin(), source.end(), '\n'), 1670) << kernel_name(spec);
    EXPECT_EQ(source.find("tree_mask"), std::string::npos) << "arguments of features are not spelled out";
  }
}

TEST(Generator, AModuleTellsAKernelOnlyTheFirstPartOfItsHead) {
  const std::string_view module = template_text("kv/tensor.cuh");
  const auto dashes = module.find("\n// ---\n");
  ASSERT_NE(dashes, std::string_view::npos);
  const std::string source = emit({.arch = {9, 0, true}, .load = LoadPath::tensor})->source;
  EXPECT_NE(source.find("//" + std::string(module.substr(0, dashes))), std::string::npos);
  EXPECT_EQ(source.find("// ---\n"), std::string::npos) << "what is behind it concerns other kernels";
  EXPECT_EQ(source.find("With kLatent V is"), std::string::npos);
}

std::vector<KernelSpec> specs_with_features() {
  const Features kFeatures[] = {{},
                                {.page_size = 16},
                                {.page_size = 48, .q_len = 3, .ragged_q = true, .mask = QueryMask::tree},
                                {.q_len = 40, .mask = QueryMask::full},
                                {.window = 500, .sink_tokens = 4, .sink_logits = true},
                                {.soft_cap = 30, .alibi = true},
                                {.score = "score * 0.5f"},
                                {.kv_format = KvFormat::fp8_e4m3},
                                {.kv_format = KvFormat::int8, .kv_scale = KvScale::token},
                                {.v_head_dim = 64},
                                {.v_head_dim = 64, .latent = true},
                                {.page_size = 16, .append = true, .rope = Rope::half_split},
                                {.append = true, .rope = Rope::interleaved, .batch_invariant = true},
                                {.context_parallel = 2},
                                {.q_len = 4, .context_parallel = 4, .context_interleave = 16},
                                {.q_len = 2, .context_parallel = 3, .replicate_output = true}};
  std::vector<KernelSpec> specs;
  for (const KernelSpec& family : one_of_each_family()) {
    for (const Features& features : kFeatures) {
      KernelSpec spec = family;
      spec.features = features;
      for (const bool pdl : {false, true}) {
        spec.pdl = pdl;
        if (validate(spec)) specs.push_back(spec);
      }
    }
  }
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    for (const int page_size : {0, 64}) {
      KernelSpec roles{.head_dim = 576, .group = 128, .load = LoadPath::tensor, .fixup = fixup, .warps = 8};
      roles.features = {.page_size = page_size, .v_head_dim = 512, .latent = true};
      EXPECT_TRUE(validate(roles));
      specs.push_back(roles);
    }
  }
  return specs;
}

/// The kernels of these specs, of which a change has every third one. They are emitted once for all tests.
const std::vector<EmittedKernel>& kernels_with_features() {
  static const std::vector<EmittedKernel> kernels = [] {
    std::vector<EmittedKernel> emitted;
    std::size_t number = 0;
    for (const KernelSpec& spec : specs_with_features()) {
      if (in_turn(number++ % 3, 3)) emitted.push_back(emit(spec).value());
    }
    return emitted;
  }();
  return kernels;
}

TEST(Generator, NoKernelDeclaresAConstantThatItDoesNotUse) {
  const auto is_of_words = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  ASSERT_GT(kernels_with_features().size(), 100u);
  for (const EmittedKernel& kernel : kernels_with_features()) {
    std::map<std::string_view, int> uses;
    std::vector<std::string_view> constants;
    const std::vector<std::string> lines = code_lines(kernel.source);
    for (const std::string& line : lines) {
      const std::string_view code = std::string_view(line).substr(0, line.find("//"));
      if (const auto end = code.find(" ="); code.starts_with("constexpr ") && end != std::string_view::npos) {
        const std::string_view name = code.substr(0, end).substr(code.rfind(' ', end - 1) + 1);
        if (name.starts_with('k') && std::all_of(name.begin(), name.end(), is_of_words)) constants.push_back(name);
      }
      for (auto at = code.find('k'); at != std::string_view::npos; at = code.find('k', at + 1)) {
        if (at > 0 && is_of_words(code[at - 1])) continue;
        std::size_t end = at;
        while (end < code.size() && is_of_words(code[end])) ++end;
        ++uses[code.substr(at, end - at)];
        at = end - 1;
      }
    }
    ASSERT_GT(constants.size(), 20u);
    for (const std::string_view name : constants) EXPECT_GT(uses[name], 1) << name << " of " << kernel.entry;
  }
}

TEST(Generator, EveryKernelChecksTheSharedMemoryThatItsHostLaunchesWith) {
  for (const EmittedKernel& kernel : kernels_with_features()) {
    const std::string shared = "constexpr int kSharedBytes = " + std::to_string(kernel.shared_bytes) + ";";
    EXPECT_NE(kernel.source.find(shared), std::string::npos) << kernel.entry;
    EXPECT_NE(kernel.source.find(" == kSharedBytes,"), std::string::npos) << kernel.entry;
    const std::string_view type =
        (layout_of(kernel.spec).family == &kWgmmaRoles)  ? "Operands) == lean_role_operand_bytes("
        : layout_of(kernel.spec).family == &kMmaPrefill  ? "WarpQuery) == kQueriesBytes / kWarps"
        : !layout_of(kernel.spec).holds_results          ? "MergeBuffer) == lean_merge_bytes("
        : layout_of(kernel.spec).family->query_rows_lead ? "Operands) == lean_row_operand_bytes("
                                                         : "Operands) == lean_token_operand_bytes(";
    EXPECT_NE(kernel.source.find(fmt::format("static_assert(sizeof({}", type)), std::string::npos) << kernel.entry;
  }
}

TEST(Generator, KernelsThatRanksMayMixHaveTheirDimsInOneOrder) {
  KernelSpec tokens{.arch = {9, 0, true}, .load = LoadPath::tensor, .warps = 4, .stages = 2};
  KernelSpec in_turn = tokens, rows = tokens, split_rows = tokens, roles = tokens;
  in_turn.warps = 8, rows.group = 64, split_rows.group = 128, split_rows.warps = 8;
  roles.head_dim = 576, roles.group = 128, roles.warps = 8, roles.features.latent = true,
  roles.features.v_head_dim = 512;
  std::set<int> orders;
  for (const KernelSpec& spec : {tokens, in_turn, rows, split_rows, roles}) {
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    EXPECT_NE(emitted->source.find("int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }"),
              std::string::npos)
        << kernel_name(spec);
    orders.insert(family_of(spec).exchange_order);
  }
  EXPECT_EQ(orders.size(), 1u);
}

TEST(Generator, KernelsThatWaitSayThatNotEveryGridWillDo) {
  for (const KernelSpec& spec : one_of_each_family())
    EXPECT_EQ(emit(spec)->source.find("Any grid") != std::string::npos, spec.fixup == FixUp::ticket);
}

TEST(Generator, InvalidSpecsAreRefused) {
  EXPECT_EQ(emit({.head_dim = 72}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(emit({.tile = 7}).error().code, ErrorCode::invalid_argument);
}

TEST(Generator, RevisionIsAStableHash) {
  EXPECT_EQ(generator_revision(), generator_revision());
  EXPECT_TRUE(std::regex_match(generator_revision(), std::regex("[0-9a-f]{32}")));
}

/// A kernel of each family.
std::vector<KernelSpec> spec_of_each_family() {
  const Arch hopper{9, 0, true};
  const Features prompts{.q_len = 40, .ragged_q = true}, latent{.v_head_dim = 512, .latent = true};
  return {{.load = LoadPath::cp_async},
          {.group = 2, .load = LoadPath::vector, .stages = 1},
          {.features = prompts},
          {.arch = hopper, .load = LoadPath::tensor},
          {.arch = hopper, .group = 64, .load = LoadPath::tensor},
          {.arch = hopper, .group = 65, .load = LoadPath::tensor, .warps = 8},
          {.arch = hopper, .features = prompts, .load = LoadPath::tensor, .warps = 12},
          {.arch = hopper, .head_dim = 576, .group = 64, .features = latent, .load = LoadPath::tensor, .warps = 8}};
}

TEST(KernelRevision, ChangesWithTheModulesOfTheKernelAlone) {
  const ModuleHashes hashes = module_hashes(embedded_templates());
  const std::vector<KernelSpec> specs = spec_of_each_family();
  std::set<const KernelFamily*> covered;
  for (const KernelSpec& spec : specs) {
    SCOPED_TRACE(kernel_name(spec));
    covered.insert(&family_of(spec));
    ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
    const std::string revision = kernel_revision(spec), source = emit(spec)->source;
    EXPECT_EQ(revision, kernel_revision(spec, hashes));
    EXPECT_TRUE(std::regex_match(revision, std::regex("[0-9a-f]{16}")));
    for (const auto& [module, hash] : hashes) {
      ModuleHashes edited = hashes;
      edited[module] = "another";
      if (source.find(fmt::format("//// {} --", module)) != std::string::npos)
        EXPECT_NE(kernel_revision(spec, edited), revision) << module;
      const bool of_one_family = module == "attend/wgmma_prefill.cuh" || module == "attend/mma_prefill.cuh";
      const std::string_view family = family_of(spec).name;
      if (module.starts_with("check/") || module.starts_with("standalone/") ||
          (of_one_family && family != "mma_prefill" && family != "wgmma_prefill" && family != "wgmma_mixed"))
        EXPECT_EQ(kernel_revision(spec, edited), revision) << module;
    }
  }
  EXPECT_EQ(covered.size(), families().size());
}

TEST(KernelRevision, ChangesWithConstantsButNotWithThoseOfFeaturesThatTheKernelLacks) {
  const ModuleHashes hashes = module_hashes(embedded_templates());
  const KernelSpec spec{}, wider{.head_dim = 256}, deeper{.stages = spec.stages + 1},
      windowed{.features = {.window = 9}};
  std::set<std::string> revisions;
  for (const KernelSpec& one : {spec, wider, deeper, windowed}) revisions.insert(kernel_revision(one));
  EXPECT_EQ(revisions.size(), 4u);
  SourceText source{.hashes = &hashes};
  source.flag("kNewFeature", false, "of a later version");
  source.number("kNewSize", 0, "of a later version");
  EXPECT_EQ(source.text, "");
  source.number("kNewSize", 4, "of a later version");
  EXPECT_NE(source.text, "");
}

TEST(KernelRevision, DoesNotChangeWithWordsAndWhiteSpace) {
  const auto hash = [](std::string_view text) {
    const EmbeddedTemplate templates[] = {{"a.cuh", text}};
    return module_hashes(templates).at("a.cuh");
  };
  EXPECT_EQ(hash("// What a is.\nint a;\n"), hash("int  a;"));
  EXPECT_NE(hash("int a;"), hash("int b;"));
}

TEST(Generator, CommentsAndWhiteSpaceDoNotChangeTheRevision) {
  const auto revision = [](std::string_view text, std::string_view name = "a.cuh") {
    const EmbeddedTemplate templates[] = {{name, text}};
    return revision_of(templates);
  };
  const std::string code = revision("int a;\n  int b;\n");
  EXPECT_EQ(revision("// What a is.\nint a;\n\n  // What b is.\n  int b;"), code);
  EXPECT_NE(revision("int a;\n  int c;\n"), code);
  EXPECT_NE(revision("int a;\n"), code);
  EXPECT_EQ(revision("int a;  int b;  // What b is.\n"), code);
  EXPECT_NE(revision("int a;\n  int b;\n", "b.cuh"), code);
  EXPECT_EQ(revision("int a;\n", "check/a.cuh"), revision("int b;\n", "check/a.cuh")) << "no kernel has it";
  const EmbeddedTemplate one_way[] = {{"a.cuh", "int a;"}, {"b.cuh", "int b;"}},
                         other_way[] = {{"b.cuh", "int b;"}, {"a.cuh", "int a;"}};
  EXPECT_EQ(revision_of(one_way), revision_of(other_way));
}

TEST(Templates, EachOpensWithItsNameAndPurpose) {
  ASSERT_FALSE(embedded_templates().empty());
  for (const EmbeddedTemplate& t : embedded_templates()) {
    EXPECT_TRUE(t.text.starts_with("// " + std::string(t.name) + " -- ")) << t.name;
    EXPECT_TRUE(t.text.ends_with("\n")) << t.name;
  }
}

}  // namespace
}  // namespace leanattn
