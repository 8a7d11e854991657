#include "generator/kernel_spec.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <utility>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/workspace.hpp"

namespace leanattn {
namespace {

KernelSpec any_spec() {
  KernelSpec spec;
  spec.arch = *rc::gen::element(Arch{8, 0, false}, Arch{8, 9, false}, Arch{9, 0, true}, Arch{12, 0, true});
  spec.head_dim = *rc::gen::element(64, 96, 128, 256);
  spec.group = *rc::gen::inRange(1, 65);
  spec.dtype = *rc::gen::element(DType::bf16, DType::fp16);
  spec.layout = *rc::gen::element(KvLayout::contiguous, KvLayout::strided);
  spec.lse = *rc::gen::arbitrary<bool>();
  spec.load = *rc::gen::elementOf(kLoadPaths);
  spec.fixup = *rc::gen::element(FixUp::ticket, FixUp::wait);
  spec.warp_tokens = *rc::gen::element(16, 32, 64);
  spec.tile = spec.warp_tokens * *rc::gen::inRange(1, 9);
  spec.warps = *rc::gen::inRange(1, 17);
  spec.stages = *rc::gen::inRange(1, 9);
  spec.ctas_per_sm = *rc::gen::inRange(1, 9);
  spec.pdl = *rc::gen::arbitrary<bool>();
  return spec;
}

RC_GTEST_PROP(KernelSpec, SurvivesItsJson, ()) {
  const KernelSpec spec = any_spec();
  const auto back = kernel_spec_from_json(to_json(spec));
  RC_ASSERT(back.has_value());
  RC_ASSERT(*back == spec);
}

TEST(KernelSpec, StaticSharedMemoryCountsToo) {
  // 232,448 bytes of dynamic shared memory: all that one CTA may have, without room for barriers.
  const KernelSpec full{
      .head_dim = 256, .group = 5, .load = LoadPath::tensor, .fixup = FixUp::wait, .warps = 12, .stages = 3};
  ASSERT_EQ(layout_of(full).shared_bytes, max_shared_bytes_per_cta(full.arch));
  EXPECT_EQ(validate(full).error().code, ErrorCode::unsupported);
}

RC_GTEST_PROP(KernelSpec, EqualNamesMeanEqualSpecs, ()) {
  const KernelSpec a = any_spec(), b = any_spec();
  RC_ASSERT((kernel_name(a) == kernel_name(b)) == (a == b));
}

RC_GTEST_PROP(KernelSpec, ValidSpecsFitTheSharedMemoryOfTheirArch, ()) {
  const KernelSpec spec = any_spec();
  if (!validate(spec)) return;
  RC_ASSERT(layout_of(spec).shared_bytes <= max_shared_bytes_per_cta(spec.arch));
  RC_ASSERT(spec.ctas_per_sm * (layout_of(spec).shared_bytes + 1024) <= shared_bytes_per_sm(spec.arch));
}

RC_GTEST_PROP(KernelSpec, RowBlocksCoverTheGroup, ()) {
  const KernelSpec spec = any_spec();
  RC_ASSERT(layout_of(spec).rows * layout_of(spec).row_blocks >= spec.group);
  RC_ASSERT(layout_of(spec).rows * (layout_of(spec).row_blocks - 1) < spec.group);
}

TEST(KernelSpec, WrongJsonIsNamedNotGuessed) {
  for (const char* text : {"", "[]", "{}", "{\"arch\":\"sm_90a\"}", "not json"}) {
    const auto spec = kernel_spec_from_json(text);
    ASSERT_FALSE(spec.has_value()) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::invalid_argument);
  }
  std::string json = to_json(KernelSpec{});
  const auto at = json.find("\"warps\":4");
  ASSERT_NE(at, std::string::npos);
  for (const char* value : {"\"warps\":4000000000", "\"warps\":-9223372036854775808", "\"warps\":18446744073709551615",
                            "\"warps\":4.5", "\"warps\":\"4\""}) {
    std::string changed = json;
    changed.replace(at, 9, value);
    const auto spec = kernel_spec_from_json(changed);
    ASSERT_FALSE(spec.has_value()) << value;
    EXPECT_NE(spec.error().message.find("warps"), std::string::npos) << spec.error().message;
  }
}

TEST(KernelSpec, EveryLimitIsNamedWithItsValue) {
  const auto error_of = [](auto change) {
    KernelSpec spec;
    change(spec);
    const auto ok = validate(spec);
    return ok ? Error{ErrorCode::ok, "", "", ""} : ok.error();
  };
  EXPECT_EQ(error_of([](KernelSpec&) {}).code, ErrorCode::ok);
  const Error head_dim = error_of([](KernelSpec& s) { s.head_dim = 72; });
  EXPECT_EQ(head_dim.code, ErrorCode::unsupported);
  EXPECT_NE(head_dim.message.find("72"), std::string::npos);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.group = 129; }).code, ErrorCode::unsupported);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.group = 0; }).code, ErrorCode::unsupported);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.tile = 24; }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.warps = 17; }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.stages = 0; }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.load = LoadPath::ldg; }).code, ErrorCode::invalid_argument);  // two stages
  EXPECT_EQ(error_of([](KernelSpec& s) { s.load = LoadPath::ldg, s.stages = 1, s.head_dim = 256; }).code,
            ErrorCode::unsupported);
  EXPECT_EQ(error_of([](KernelSpec& s) {
              s.arch = {8, 0, false}, s.load = LoadPath::bulk;
            }).code,
            ErrorCode::unsupported);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.arch = {8, 0, false}, s.pdl = true; }).code, ErrorCode::unsupported);
  EXPECT_EQ(error_of([](KernelSpec& s) { s.warps = 16, s.stages = 8; }).code, ErrorCode::unsupported);
}

TEST(KernelSpec, FeaturesThatAFamilyHasNotAreNamed) {
  const auto message_of = [](LoadPath load, const Features& features, int warp_tokens = 16) {
    KernelSpec spec{.group = load == LoadPath::vector ? 1 : 4, .features = features, .load = load};
    spec.warp_tokens = warp_tokens;
    if (loads_to_registers(load)) spec.stages = 1;
    const auto ok = validate(spec);
    return ok ? std::string("ok") : ok.error().code == ErrorCode::unsupported ? ok.error().message : "wrong code";
  };
  const auto names = [](const std::string& message, const char* word) {
    return message.find(word) != std::string::npos;
  };
  const Features e4m3{.kv_format = KvFormat::fp8_e4m3};
  EXPECT_EQ(message_of(LoadPath::cp_async, e4m3), "ok");
  EXPECT_TRUE(names(message_of(LoadPath::tensor, e4m3), "fp8_e4m3"));
  EXPECT_TRUE(names(message_of(LoadPath::vector, e4m3), "fp8_e4m3"));
  EXPECT_EQ(message_of(LoadPath::tensor, {.page_size = 24}), "ok");
  EXPECT_EQ(message_of(LoadPath::tensor, {.page_size = 12}), "ok");
  EXPECT_EQ(message_of(LoadPath::bulk, {.page_size = 1}, 32), "ok");
  EXPECT_TRUE(names(message_of(LoadPath::bulk, {.page_size = 1}, 64), "pages of 1"));
  EXPECT_EQ(message_of(LoadPath::vector, {.q_len = 2}), "ok");
  EXPECT_TRUE(names(message_of(LoadPath::vector, {.q_len = 3}), "3 query rows"));
  EXPECT_TRUE(names(message_of(LoadPath::vector, {.v_head_dim = 64}), "64"));
  KernelSpec wide{.head_dim = 320, .group = 1, .features = {.v_head_dim = 16}, .load = LoadPath::ldg, .stages = 1};
  EXPECT_TRUE(names(validate(wide).error().message, "640 bytes"));
  wide.features.kv_format = KvFormat::int8;
  EXPECT_TRUE(validate(wide).has_value());
}

/// A kernel for prefill: several prompts of up to 4096 query tokens, two warpgroups.
KernelSpec prefill_spec() {
  KernelSpec spec{.group = 4, .features = {.page_size = 16, .q_len = 4096, .ragged_q = true}};
  spec.load = LoadPath::tensor, spec.warps = 8, spec.stages = 3;
  return spec;
}

TEST(KernelSpec, PrefillHas64RowsForEachWarpgroupAndAProducerWarpForKAndForV) {
  const KernelSpec spec = prefill_spec();
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  const KernelLayout layout = layout_of(spec);
  EXPECT_EQ(layout.family, &kWgmmaPrefill);
  EXPECT_EQ(layout.rows, 128);
  EXPECT_EQ(layout.row_blocks, 4096 * 4 / 128);
  EXPECT_EQ(layout.row_blocks_in_step, 1);
  EXPECT_EQ(layout.stage_parts, 2) << "K, then V";
  EXPECT_EQ(layout.producer_warps, 4) << "a warpgroup, which alone can hand over registers";
  EXPECT_EQ(layout.threads, 384);
  EXPECT_EQ(std::pair(layout.consumer_registers, layout.producer_registers), std::pair(224, 56));
  EXPECT_TRUE(layout.holds_results && layout.writes_rows);
  // q of both warpgroups, and three stages of 64 tokens of K and V; a ring begins at a multiple of 1024 bytes.
  EXPECT_EQ(layout.shared_bytes, 2 * 64 * 128 * 2 + 3 * 64 * 256 * 2 + 1024);
  EXPECT_EQ(layout.partial_columns, 128 * 128 / 4);
  KernelSpec gathers = spec, appends = spec;
  gathers.features.page_size = 1, appends.features.append = true;
  for (const KernelSpec& other : {gathers, appends}) {
    ASSERT_TRUE(validate(other)) << validate(other).error().message;
    EXPECT_EQ(std::pair(layout_of(other).consumer_registers, layout_of(other).producer_registers), std::pair(200, 104));
  }
  KernelSpec bytes = spec;
  bytes.features.kv_format = KvFormat::fp8_e4m3;
  ASSERT_TRUE(validate(bytes)) << validate(bytes).error().message;
  EXPECT_TRUE(layout_of(bytes).converts_rows && layout_of(bytes).gathers_rows);
  EXPECT_EQ(layout_of(bytes).shared_bytes, layout.shared_bytes) << "bytes wait where their values will be";
  for (const KernelSpec& of : {spec, gathers, appends, bytes}) {
    const KernelLayout l = layout_of(of);
    EXPECT_LE(256 * l.consumer_registers + 128 * l.producer_registers, l.threads * l.registers);
  }
}

TEST(KernelSpec, WarpsForPrefillHave16Or32RowsAndOneRing) {
  const auto spec_of = [](int head_dim, int warps, int warp_tokens) {
    KernelSpec spec{.arch = {8, 0}, .head_dim = head_dim, .features = {.page_size = 16, .q_len = 40, .ragged_q = true}};
    spec.warps = warps, spec.warp_tokens = warp_tokens;
    return spec;
  };
  struct Expected {
    int head_dim, warps, warp_tokens, rows_of_warp, shared_bytes;
  };
  for (const Expected& e : {Expected{128, 4, 32, 32, 128 * 256 + 2 * 32 * 512},
                            {128, 8, 64, 16, 128 * 256 + 2 * 64 * 512},
                            {64, 4, 64, 32, 128 * 128 + 2 * 64 * 256},
                            {256, 4, 32, 16, 64 * 512 + 2 * 32 * 1024},
                            {256, 8, 32, 16, 128 * 512 + 2 * 32 * 1024},
                            {96, 4, 32, 32, 128 * 256 + 2 * 32 * 512}}) {
    const KernelSpec spec = spec_of(e.head_dim, e.warps, e.warp_tokens);
    ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
    const KernelLayout layout = layout_of(spec);
    EXPECT_EQ(layout.rows_of_warp, e.rows_of_warp) << kernel_name(spec);
    EXPECT_EQ(layout.shared_bytes, e.shared_bytes) << kernel_name(spec) << ": whole panels of 64 columns";
    EXPECT_EQ(layout.step_tokens, e.warp_tokens);
    EXPECT_EQ(layout.threads, 32 * e.warps) << "no warp only requests KV";
    EXPECT_TRUE(layout.holds_results && layout.gathers_rows);
    EXPECT_EQ(layout.writes_rows, e.head_dim % 64 == 0);
  }
  KernelSpec many = spec_of(128, 4, 32);
  many.features.q_len = 4096;
  EXPECT_EQ(layout_of(many).rows, 128);
  EXPECT_EQ(layout_of(many).row_blocks, 4096 * 4 / 128);
  const auto refusal = [&](auto change) {
    KernelSpec spec = spec_of(128, 4, 32);
    change(spec);
    const auto ok = validate(spec);
    EXPECT_FALSE(ok);
    return ok ? std::string("taken") : ok.error().message;
  };
  EXPECT_NE(refusal([](KernelSpec& s) { s.warps = 2; }).find("2 warps"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.stages = 1; }).find("1 stage"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.warps = 8, s.warp_tokens = 16; }).find("16 tokens for 8"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.warp_tokens = 64; }).find("32 query rows a warp"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) {
              s.arch = {8, 6}, s.ctas_per_sm = 2;
            }).find("shared memory"),
            std::string::npos);
}

TEST(KernelSpec, ThreeWarpgroupsOfPrefillHave192RowsAndStepsThatTheirRegistersHold) {
  const auto valid = [](int head_dim, int warp_tokens, auto change) {
    KernelSpec spec = prefill_spec();
    spec.head_dim = head_dim, spec.warps = 12, spec.warp_tokens = warp_tokens, spec.tile = 4 * warp_tokens;
    change(spec);
    const auto ok = validate(spec);
    return ok ? std::string() : ok.error().message;
  };
  const auto nothing = [](KernelSpec&) {};
  EXPECT_EQ(valid(64, 28, nothing), "");
  EXPECT_EQ(valid(128, 20, nothing), "");
  EXPECT_NE(valid(64, 32, nothing).find("registers a thread"), std::string::npos);
  EXPECT_NE(valid(128, 24, nothing).find("registers a thread"), std::string::npos);
  EXPECT_NE(valid(64, 20, [](KernelSpec& s) { s.features.append = true; }).find("append"), std::string::npos);
  EXPECT_NE(valid(64, 20, [](KernelSpec& s) { s.features.page_size = 1; }).find("gathered"), std::string::npos);
  KernelSpec spec = prefill_spec();
  spec.warps = 12, spec.warp_tokens = 20, spec.tile = 80, spec.features.q_len = kMostPrefillTokens;
  const KernelLayout layout = layout_of(spec);
  EXPECT_EQ(layout.rows, 192);
  EXPECT_EQ(layout.threads, 512);
  EXPECT_LE(384 * layout.consumer_registers + 128 * layout.producer_registers, 65536);
}

TEST(KernelSpec, TwoWalksShareACtaAndItsWorkspace) {
  KernelSpec spec = prefill_spec();
  spec.warps = 12;
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  const KernelLayout layout = layout_of(spec);
  ASSERT_EQ(layout.family, &kWgmmaMixed);
  EXPECT_EQ(layout.threads, 512);
  EXPECT_EQ(layout.rows, 128);
  const auto [many, few] = layout.family->halves(spec);
  EXPECT_EQ(many.layout.family, &kWgmmaPrefill);
  EXPECT_EQ(few.layout.family, &kWgmmaTokens);
  EXPECT_EQ(many.layout.threads + few.layout.threads, layout.threads);
  EXPECT_EQ(few.spec.features.q_len, 4) << "16 rows of a group of 4";
  EXPECT_EQ(few.layout.rows, 16);
  EXPECT_FALSE(many.layout.share.takes_few);
  EXPECT_TRUE(few.layout.share.takes_few);
  EXPECT_EQ(many.layout.share.few_tokens, few.layout.share.few_tokens);
  // Neither reaches into what the other one has.
  EXPECT_EQ(few.layout.share.shared_before + few.layout.shared_bytes, layout.shared_bytes);
  EXPECT_GE(few.layout.share.shared_before + 1024, many.layout.shared_bytes);
  EXPECT_EQ(few.layout.share.first_barrier, 8);
  constexpr std::int64_t kGrid = 132;
  const std::int64_t slots = partial_slots(spec, kGrid, 1, 1);
  EXPECT_EQ(slots, kGrid * few.layout.share.tickets_before);
  const WorkspaceLayout workspace = workspace_layout(spec, slots);
  EXPECT_GE(workspace.partials_offset, (slots + kGrid) * 4);
  EXPECT_EQ(slots * 2 * many.layout.partial_floats, kGrid * few.layout.share.partials_before);
  EXPECT_GE(workspace.total_bytes - workspace.partials_offset,
            4 * kGrid * (few.layout.share.partials_before + 2 * few.layout.partial_floats));
}

TEST(KernelSpec, TwoWalksAreRefusedWhereOneOfThemHasNoKernel) {
  const auto refusal = [](auto change) {
    KernelSpec spec = prefill_spec();
    spec.warps = 12;
    change(spec);
    const auto ok = validate(spec);
    EXPECT_FALSE(ok);
    return ok ? std::string("taken") : ok.error().message;
  };
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.kv_format = KvFormat::int8; }).find("one-byte"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.append = true; }).find("append"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.fixup = FixUp::wait; }).find("fix-up wait"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.page_size = 1; }).find("gathered"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.head_dim = 256, s.stages = 2; }).find("256 columns"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.group = 64; }).find("64 query heads"), std::string::npos);
}

TEST(KernelSpec, LeanTilesOfPrefillAreWeighedWhereRequestsDiffer) {
  const auto positions = [](const KernelSpec& spec) {
    return std::pair(layout_of(spec).tile_positions, layout_of(spec).light_tile_positions);
  };
  KernelSpec spec = prefill_spec(), invariant = spec, uniform = spec, few = spec;
  invariant.features.batch_invariant = true;
  uniform.features = {.q_len = 40, .mask = QueryMask::full};
  few.features.q_len = 4, few.group = 16;  // 64 query rows
  ASSERT_EQ(layout_of(uniform).family, &kWgmmaPrefill);
  ASSERT_NE(layout_of(few).family, &kWgmmaPrefill);
  EXPECT_EQ(positions(spec), std::pair(5, 4));
  EXPECT_EQ(positions(invariant), std::pair(1, 1)) << "a slot of its workspace is a tile position";
  EXPECT_EQ(positions(uniform), std::pair(1, 1));
  EXPECT_EQ(positions(few), std::pair(1, 1));
}

TEST(KernelSpec, PrefillThatDoesNotFitIsRefusedWithItsReason) {
  const auto refusal = [](auto change) {
    KernelSpec spec = prefill_spec();
    change(spec);
    const auto ok = validate(spec);
    EXPECT_FALSE(ok);
    return ok ? std::string("taken") : ok.error().message + "; " + ok.error().hint;
  };
  const auto expect_named = [](const std::string& message, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  expect_named(refusal([](KernelSpec& s) { s.head_dim = 96; }), {"head sizes 96", "multiples of 64"});
  expect_named(refusal([](KernelSpec& s) { s.head_dim = 512, s.stages = 1; }), {"512 columns of V", "4 warps"});
  expect_named(refusal([](KernelSpec& s) { s.arch = {10, 0, true}; }), {"wgmma", "sm_100a"});
  expect_named(refusal([](KernelSpec& s) { s.features.kv_format = KvFormat::int8, s.features.append = true; }),
               {"int8", "append", "cp_async"});
  expect_named(
      refusal([](KernelSpec& s) { s.features.kv_format = KvFormat::int8, s.features.kv_scale = KvScale::token; }),
      {"scale per token", "cp_async"});
  expect_named(refusal([](KernelSpec& s) { s.ctas_per_sm = 2; }), {"2 CTAs per SM", "registers"});
  expect_named(refusal([](KernelSpec& s) { s.stages = 7; }), {"shared memory"});
  // What ptxas would serialise, or spill.
  struct Wide {
    int v_head_dim, warp_tokens;
    bool append;
  };
  const auto widen = [](KernelSpec& spec, const Wide& wide) {
    spec.features.v_head_dim = wide.v_head_dim, spec.features.append = wide.append;
    spec.warp_tokens = wide.warp_tokens, spec.tile = 128, spec.stages = 2;
  };
  for (const Wide& wide : {Wide{256, 16, false}, {192, 16, true}, {192, 32, false}, {128, 32, true}}) {
    KernelSpec spec = prefill_spec();
    widen(spec, wide);
    EXPECT_TRUE(validate(spec)) << kernel_name(spec);
  }
  for (const Wide& wide : {Wide{256, 16, true}, {256, 32, false}, {192, 32, true}}) {
    expect_named(refusal([&](KernelSpec& s) { widen(s, wide); }),
                 {"columns of V", wide.append ? "200 registers" : "224 registers", "4 warps"});
  }
  expect_named(refusal([](KernelSpec& s) { s.head_dim = 256, s.stages = 2, s.features.page_size = 1; }),
               {"256 columns", "200 registers", "gathers rows"});
}

TEST(KernelSpec, OnlyPrefillHasStepsOf80Tokens) {
  KernelSpec spec = prefill_spec();
  spec.head_dim = 256, spec.warp_tokens = 20, spec.tile = 160, spec.stages = 2;
  spec.features.page_size = 64;
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_EQ(layout_of(spec).page_run, 16) << "a run divides a step, too";
  const auto refusal = [&](auto change) {
    KernelSpec changed = spec;
    change(changed);
    const auto ok = validate(changed);
    EXPECT_FALSE(ok) << kernel_name(changed);
    return ok ? "" : ok.error().message;
  };
  EXPECT_NE(refusal([](KernelSpec& s) { s.warps = 4; }).find("warp_tokens is 20"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.load = LoadPath::cp_async; }).find("warp_tokens is 20"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.page_size = 1; }).find("80 tokens"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.tile = 128; }).find("tile is 128"), std::string::npos);
}

TEST(KernelSpec, ALatentCacheIsReadOnceByWarpgroupsWithRoles) {
  KernelSpec spec{.head_dim = 576, .group = 128, .features = {.v_head_dim = 512, .latent = true}};
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_EQ(cache_columns(spec), 576);
  EXPECT_EQ(layout_of(spec).family, &kWgmmaRoles);
  EXPECT_EQ(layout_of(spec).rows, 64);
  EXPECT_EQ(layout_of(spec).row_blocks, 2);
  EXPECT_EQ(layout_of(spec).threads, 384) << "two warpgroups with O, one that requests KV";
  KernelSpec tokens = spec;
  tokens.warps = 4, tokens.group = 16;
  ASSERT_TRUE(validate(tokens)) << validate(tokens).error().message;
  EXPECT_NE(layout_of(tokens).family, &kWgmmaRoles);
  EXPECT_EQ(layout_of(tokens).rows, 16);
  EXPECT_EQ(layout_of(tokens).threads, 160);
  KernelSpec halves = tokens;
  halves.warps = 8;
  ASSERT_TRUE(validate(halves)) << validate(halves).error().message;
  EXPECT_EQ(layout_of(halves).producer_warps, 4) << "two warpgroups hold half of O each";
  EXPECT_NE(layout_of(halves).family, &kWgmmaRoles) << "so few rows are not worth padding";
  EXPECT_EQ(layout_of(halves).rows, 16);
  EXPECT_EQ(layout_of(halves).threads, 384);
  halves.group = 17;
  EXPECT_EQ(layout_of(halves).family, &kWgmmaRoles);
  halves.group = 16, halves.head_dim = 256, halves.features.v_head_dim = 192;
  EXPECT_EQ(validate(halves).error().code, ErrorCode::unsupported) << "halves of 96 columns";
  for (const KernelSpec& held : {spec, tokens}) EXPECT_TRUE(layout_of(held).holds_results);
  EXPECT_EQ(layout_of(spec).row_blocks_in_step, layout_of(spec).row_blocks);
  EXPECT_EQ(layout_of(spec).stage_parts, 2) << "each warpgroup has one to free";
  EXPECT_EQ(layout_of(tokens).row_blocks_in_step, 1);
  EXPECT_EQ(layout_of(tokens).stage_parts, 1);
  KernelSpec one_block = spec, invariant = spec, narrow = spec;
  one_block.group = 64, invariant.features.batch_invariant = true, narrow.head_dim = 320,
  narrow.features.v_head_dim = 256;
  EXPECT_EQ(layout_of(one_block).row_blocks_in_step, 1);
  EXPECT_EQ(layout_of(invariant).row_blocks_in_step, 1) << "a slot of its workspace is a tile position";
  EXPECT_EQ(layout_of(narrow).stage_parts, 2) << "of two and three panels";
  EXPECT_TRUE(layout_of(spec).has_large_partials);
  EXPECT_TRUE(layout_of(tokens).has_large_partials);
  tokens.group = 8;
  EXPECT_FALSE(layout_of(tokens).has_large_partials);
  KernelSpec apart = tokens;
  apart.features.latent = false, apart.head_dim = 512, apart.stages = 1;
  EXPECT_EQ(cache_columns(apart), 1024);

  const auto refusal = [&](auto change, ErrorCode code = ErrorCode::unsupported) {
    KernelSpec changed = spec;
    change(changed);
    const auto ok = validate(changed);
    EXPECT_FALSE(ok);
    if (!ok) {
      EXPECT_EQ(ok.error().code, code);
    }
    return ok ? std::string() : ok.error().message;
  };
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.v_head_dim = 384; }).find("384"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.warps = 12; }).find("12 warps"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.warp_tokens = 32, s.tile = 128; }).find("128 tokens"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.head_dim = 656; }).find("656"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.features.latent = false; }).find("576"), std::string::npos);
  EXPECT_NE(refusal([](KernelSpec& s) { s.head_dim = 256; }, ErrorCode::invalid_argument).find("256 columns"),
            std::string::npos);
}

TEST(KernelSpec, TokensThatNoTensorCopyBringsAreGathered) {
  KernelSpec spec{.load = LoadPath::tensor, .warp_tokens = 16, .warps = 4, .stages = 3};
  for (const int page : {1, 2, 4, 7, 12, 100}) {
    spec.features = {.page_size = page};
    EXPECT_TRUE(validate(spec)) << page;
    EXPECT_TRUE(layout_of(spec).gathers_rows) << page;
    EXPECT_EQ(layout_of(spec).page_run, 1) << page;
    EXPECT_EQ(layout_of(spec).threads, 256) << page << ": a warpgroup of producers";
  }
  KernelSpec longer = spec;
  longer.warp_tokens = 32, longer.tile = 128;
  ASSERT_FALSE(validate(longer));
  EXPECT_NE(validate(longer).error().message.find("gathered"), std::string::npos) << validate(longer).error().message;
  for (const int page : {0, 8, 24, 64}) {
    spec.features = {.page_size = page};
    EXPECT_TRUE(validate(spec)) << page;
    EXPECT_FALSE(layout_of(spec).gathers_rows) << page;
    EXPECT_EQ(layout_of(spec).threads, 160) << page;
  }
  // A tensor map reaches one cache.
  spec.features = {.page_size = 64, .selection_block = 64};
  EXPECT_FALSE(layout_of(spec).gathers_rows);
  spec.features.second_cache = true;
  EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_TRUE(layout_of(spec).gathers_rows);
  EXPECT_EQ(layout_of(spec).page_run, 1);
  spec.load = LoadPath::cp_async;
  EXPECT_EQ(layout_of(spec).page_run, 16);
  EXPECT_FALSE(layout_of(spec).gathers_rows);
}

TEST(KernelSpec, LanesShareStatesOnlyWhereWholeWarpsHaveColumns) {
  // A warp votes on the columns whose states its lanes load together. So none of its lanes may be without a column.
  int strips = 0;
  for (const LoadPath load : {LoadPath::tensor, LoadPath::bulk, LoadPath::ldg}) {
    for (int group = 1; group <= 128; ++group) {
      for (const int head_dim : {16, 64, 80, 96, 128, 192, 256, 512}) {
        for (const int warps : {1, 2, 4, 8}) {
          const KernelSpec spec{.head_dim = head_dim, .group = group, .load = load, .warps = warps};
          EXPECT_TRUE(layout_of(spec).state_columns == 1 || layout_of(spec).partial_columns % 32 == 0)
              << kernel_name(spec);
          strips += layout_of(spec).strip_loads > 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(strips, 1000);
}

TEST(KernelSpec, WarpgroupsThatTradeRegistersHaveAnSmForThemselves) {
  KernelSpec spec{.load = LoadPath::tensor, .warp_tokens = 16, .warps = 4, .stages = 2, .ctas_per_sm = 2};
  spec.features.page_size = 1;
  EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  spec.warps = 8;
  ASSERT_FALSE(validate(spec));
  EXPECT_NE(validate(spec).error().message.find("trade registers"), std::string::npos);
}

TEST(KernelSpec, RowsWithAFormatOfTheirOwnAreGatheredByTheProducerThatConvertsThem) {
  KernelSpec spec{.head_dim = 576, .group = 128};
  spec.features = {.page_size = 64, .kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_TRUE(layout_of(spec).gathers_rows);
  EXPECT_EQ(layout_of(spec).page_run, 1);
  EXPECT_EQ(cache_token_bytes(spec), 656);
  EXPECT_EQ(layout_of(spec).threads, 384);
  for (const int page : {0, 1, 7, 48, 256}) {
    spec.features.page_size = page;
    EXPECT_TRUE(validate(spec)) << page;
  }
  KernelSpec tokens = spec;
  tokens.warps = 4, tokens.group = 16;
  ASSERT_TRUE(validate(tokens)) << validate(tokens).error().message;
  EXPECT_EQ(layout_of(tokens).threads, 384) << "two warpgroups copy and convert";
  EXPECT_EQ(layout_of(spec).row_buffer_bytes, 0) << "64 rows of q leave no room";
  EXPECT_EQ(layout_of(tokens).row_buffer_bytes, 64 * 656);

  // The producer quantises new rows; those of other latent caches go to the stage as they are.
  for (KernelSpec appends : {spec, tokens}) {
    EXPECT_FALSE(layout_of(appends).appends_to_stage);
    appends.features.append = true;
    EXPECT_TRUE(validate(appends)) << validate(appends).error().message;
    EXPECT_FALSE(layout_of(appends).appends_to_stage);
    appends.features.kv_format = KvFormat::same;
    EXPECT_TRUE(validate(appends)) << validate(appends).error().message;
    EXPECT_TRUE(layout_of(appends).appends_to_stage);
  }

  KernelSpec other = spec;
  other.load = LoadPath::bulk, other.warps = 2;
  EXPECT_EQ(validate(other).error().message, "load path bulk with KV format fp8_ds_mla");
  other = spec, other.arch = {10, 0, true};
  EXPECT_EQ(validate(other).error().message, "KV format fp8_ds_mla on sm_100a");
  other = spec, other.dtype = DType::fp16;
  EXPECT_EQ(validate(other).error().message, "a cache of fp8_ds_mla with fp16 queries");
  other = tokens, other.warp_tokens = 32, other.tile = 128;
  EXPECT_EQ(validate(other).error().message, "steps of 128 tokens, whose rows are gathered");
}

TEST(KernelSpec, TwoRowBlocksConvertRowsTogether) {
  KernelSpec spec{.arch = {9, 0, true}, .head_dim = 576, .group = 128, .load = LoadPath::tensor};
  spec.features = {.page_size = 64, .kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  spec.warps = 8, spec.warp_tokens = 16, spec.tile = 64, spec.stages = 2;
  const auto ctas = [&](auto change) {
    KernelSpec changed = spec;
    change(changed);
    EXPECT_TRUE(validate(changed)) << validate(changed).error().message;
    return layout_of(changed).converting_ctas;
  };
  EXPECT_EQ(ctas([](KernelSpec&) {}), 2);
  EXPECT_EQ(ctas([](KernelSpec& s) { s.features.q_len = 2; }), 2) << "two clusters read the same rows";
  EXPECT_EQ(ctas([](KernelSpec& s) { s.group = 64; }), 1) << "there is one row block";
  EXPECT_EQ(ctas([](KernelSpec& s) { s.group = 96, s.features.q_len = 2; }), 1) << "one of three would be alone";
  EXPECT_EQ(ctas([](KernelSpec& s) { s.features.batch_invariant = true; }), 1) << "row blocks do not go in step";
  EXPECT_EQ(ctas([](KernelSpec& s) { s.features.kv_format = KvFormat::fp8_e4m3; }), 1) << "not worth it";
  EXPECT_EQ(ctas([](KernelSpec& s) { s.features.kv_format = KvFormat::same; }), 1) << "nothing is converted";
  EXPECT_NE(emit(spec)->source.find("__cluster_dims__"), std::string::npos);
  spec.group = 64;
  EXPECT_EQ(emit(spec)->source.find("cluster_dims"), std::string::npos);
}

TEST(KernelSpec, RowsOfALatentCacheOfOneByteElementsAreConverted) {
  KernelSpec roles{.arch = {9, 0, true}, .head_dim = 576, .group = 64, .load = LoadPath::tensor};
  roles.features = {.page_size = 64, .kv_format = KvFormat::fp8_e4m3, .v_head_dim = 512, .latent = true};
  roles.warps = 8, roles.warp_tokens = 16, roles.tile = 64, roles.stages = 2;
  KernelSpec tokens = roles;
  tokens.warps = 4, tokens.group = 16;
  for (KernelSpec spec : {roles, tokens}) {
    for (const KvFormat format : {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8}) {
      for (const int page : {0, 1, 48, 64}) {
        spec.features.kv_format = format, spec.features.page_size = page;
        ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
        EXPECT_TRUE(layout_of(spec).converts_rows && layout_of(spec).gathers_rows);
        EXPECT_EQ(layout_of(spec).page_run, 1);
        EXPECT_EQ(cache_token_bytes(spec), 576);
      }
    }
    spec.features.append = true;
    EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  }
  EXPECT_EQ(layout_of(roles).row_buffer_bytes, 0);
  EXPECT_EQ(layout_of(tokens).row_buffer_bytes, 64 * 576);
  KernelSpec same = roles;
  same.features.kv_format = KvFormat::same;
  EXPECT_FALSE(layout_of(same).converts_rows);

  const auto why_not = [](KernelSpec spec, auto change) {
    change(spec);
    const auto valid = validate(spec);
    return valid ? std::string() : valid.error().message;
  };
  const std::string begin = "load path tensor with KV format fp8_e4m3 and ";
  EXPECT_EQ(why_not(tokens, [](KernelSpec& s) { s.features.kv_scale = KvScale::token; }), begin + "a scale per token");
  EXPECT_EQ(why_not(tokens, [](KernelSpec& s) { s.features.context_parallel = 2; }), begin + "context_parallel");
  EXPECT_EQ(why_not(tokens, [](KernelSpec& s) { s.features.v_head_dim = 448; }), begin + "448 columns of V");
  EXPECT_EQ(
      why_not(tokens, [](KernelSpec& s) { s.features.latent = false, s.features.v_head_dim = 0, s.head_dim = 128; }),
      begin + "V apart from K");
}

TEST(KernelSpec, ScalesTravelWithTheRowsOfTheirTokensOnOneLoadPath) {
  KernelSpec spec{.group = 2, .load = LoadPath::cp_async};
  spec.features = {.page_size = 16, .kv_format = KvFormat::int4, .kv_scale = KvScale::in_row};
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_EQ(cache_token_bytes(spec), 128);
  KernelSpec apart = spec;
  apart.features.kv_format = KvFormat::fp8_e4m3;
  EXPECT_TRUE(validate(apart)) << "and bytes, where scales lie among the rows";
  const int more = 2 * 4 * spec.warp_tokens * spec.stages * spec.warps;  // for a word of each token of K and of V
  KernelSpec without = apart;
  without.features.kv_scale = KvScale::token;
  EXPECT_EQ(layout_of(apart).shared_bytes, layout_of(without).shared_bytes + more);

  const auto why_not = [](KernelSpec changed, auto change) {
    change(changed);
    const auto valid = validate(changed);
    return valid ? std::string() : valid.error().message;
  };
  for (const LoadPath load : {LoadPath::ldg, LoadPath::bulk, LoadPath::vector}) {
    const auto with_load = [&](KernelSpec& s) {
      s.load = load, s.stages = loads_to_registers(load) ? 1 : 2, s.group = load == LoadPath::vector ? 1 : 2;
    };
    const std::string begin = "load path " + std::string(to_string(load)) + " with KV format ";
    EXPECT_EQ(why_not(spec, with_load), begin + "int4 and kv_scale in_row");
    EXPECT_EQ(why_not(apart, with_load), begin + "fp8_e4m3 and kv_scale in_row");
  }
  const auto boxes = [](KernelSpec& s) { s.load = LoadPath::tensor, s.stages = 2, s.group = 2; };
  EXPECT_EQ(why_not(spec, boxes), "");
  EXPECT_EQ(why_not(apart, boxes), "");
  const auto with_pages = [](int page) {
    return [page](KernelSpec& s) { s.load = LoadPath::tensor, s.features.page_size = page; };
  };
  EXPECT_EQ(why_not(spec, with_pages(32)), "");
  EXPECT_EQ(why_not(spec, with_pages(8)), "load path tensor with scales in rows and pages of 8 tokens");
  // 16-byte copies of aligned rows change nothing of that: a zero point is part of a token's scale.
  EXPECT_EQ(why_not(spec, [](KernelSpec& s) { s.features.kv_scale = KvScale::token, s.load = LoadPath::bulk; }),
            "load path bulk with KV format int4 and kv_scale token");
  EXPECT_EQ(why_not(spec, [](KernelSpec& s) { s.pdl = true; }),
            "programmatic dependent launch with KV format int4 and kv_scale in_row");
  EXPECT_EQ(why_not(spec, [](KernelSpec& s) { s.head_dim = 80; }),
            "a cache of int4 with head_dim 80 and v_head_dim 80");
}

TEST(KernelSpec, ScalesOfBlocksTravelWithTheRowsOnOneLoadPath) {
  KernelSpec spec{.group = 2, .load = LoadPath::cp_async, .warps = 2, .stages = 2};
  spec.features = {.page_size = 16, .kv_format = KvFormat::nvfp4};
  for (const Arch arch : {Arch{8, 0, false}, Arch{8, 9, false}, Arch{9, 0, true}, Arch{10, 0, true}}) {
    for (const int head_dim : {64, 128, 192, 256, 512}) {
      spec.arch = arch, spec.head_dim = head_dim;
      for (const bool append : {false, true}) {
        spec.features.append = append;
        const auto valid = validate(spec);
        ASSERT_TRUE(valid) << valid.error().message;
      }
    }
  }
  spec = {.group = 2, .load = LoadPath::cp_async};
  spec.features = {.page_size = 16, .kv_format = KvFormat::nvfp4};
  EXPECT_EQ(cache_token_bytes(spec), 128);
  KernelSpec without = spec;
  without.features.kv_format = KvFormat::int4, without.features.kv_scale = KvScale::token;
  // For a row of 8 bytes of each token of K and of V, and a skew of two rows behind each quarter of them; int4 has a
  // word of each.
  const int more = (2 * 8 * (spec.warp_tokens + 8) - 2 * 4 * spec.warp_tokens) * spec.stages * spec.warps;
  EXPECT_EQ(layout_of(spec).shared_bytes, layout_of(without).shared_bytes + more);
  const auto why_not = [&](auto change) {
    KernelSpec changed = spec;
    change(changed);
    const auto valid = validate(changed);
    return valid ? std::string() : valid.error().message;
  };
  for (const LoadPath load : {LoadPath::ldg, LoadPath::bulk, LoadPath::vector}) {
    EXPECT_EQ(why_not([&](KernelSpec& s) {
                s.load = load, s.stages = loads_to_registers(load) ? 1 : 2, s.group = load == LoadPath::vector ? 1 : 2;
              }),
              "load path " + std::string(to_string(load)) + " with KV format nvfp4 and kv_scale tensor");
  }
  EXPECT_EQ(why_not([](KernelSpec& s) { s.pdl = true; }),
            "programmatic dependent launch with KV format nvfp4 and kv_scale tensor");
}

TEST(KernelSpec, WeightsOfRolesHaveAPlaceWhereAllColumnsAreValues) {
  KernelSpec spec{.arch = {9, 0, true}, .head_dim = 576, .group = 64, .load = LoadPath::tensor, .warps = 8};
  spec.features = {.page_size = 64, .v_head_dim = 512, .latent = true};
  spec.warp_tokens = 16, spec.tile = 64, spec.stages = 2;
  KernelSpec values = spec;
  values.head_dim = 512, values.features.v_head_dim = 0;
  for (const KernelSpec& one : {spec, values}) {
    const auto valid = validate(one);
    ASSERT_TRUE(valid) << valid.error().message;
    EXPECT_EQ(layout_of(one).family, &kWgmmaRoles);
  }
  // Both have nine panels a stage; q has one less.
  EXPECT_EQ(layout_of(spec).shared_bytes - layout_of(values).shared_bytes, 64 * 64 * 2);
  EXPECT_FALSE(layout_of(spec).weights_beside);
  EXPECT_TRUE(layout_of(values).weights_beside);
}

TEST(KernelSpec, BoxesBringPagesWithScalesOfBlocks) {
  KernelSpec spec{.head_dim = 128, .group = 4, .load = LoadPath::tensor, .warps = 2, .stages = 2, .pdl = true};
  spec.features = {.page_size = 16, .kv_format = KvFormat::nvfp4};
  const auto with = [&](auto change) {
    KernelSpec changed = spec;
    change(changed.features);
    return changed;
  };
  const auto why_not = [&](const KernelSpec& changed) {
    const auto valid = validate(changed);
    return valid ? std::string() : valid.error().message;
  };
  EXPECT_EQ(why_not(spec), "");
  const auto ring_bytes = [](KernelSpec of, int head_dim, KvLayout layout) {
    of.head_dim = head_dim, of.layout = layout;
    const auto valid = validate(of);
    EXPECT_TRUE(valid) << valid.error().message;
    KernelSpec deeper = of;
    ++deeper.stages;
    return (layout_of(deeper).shared_bytes - layout_of(of).shared_bytes) / of.warps;
  };
  EXPECT_FALSE(layout_of(spec).heads_in_step);
  // 16 tokens of 64 bytes of K and of V, and of 8 bytes of scales each.
  EXPECT_EQ(ring_bytes(spec, 128, KvLayout::contiguous), 16 * 2 * (64 + 8));
  EXPECT_EQ(ring_bytes(spec, 64, KvLayout::contiguous), 2 * (16 * 32 + 128)) << "64 bytes of scales take 128";
  // Lanes copy scales that are not adjacent.
  KernelSpec strided = spec;
  strided.layout = KvLayout::strided;
  EXPECT_EQ(why_not(strided), "programmatic dependent launch with KV format nvfp4 and kv_scale tensor");
  strided.pdl = false;
  EXPECT_EQ(ring_bytes(strided, 128, KvLayout::strided), 16 * 2 * (64 + 8));
  EXPECT_TRUE(layout_of(strided).heads_in_step);
  EXPECT_EQ(why_not(with([](Features& f) { f.page_size = 48; })), "");
  EXPECT_EQ(why_not(with([](Features& f) { f.page_size = 24; })),
            "load path tensor with scales of blocks and pages of 24 tokens");
  EXPECT_EQ(why_not(with([](Features& f) { f.page_size = 0; })), "load path tensor with scales of blocks and no pages");
  EXPECT_EQ(why_not(with([](Features& f) { f.selection_block = 16; })),
            "load path tensor with scales of blocks and a selection");
}

TEST(KernelSpec, WarpgroupsHoldSixtyFourQueryRowsEach) {
  KernelSpec spec{.group = 32, .load = LoadPath::tensor, .warps = 4};
  EXPECT_FALSE(layout_of(spec).family->query_rows_lead);
  spec.group = 33;
  EXPECT_TRUE(layout_of(spec).family->query_rows_lead);
  spec.group = 128;
  EXPECT_EQ(layout_of(spec).row_blocks, 2);
  EXPECT_EQ(layout_of(spec).producer_warps, 1);
  spec.warps = 8;
  EXPECT_EQ(layout_of(spec).row_blocks, 1);
  EXPECT_EQ(layout_of(spec).rows, 128);
  EXPECT_EQ(layout_of(spec).producer_warps, 4);  // a warpgroup, which can hand registers over
  EXPECT_EQ(layout_of(spec).threads, 384);
  // Warpgroups that share the rows take every step: any number of stages will do.
  spec.stages = 3;
  EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  spec.group = 64;
  EXPECT_NE(validate(spec).error().message.find("stages is 3 with 2 warpgroups"), std::string::npos);
  // Wide heads leave the accumulators fewer rows.
  spec.head_dim = 256;
  EXPECT_EQ(layout_of(spec).rows, 32);
}

TEST(KernelSpec, WarpgroupsThatTradeRegistersHaveAnSmToThemselves) {
  // Small enough for two CTAs by shared memory: the second one's warpgroups would wait for registers for ever.
  KernelSpec spec{.head_dim = 64, .group = 64, .load = LoadPath::tensor, .warps = 8, .stages = 2, .ctas_per_sm = 2};
  ASSERT_EQ(layout_of(spec).producer_warps, 4);
  EXPECT_EQ(validate(spec).error().code, ErrorCode::unsupported);
  EXPECT_NE(validate(spec).error().message.find("trade registers"), std::string::npos);
  spec.ctas_per_sm = 1;
  EXPECT_TRUE(validate(spec));
}

TEST(KernelSpec, Fp8IsWrittenWhereItCanBe) {
  KernelSpec spec{.arch = {8, 6, false}, .features = {.kv_format = KvFormat::fp8_e4m3, .append = true}};
  EXPECT_NE(validate(spec).error().message.find("sm_86"), std::string::npos);
  spec.features.kv_format = KvFormat::int8;
  EXPECT_TRUE(validate(spec));
  spec.features.kv_format = KvFormat::fp8_e5m2;
  spec.arch = {8, 9, false};
  EXPECT_TRUE(validate(spec));
}

TEST(KernelSpec, PageRunsAreThePowersOfTwoThatDivideAPage) {
  const auto run_of = [](int page) { return layout_of({.features = {.page_size = page}, .warp_tokens = 32}).page_run; };
  EXPECT_EQ(run_of(0), 1);
  EXPECT_EQ(run_of(1), 1);
  EXPECT_EQ(run_of(7), 1);
  EXPECT_EQ(run_of(24), 8);
  EXPECT_EQ(run_of(16), 16);
  EXPECT_EQ(run_of(256), 32);  // at most a step
}

TEST(Arch, IsReadAndWrittenAsNvidiaWritesIt) {
  EXPECT_EQ(parse_arch("sm_90a").value(), (Arch{9, 0, true}));
  EXPECT_EQ(parse_arch("sm_120a").value(), (Arch{12, 0, true}));
  EXPECT_EQ(to_string(parse_arch("sm_86").value()), "sm_86");
  for (const char* text : {"", "90a", "sm_", "sm_9", "sm_90b", "sm_90aa", "compute_90", "sm_-9", "sm_9000"}) {
    ASSERT_FALSE(parse_arch(text).has_value()) << text;
    EXPECT_EQ(parse_arch(text).error().code, ErrorCode::invalid_argument) << text;
  }
  EXPECT_EQ(parse_arch("sm_75").error().code, ErrorCode::unsupported);
  EXPECT_EQ(to_string(arch_for_compute_capability(9, 0)), "sm_90a");
  EXPECT_EQ(to_string(arch_for_compute_capability(8, 9)), "sm_89");
}

TEST(Names, EveryEnumeratorIsReadBack) {
  for (LoadPath v : kLoadPaths) EXPECT_EQ(parse_load_path(to_string(v)).value(), v);
  for (FixUp v : {FixUp::ticket, FixUp::wait}) EXPECT_EQ(parse_fix_up(to_string(v)).value(), v);
  for (DType v : {DType::bf16, DType::fp16}) EXPECT_EQ(parse_dtype(to_string(v)).value(), v);
  for (KvLayout v : {KvLayout::contiguous, KvLayout::strided}) EXPECT_EQ(parse_kv_layout(to_string(v)).value(), v);
  EXPECT_NE(parse_dtype("fp8").error().hint.find("bf16"), std::string::npos);
}

TEST(Workspace, HoldsTwoPartialsAndOneCounterPerCta) {
  const KernelSpec spec;  // d 128, group 4
  const WorkspaceLayout layout = workspace_layout(spec, 132);
  EXPECT_EQ(layout_of(spec).partial_floats, 4 * 128 + 4 * 128 / 4 * 2);
  EXPECT_GE(layout.partials_offset, layout.tickets_offset + 132 * 4);
  EXPECT_EQ(layout.partials_offset % 256, 0);
  EXPECT_GE(layout.total_bytes, layout.partials_offset + 132 * 2 * layout_of(spec).partial_floats * 4);
  EXPECT_LT(layout.total_bytes, layout.partials_offset + 132 * 2 * layout_of(spec).partial_floats * 4 + 256);
}

TEST(Workspace, ManyColumnsHaveAStateForSomeNeighboursEach) {
  KernelSpec spec{.head_dim = 576, .group = 16, .features = {.v_head_dim = 512, .latent = true}};
  spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2;
  ASSERT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_EQ(layout_of(spec).strip_loads, 8);
  EXPECT_EQ(layout_of(spec).partial_floats, 16 * 512 + 16 * 512 / 4 / 2 * 2) << "two columns share a maximum and a sum";
  spec.features.v_head_dim = 256, spec.head_dim = 320;
  EXPECT_EQ(layout_of(spec).strip_loads, 8);
  spec.group = 8;
  EXPECT_EQ(layout_of(spec).strip_loads, 4) << "four columns a thread";
  EXPECT_EQ(layout_of(spec).partial_floats, 8 * 256 + 8 * 256 / 4 * 2);
  spec.group = 4;
  EXPECT_EQ(layout_of(spec).strip_loads, 1) << "two columns a thread";
}

TEST(Workspace, BatchInvariantKernelsHaveASlotPerLeanTile) {
  KernelSpec spec{.tile = 2048};
  EXPECT_EQ(partial_slots(spec, 132, 8, 1 << 20), 132);
  spec.features.batch_invariant = true;
  EXPECT_EQ(partial_slots(spec, 132, 8, 4096), 16);
  EXPECT_EQ(partial_slots(spec, 132, 8, 4097), 24);
  EXPECT_EQ(partial_slots(spec, 132, 8, 0), 8);  // an empty request has a tile, too
  spec.features.window = 512, spec.features.sink_tokens = 4;
  EXPECT_EQ(partial_slots(spec, 132, 8, 4096), 24);  // sink tokens end inside a tile
}

TEST(Workspace, SizesBeyond32BitsAreExact) {
  const KernelSpec spec{.head_dim = 256, .group = 8};
  const std::int64_t grid = 1 << 22;
  EXPECT_GT(workspace_layout(spec, grid).total_bytes, grid * 2 * layout_of(spec).partial_floats * 4);
}

TEST(KernelSpec, RowBlocksInStepDivideThoseOfAKvHead) {
  KernelSpec spec{.arch = {9, 0, true}, .head_dim = 576, .load = LoadPath::tensor};
  spec.warps = 8, spec.warp_tokens = 16;
  spec.features.latent = spec.features.ragged_q = true, spec.features.v_head_dim = 512;
  for (spec.group = 17; spec.group <= 128; ++spec.group) {
    for (spec.features.q_len = 1; spec.features.q_len <= 16; ++spec.features.q_len) {
      const KernelLayout layout = layout_of(spec);
      EXPECT_EQ(layout.row_blocks % layout.row_blocks_in_step, 0)
          << "group " << spec.group << ", " << spec.features.q_len << " query tokens: a counter of the next KV head";
    }
  }
}

}  // namespace
}  // namespace leanattn
