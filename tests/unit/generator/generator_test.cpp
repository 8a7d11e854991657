#include "generator/generator.hpp"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "generator/templates.hpp"

namespace leanattn {
namespace {

std::vector<KernelSpec> one_of_each_family() {
  std::vector<KernelSpec> specs;
  for (LoadPath load : {LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor, LoadPath::vector}) {
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
  const std::regex include("^\\s*#\\s*include", std::regex::multiline);
  for (const KernelSpec& spec : one_of_each_family())
    EXPECT_FALSE(std::regex_search(emit(spec)->source, include)) << kernel_name(spec);
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
  EXPECT_TRUE(has(bulk, "kv_bulk.cuh ----") && !has(bulk, "kv_cp_async.cuh ----") && !has(bulk, "kv_ldg.cuh ----"));
  EXPECT_TRUE(has(copies, "kv_cp_async.cuh ----") && !has(copies, "kv_bulk.cuh ----"));
  EXPECT_TRUE(has(direct, "kv_ldg.cuh ----") && !has(direct, "kv_shared.cuh ----"));
  EXPECT_TRUE(has({.fixup = FixUp::wait}, "fixup_wait.cuh ----") &&
              !has({.fixup = FixUp::wait}, "fixup_ticket.cuh ----"));
  const KernelSpec step{.features = {.append = true, .rope = Rope::half_split}};
  EXPECT_TRUE(has(step, "/append.cuh ----") && has(step, "/rope.cuh ----") && has(step, "kRopeDim"));
  EXPECT_TRUE(!has(bulk, "/append.cuh ----") && !has(bulk, "/rope.cuh ----") && !has(bulk, "kRopeDim"));
  KernelSpec few{.group = 32, .load = LoadPath::tensor}, many{.group = 33, .load = LoadPath::tensor};
  EXPECT_TRUE(has(few, "attend_wgmma.cuh ----") && has(few, "m64n32k16.f32.bf16.bf16"));
  EXPECT_TRUE(has(many, "attend_wgmma_rows.cuh ----") && has(many, "m64n128k16") && has(many, "m64n64k16"));
}

TEST(Generator, InvalidSpecsAreRefused) {
  EXPECT_EQ(emit({.head_dim = 72}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(emit({.tile = 7}).error().code, ErrorCode::invalid_argument);
}

TEST(Generator, RevisionIsAStableHash) {
  EXPECT_EQ(generator_revision(), generator_revision());
  EXPECT_TRUE(std::regex_match(generator_revision(), std::regex("[0-9a-f]{32}")));
}

TEST(Generator, CommentsDoNotChangeTheRevision) {
  const auto revision = [](std::string_view text, std::string_view name = "a.cuh") {
    const EmbeddedTemplate templates[] = {{name, text}};
    return revision_of(templates);
  };
  const std::string code = revision("int a;\n  int b;\n");
  EXPECT_EQ(revision("// What a is.\nint a;\n\n  // What b is.\n  int b;"), code);
  EXPECT_NE(revision("int a;\n  int c;\n"), code);
  EXPECT_NE(revision("int a;\n"), code);
  EXPECT_NE(revision("int a;  int b;\n"), code);
  EXPECT_NE(revision("int a;\n  int b;\n", "b.cuh"), code);
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
