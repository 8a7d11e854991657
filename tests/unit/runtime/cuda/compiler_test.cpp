// compiler_test.cpp -- compiling with the real NVRTC: cubins, rejections, logs, and the cubin cache.
#include "runtime/cuda/compiler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/unit/cache/cache_fixture.hpp"

namespace leanattn {
namespace {

constexpr Arch kHopper{9, 0, true};

constexpr const char* kClean = R"(
extern "C" __global__ void clean(const float* in, float* out) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[255 - threadIdx.x];
}
)";

// Two CTAs of 1024 threads leave 32 registers to each thread, and 64 live values do not fit.
constexpr const char* kSpilling = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const float* in, float* out) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = in[threadIdx.x + i * 1024];
  for (int round = 0; round < 4; ++round)
    for (int i = 0; i < 64; ++i) values[i] = values[i] * values[(i * 7 + 3) & 63] + values[(i * 11 + 5) & 63];
  for (int i = 0; i < 64; ++i) out[threadIdx.x + i * 1024] = values[i];
}
)";

// The accumulators are read while the instruction that writes them may still run, so ptxas has to wait each time.
constexpr const char* kSerialized = R"(
extern "C" __global__ void __launch_bounds__(128) tangled(unsigned long long a, unsigned long long b, float* out, int n) {
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a + i), "l"(b + i));
    d0 *= 1.5f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d0 + d1 + d2 + d3;
}
)";

// Without launch bounds ptxas does not know how many registers a thread has at first (C7508).
constexpr const char* kWithoutBounds = R"(
extern "C" __global__ void unbound(float* out) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  out[threadIdx.x] = 1;
}
)";

EmittedKernel emitted(const char* source, const char* entry, Arch arch = kHopper) {
  EmittedKernel kernel;
  kernel.spec.arch = arch;
  kernel.source = source;
  kernel.entry = entry;
  kernel.threads = 256;
  return kernel;
}

/// A cache in memory that counts its calls and can damage its entries.
class TestCache : public CubinCache {
 public:
  std::optional<CubinEntry> load(std::string_view key) override {
    const std::lock_guard lock(mutex);
    ++loads;
    const auto it = entries.find(std::string(key));
    return it == entries.end() ? std::nullopt : std::optional(it->second);
  }
  void store(std::string_view key, const CubinEntry& entry) override {
    const std::lock_guard lock(mutex);
    ++stores;
    entries[std::string(key)] = entry;
  }
  void erase(std::string_view key) override {
    const std::lock_guard lock(mutex);
    ++erases;
    entries.erase(std::string(key));
  }

  std::mutex mutex;
  std::map<std::string, CubinEntry> entries;
  int loads = 0, stores = 0, erases = 0;
};

class Compiler : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  }
};

TEST_F(Compiler, ACleanSourceBecomesACubinWithItsResources) {
  const auto compiled = compile_source(kClean, kHopper, nullptr);
  ASSERT_TRUE(compiled) << compiled.error().message << '\n' << compiled.error().log;
  ASSERT_GE(compiled->cubin.size(), 4u);
  EXPECT_EQ(std::string(compiled->cubin.begin(), compiled->cubin.begin() + 4),
            "\x7f"
            "ELF");
  EXPECT_GT(compiled->resources.registers, 0);
  EXPECT_EQ(compiled->resources.static_shared_bytes, 1024);
  EXPECT_EQ(compiled->resources.spill_store_bytes, 0);
  EXPECT_EQ(compiled->resources.spill_load_bytes, 0);
  EXPECT_FALSE(compiled->resources.wgmma_serialized);
  EXPECT_FALSE(compiled->from_cache);
  EXPECT_GT(compiled->compile_ms, 0);
}

TEST_F(Compiler, EveryMatrixArchThatThisNvrtcKnowsCompiles) {
  int compiled_arches = 0;
  for (const Arch arch : matrix_arches()) {
    if (!check_arch(**nvrtc(), arch)) continue;
    const auto compiled = compile_source(kClean, arch, nullptr);
    ASSERT_TRUE(compiled) << to_string(arch) << ": " << compiled.error().message << '\n' << compiled.error().log;
    EXPECT_NE(compiled->log.find("'" + to_string(arch) + "'"), std::string::npos) << compiled->log;
    ++compiled_arches;
  }
  EXPECT_GE(compiled_arches, 4) << "sm_80, sm_86, sm_89 and sm_90a are older than any NVRTC we accept";
}

TEST_F(Compiler, ArchSpecificInstructionsCompileOnlyForTheSpecificArch) {
  EXPECT_TRUE(compile_source(kSerialized, kHopper, nullptr));
  const auto plain = compile_source(kSerialized, Arch{9, 0, false}, nullptr);
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().code, ErrorCode::compile_failed);
  EXPECT_NE(plain.error().log.find("wgmma"), std::string::npos) << plain.error().log;
}

TEST_F(Compiler, AnArchThatNvrtcDoesNotKnowIsUnsupportedBeforeAnythingIsCompiled) {
  const auto compiled = compile_source("this is not CUDA", Arch{99, 0, false}, nullptr);
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::unsupported);
  EXPECT_FALSE(compiled.error().hint.empty());
}

TEST_F(Compiler, ASyntaxErrorIsCompileFailedWithTheLogAndItsFirstError) {
  const auto compiled = compile_source("extern \"C\" __global__ void broken() { int x = ; }", kHopper, nullptr);
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::compile_failed);
  EXPECT_NE(compiled.error().message.find("expected an expression"), std::string::npos) << compiled.error().message;
  EXPECT_NE(compiled.error().log.find("source.cu(1)"), std::string::npos) << compiled.error().log;
}

TEST_F(Compiler, ASpillingKernelIsRejectedWithTheBytesAndTheLog) {
  const auto compiled = compile(emitted(kSpilling, "spilling"));
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kernel_rejected);
  const auto resources = parse_ptxas_log(compiled.error().log);
  EXPECT_GT(resources.spill_store_bytes, 0);
  EXPECT_NE(compiled.error().message.find(std::to_string(resources.spill_store_bytes)), std::string::npos)
      << compiled.error().message;
}

TEST_F(Compiler, ASpillingSourceIsReportedNotRejected) {
  const auto compiled = compile_source(kSpilling, kHopper, nullptr);
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->resources.registers, 32);
  EXPECT_GT(compiled->resources.spill_store_bytes, 0);
  EXPECT_GT(compiled->resources.spill_load_bytes, 0);
  EXPECT_GT(compiled->resources.stack_bytes, 0);
}

/// What becomes of a clean kernel where `text` of its compiler's log is `replaced`.
Result<CompiledKernel> compile_with_log(std::string_view text, std::string_view replaced) {
  TestCache cache;
  if (auto compiled = compile(emitted(kClean, "clean"), &cache); !compiled) return compiled;
  auto& metadata = cache.entries.begin()->second.metadata;
  const auto at = metadata.find(text);
  if (at == std::string::npos) return fail(ErrorCode::not_found, metadata);
  metadata.replace(at, text.size(), replaced);
  return compile(emitted(kClean, "clean"), &cache);
}

TEST_F(Compiler, AKernelWhoseLogDoesNotKnowItsRegistersIsRejected) {
  const auto compiled = compile_with_log("Used ", "Took ");
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kernel_rejected);
}

// Which words are spilled changes with the compiler. Those that matter lose by their time.
TEST_F(Compiler, SmallSpillsAreNoReasonToReject) {
  const auto compiled = compile_with_log("0 bytes spill stores", "256 bytes spill stores");
  ASSERT_TRUE(compiled) << compiled.error().message;
  EXPECT_EQ(compiled->resources.spill_store_bytes, 256);
  const auto more = compile_with_log("0 bytes spill loads", "260 bytes spill loads");
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::kernel_rejected);
}

TEST_F(Compiler, TheLogIsTextWithoutTerminators) {
  const auto compiled = compile_source(kClean, kHopper, nullptr);
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->log.find('\0'), std::string::npos);
  EXPECT_TRUE(compiled->log.ends_with('\n')) << compiled->log;
}

TEST_F(Compiler, AKernelWhoseWarpgroupsCannotHandRegistersOverIsRejected) {
  const auto compiled = compile(emitted(kWithoutBounds, "unbound"));
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kernel_rejected);
  EXPECT_NE(compiled.error().message.find("setmaxnreg"), std::string::npos) << compiled.error().message;
}

TEST_F(Compiler, SerialisedWgmmaIsRejectedThoughNvrtcSucceeds) {
  const auto compiled = compile(emitted(kSerialized, "tangled"));
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kernel_rejected);
  EXPECT_NE(compiled.error().message.find("wgmma"), std::string::npos);
  EXPECT_NE(compiled.error().hint.find("another one"), std::string::npos) << "the log's reason may be wrong";
  EXPECT_NE(compiled.error().log.find("are serialized"), std::string::npos);
}

TEST_F(Compiler, ThreadsMayCompileAtTheSameTime) {
  std::vector<Result<CompiledKernel>> parallel(6, tl::unexpected(Error{}));
  const auto source = [](std::size_t i) {
    return "extern \"C\" __global__ void k(int* out) { out[threadIdx.x] = " + std::to_string(i) + "; }";
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < parallel.size(); ++i) {
      threads.emplace_back([&, i] { parallel[i] = compile_source(source(i), kHopper, nullptr); });
    }
  }
  for (std::size_t i = 0; i < parallel.size(); ++i) {
    ASSERT_TRUE(parallel[i]) << parallel[i].error().message;
    EXPECT_EQ(parallel[i]->cubin, compile_source(source(i), kHopper, nullptr)->cubin) << i;
  }
}

TEST_F(Compiler, TheSecondCompileComesFromTheCacheWithEqualContents) {
  TestCache cache;
  const auto cold = compile(emitted(kClean, "clean"), &cache);
  ASSERT_TRUE(cold);
  EXPECT_EQ(cache.stores, 1);
  const auto warm = compile(emitted(kClean, "clean"), &cache);
  ASSERT_TRUE(warm);
  EXPECT_TRUE(warm->from_cache);
  EXPECT_EQ(warm->compile_ms, 0);
  EXPECT_EQ(warm->cubin, cold->cubin);
  EXPECT_EQ(warm->resources, cold->resources);
  EXPECT_EQ(warm->log, cold->log);
  EXPECT_EQ(cache.stores, 1);
}

TEST_F(Compiler, OfThirtyTwoProcessesThatStartTogetherOneCompiles) {
  const TemporaryDirectory directory;
  const cache_test::ScopedVariable patience("LEANATTN_BUSY_TIMEOUT_MS", "120000");
  constexpr int kProcesses = 32, kCompiled = 1, kFound = 2;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(cache_test::start_process([&] {
      const auto cache = open_cubin_db(directory.path(), nullptr);
      const auto compiled = compile_source(kClean, kHopper, cache.get());
      return !compiled ? 3 : compiled->from_cache ? kFound : kCompiled;
    }));
  }
  std::map<int, int> statuses;
  for (const pid_t child : children) ++statuses[cache_test::wait_for(child)];
  EXPECT_EQ(statuses, (std::map<int, int>{{kCompiled, 1}, {kFound, kProcesses - 1}}));
}

TEST_F(Compiler, ARejectionIsRememberedWithItsLog) {
  TestCache cache;
  const auto cold = compile(emitted(kSpilling, "spilling"), &cache);
  const auto warm = compile(emitted(kSpilling, "spilling"), &cache);
  EXPECT_EQ(cache.stores, 1);
  ASSERT_FALSE(warm);
  EXPECT_EQ(warm.error().code, ErrorCode::kernel_rejected);
  EXPECT_EQ(warm.error().message, cold.error().message);
  EXPECT_EQ(warm.error().log, cold.error().log);
}

TEST_F(Compiler, AFailedCompileIsNotStored) {
  TestCache cache;
  EXPECT_FALSE(compile_source("nonsense", kHopper, &cache));
  EXPECT_EQ(cache.stores, 0);
}

TEST_F(Compiler, ADamagedEntryIsDeletedAndCompiledAgain) {
  for (const char* metadata : {"", "[]", "{\"format\":1}", "{\"format\":999}", "\xff\xfe"}) {
    TestCache cache;
    ASSERT_TRUE(compile(emitted(kClean, "clean"), &cache));
    cache.entries.begin()->second.metadata = metadata;
    const auto again = compile(emitted(kClean, "clean"), &cache);
    ASSERT_TRUE(again) << metadata;
    EXPECT_FALSE(again->from_cache) << metadata;
    EXPECT_EQ(cache.erases, 1) << metadata;
    EXPECT_TRUE(compile(emitted(kClean, "clean"), &cache)->from_cache) << metadata;
  }
}

TEST_F(Compiler, AnEmptyCubinIsAMiss) {
  TestCache cache;
  ASSERT_TRUE(compile(emitted(kClean, "clean"), &cache));
  cache.entries.begin()->second.cubin.clear();
  const auto again = compile(emitted(kClean, "clean"), &cache);
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->from_cache);
}

TEST_F(Compiler, KeysTellSourcesAndArchesApart) {
  const auto key = [](std::string_view source, Arch arch) { return *compile_key(source, arch); };
  EXPECT_EQ(key(kClean, kHopper), key(kClean, kHopper));
  EXPECT_NE(key(kClean, kHopper), key(kSpilling, kHopper));
  EXPECT_NE(key(kClean, kHopper), key(kClean, Arch{9, 0, false}));
  TestCache cache;
  ASSERT_TRUE(compile_source(kClean, kHopper, &cache));
  EXPECT_EQ(cache.entries.count(key(kClean, kHopper)), 1u)
      << "compile_key() must be the key that compile_source() uses";
}

TEST_F(Compiler, WithoutADriverNothingIsCompiledForLoading) {
  if (driver()) GTEST_SKIP() << "this machine has a driver";
  TestCache cache;
  const auto loaded = LoadedKernel::prepare(emitted(kClean, "clean"), &cache);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, driver().error().code);
  EXPECT_EQ(cache.loads, 0);
}

TEST_F(Compiler, NvrtcsOwnCacheIsOffWhereItHasOne) {
  const auto& api = **nvrtc();
  const auto options = compile_options(**nvrtc(), kHopper);
  const bool off = std::find(options.begin(), options.end(), "--no-cache") != options.end();
  EXPECT_EQ(off, api.major * 100 + api.minor >= 1209) << full_version(api);
}

TEST(CompileOptions, NameTheRealArchAndAskForTheLog) {
  const auto options = compile_options(**nvrtc(), kHopper);
  EXPECT_EQ(options.front(), "--gpu-architecture=sm_90a");
  EXPECT_NE(std::find(options.begin(), options.end(), "--ptxas-options=-v"), options.end());
}

}  // namespace
}  // namespace leanattn
