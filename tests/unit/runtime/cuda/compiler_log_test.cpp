// compiler_log_test.cpp -- ptxas logs as the tools really write them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/ptxas_log.hpp"

namespace leanattn {
namespace {

TEST(PtxasLog, OfNvrtc13WithoutSpills) {
  const auto resources = parse_ptxas_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 2 barriers, 33792 bytes smem\n"
      "ptxas info    : Compile time = 10.769 ms\n");
  EXPECT_EQ(resources, (KernelResources{.registers = 168, .static_shared_bytes = 33792}));
}

TEST(PtxasLog, OfNvcc13WithSpills) {
  const auto resources = parse_ptxas_log(
      "ptxas info    : Function properties for spill\n"
      "    520 bytes stack frame, 740 bytes spill stores, 924 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 0 barriers, 520 bytes cumulative stack size, 368 bytes cmem[0]\n");
  EXPECT_EQ(resources,
            (KernelResources{.registers = 32, .spill_store_bytes = 740, .spill_load_bytes = 924, .stack_bytes = 520}));
}

TEST(PtxasLog, OfNvcc12WithSharedMemoryBeforeConstants) {
  const auto resources = parse_ptxas_log("ptxas info    : Used 40 registers, 4096+0 bytes smem, 380 bytes cmem[0]\n");
  EXPECT_EQ(resources.registers, 40);
}

TEST(PtxasLog, SerialisedWgmmaIsSeenWhateverItsCause) {
  EXPECT_TRUE(
      parse_ptxas_log(
          "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
          "the presence of Extern calls in the function 'k'\n")
          .wgmma_serialized);
  EXPECT_TRUE(
      parse_ptxas_log(
          "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
          "insufficient register resources for the wgmma pipeline in the function 'k'\n")
          .wgmma_serialized);
}

TEST(PtxasLog, AnIgnoredSetmaxnregIsSeen) {
  const auto resources = parse_ptxas_log(
      "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at "
      "entry.\n"
      "ptxas info    : Used 10 registers\n");
  EXPECT_EQ(resources, (KernelResources{.registers = 10, .setmaxnreg_ignored = true}));
}

TEST(PtxasLog, InjectedWarpgroupWaitsAndKernelNamesAreNotSerialisation) {
  EXPECT_FALSE(parse_ptxas_log(
                   "ptxas info    : (C7519) warpgroup.arrive is injected in around line 61 by compiler to allow use of "
                   "registers in GMMA in function 'serialized'\n"
                   "ptxas info    : Compiling entry function 'wgmma_serialized' for 'sm_90a'\n")
                   .wgmma_serialized);
}

TEST(PtxasLog, OfSeveralKernelsTakesTheLargestAndAddsSpills) {
  const auto resources = parse_ptxas_log(
      "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 64 registers, used 0 barriers, 2048 bytes smem\n"
      "    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 0 barriers, 4096 bytes smem\n");
  EXPECT_EQ(resources, (KernelResources{.registers = 64,
                                        .spill_store_bytes = 12,
                                        .spill_load_bytes = 20,
                                        .stack_bytes = 16,
                                        .static_shared_bytes = 4096}));
}

TEST(PtxasLog, AnEmptyLogGivesZeros) { EXPECT_EQ(parse_ptxas_log(""), KernelResources{}); }

RC_GTEST_PROP(PtxasLog, NoTextMakesItFail, (const std::string& text)) {
  parse_ptxas_log(text);
  parse_ptxas_log("ptxas info : Used " + text + " registers, " + text + " bytes smem\n" + text +
                  " bytes stack frame, bytes spill loads");
  RC_ASSERT(!first_error(text).empty());
}

RC_GTEST_PROP(PtxasLog, EveryNumberItIsGivenComesBack, ()) {
  const auto number = rc::gen::inRange(0, 1000000);
  const KernelResources wanted{.registers = *rc::gen::inRange(0, 256),
                               .spill_store_bytes = *number,
                               .spill_load_bytes = *number,
                               .stack_bytes = *number,
                               .static_shared_bytes = *number};
  const auto log = "ptxas         .     " + std::to_string(wanted.stack_bytes) + " bytes stack frame, " +
                   std::to_string(wanted.spill_store_bytes) + " bytes spill stores, " +
                   std::to_string(wanted.spill_load_bytes) + " bytes spill loads\nptxas info    : Used " +
                   std::to_string(wanted.registers) + " registers, used 1 barriers, " +
                   std::to_string(wanted.static_shared_bytes) + " bytes smem, 360 bytes cmem[0]\n";
  RC_ASSERT(parse_ptxas_log(log) == wanted);
}

TEST(FirstError, IsTheFirstLineThatReportsOne) {
  EXPECT_EQ(first_error("k.cu(1): warning: unused\nk.cu(2): error: expected an expression\nk.cu(3): error: later\n"),
            "k.cu(2): error: expected an expression");
  EXPECT_EQ(first_error("\n  \nsomething odd\nmore"), "something odd");
  EXPECT_EQ(first_error(""), "no log");
}

}  // namespace
}  // namespace leanattn
