// device_test.cpp -- the tables of compute capabilities against known facts, and the occupancy against NVIDIA's
// calculator.
#include "runtime/cuda/device.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/cuda/driver.hpp"

#if __has_include(<cuda_occupancy.h>)
#include <cuda_occupancy.h>
#define LEANATTN_HAS_OCCUPANCY_HEADER 1
#endif

namespace leanattn {
namespace {

constexpr Arch kAmpere{8, 0, false}, kGeforceAmpere{8, 6, false}, kAda{8, 9, false}, kHopperSpecific{9, 0, true},
    kBlackwell{10, 0, true}, kGeforceBlackwell{12, 0, true};

struct ArchFact {
  Arch arch;
  int shared_kib_per_sm, shared_kib_per_cta, threads_per_sm, ctas_per_sm;
};

class ArchFacts : public ::testing::TestWithParam<ArchFact> {};

TEST_P(ArchFacts, AreThoseOfTheProgrammingGuide) {
  const auto facts = facts_for_arch(GetParam().arch, 100);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->shared_bytes_per_sm, GetParam().shared_kib_per_sm * 1024);
  EXPECT_EQ(facts->shared_bytes_per_cta, GetParam().shared_kib_per_cta * 1024);
  EXPECT_EQ(facts->threads_per_sm, GetParam().threads_per_sm);
  EXPECT_EQ(facts->ctas_per_sm_limit, GetParam().ctas_per_sm);
  EXPECT_EQ(facts->registers_per_sm, 65536);
  EXPECT_EQ(facts->sm_count, 100);
  EXPECT_EQ(facts->ordinal, -1);
  EXPECT_EQ(facts->arch, GetParam().arch);
  EXPECT_GT(facts->l2_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ArchFacts,
    ::testing::Values(ArchFact{kAmpere, 164, 163, 2048, 32}, ArchFact{kGeforceAmpere, 100, 99, 1536, 16},
                      ArchFact{kAda, 100, 99, 1536, 24}, ArchFact{kHopperSpecific, 228, 227, 2048, 32},
                      ArchFact{kBlackwell, 228, 227, 2048, 32}, ArchFact{kGeforceBlackwell, 100, 99, 1536, 24}),
    [](const auto& instance) { return to_string(instance.param.arch); });

TEST(FactsForArch, ExistForTheWholeCompileMatrix) {
  for (const Arch arch : matrix_arches()) EXPECT_TRUE(facts_for_arch(arch, 1)) << to_string(arch);
}

TEST(FactsForArch, RefuseUnknownArchesAndImpossibleSmCounts) {
  EXPECT_EQ(facts_for_arch(Arch{13, 7, false}, 10).error().code, ErrorCode::unsupported);
  EXPECT_EQ(facts_for_arch(Arch{7, 5, false}, 10).error().code, ErrorCode::unsupported);
  for (const int sms : {0, -1, 100000}) {
    const auto facts = facts_for_arch(kHopperSpecific, sms);
    ASSERT_FALSE(facts) << sms;
    EXPECT_EQ(facts.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(facts.error().message.find(std::to_string(sms)), std::string::npos);
  }
}

TEST(Devices, AreListedOrTheReasonIsGiven) {
  const auto devices = list_devices();
  if (driver()) {
    ASSERT_TRUE(devices) << devices.error().message;
    for (const auto& device : *devices) {
      EXPECT_GT(device.sm_count, 0);
      EXPECT_EQ(device_facts(device.ordinal)->uuid, device.uuid);
    }
    EXPECT_EQ(device_facts(static_cast<int>(devices->size())).error().code, ErrorCode::no_device);
    EXPECT_EQ(device_facts(-1).error().code, ErrorCode::no_device);
  } else {
    ASSERT_FALSE(devices);
    EXPECT_EQ(devices.error().code, driver().error().code);
    EXPECT_FALSE(devices.error().hint.empty());
    EXPECT_EQ(device_facts(0).error().code, driver().error().code);
  }
}

TEST(Occupancy, OfAnH100MatchesWorkedExamples) {
  const auto h100 = *facts_for_arch(kHopperSpecific, 132);
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 1024, 0), 2) << "threads: 2048 / 1024";
  EXPECT_EQ(resident_ctas_per_sm(h100, 33, 1024, 0), 1) << "33 registers round up to 40 a thread";
  EXPECT_EQ(resident_ctas_per_sm(h100, 255, 256, 0), 1) << "two warps of 255 registers in each sub-partition";
  EXPECT_EQ(resident_ctas_per_sm(h100, 168, 128, 64 * 1024), 3) << "three warps of 168 registers, three times 65 KiB";
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 32, 0), 32) << "the CTA limit";
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 128, 227 * 1024), 1) << "all of the shared memory but the reserve";
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 128, 113 * 1024), 2) << "the reserve is counted once a CTA: 2 x 114 KiB";
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 128, 113 * 1024 + 1), 1);
}

TEST(Occupancy, IsZeroForWhatCannotBeLaunched) {
  const auto h100 = *facts_for_arch(kHopperSpecific, 132);
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 0, 0), 0);
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 1025, 0), 0);
  EXPECT_EQ(resident_ctas_per_sm(h100, 256, 32, 0), 0);
  EXPECT_EQ(resident_ctas_per_sm(h100, 255, 1024, 0), 0) << "1024 x 256 registers";
  EXPECT_EQ(resident_ctas_per_sm(h100, 32, 32, 227 * 1024 + 1), 0);
}

RC_GTEST_PROP(Occupancy, NeverGrowsWithWhatACtaUses, ()) {
  const auto arch = *rc::gen::element(kAmpere, kGeforceAmpere, kAda, kHopperSpecific, kBlackwell, kGeforceBlackwell);
  const auto facts = *facts_for_arch(arch, 1);
  const int registers = *rc::gen::inRange(1, 256), warps = *rc::gen::inRange(1, 33),
            shared = *rc::gen::inRange(0, facts.shared_bytes_per_cta + 1);
  const int resident = resident_ctas_per_sm(facts, registers, warps * 32, shared);
  RC_ASSERT(resident >= 0 && resident <= facts.ctas_per_sm_limit);
  RC_ASSERT(resident_ctas_per_sm(facts, registers + 1, warps * 32, shared) <= resident);
  RC_ASSERT(resident_ctas_per_sm(facts, registers, warps * 32 + 32, shared) <= resident);
  RC_ASSERT(resident_ctas_per_sm(facts, registers, warps * 32, shared + 128) <= resident);
}

#ifdef LEANATTN_HAS_OCCUPANCY_HEADER
RC_GTEST_PROP(Occupancy, AgreesWithNvidiasCalculator, ()) {
  const auto arch = *rc::gen::element(kAmpere, kGeforceAmpere, kAda, kHopperSpecific, kBlackwell, kGeforceBlackwell);
  const auto facts = *facts_for_arch(arch, 1);
  const int registers = *rc::gen::inRange(1, 256), threads = *rc::gen::inRange(1, 1025);
  const int shared = *rc::gen::inRange(0, facts.shared_bytes_per_cta + 1);

  cudaOccDeviceProp properties;
  properties.computeMajor = arch.major;
  properties.computeMinor = arch.minor;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiprocessor = facts.threads_per_sm;
  properties.regsPerBlock = 65536;
  properties.regsPerMultiprocessor = facts.registers_per_sm;
  properties.warpSize = 32;
  properties.sharedMemPerBlock = 48 * 1024;
  properties.sharedMemPerMultiprocessor = static_cast<std::size_t>(facts.shared_bytes_per_sm);
  properties.numSms = 1;
  properties.sharedMemPerBlockOptin = static_cast<std::size_t>(facts.shared_bytes_per_cta);
  properties.reservedSharedMemPerBlock = 1024;
  cudaOccFuncAttributes attributes;
  attributes.maxThreadsPerBlock = 1024;
  attributes.numRegs = registers;
  attributes.sharedSizeBytes = 0;
  attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
  attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  attributes.maxDynamicSharedSizeBytes = static_cast<std::size_t>(facts.shared_bytes_per_cta);
  attributes.numBlockBarriers = 1;
  cudaOccDeviceState state;
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  cudaOccResult result;
  const auto status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, threads,
                                                              static_cast<std::size_t>(shared));
  RC_ASSERT(status == CUDA_OCC_SUCCESS);
  RC_ASSERT(resident_ctas_per_sm(facts, registers, threads, shared) == result.activeBlocksPerMultiprocessor);
}
#endif

}  // namespace
}  // namespace leanattn
