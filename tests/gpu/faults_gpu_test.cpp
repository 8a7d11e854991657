// faults_gpu_test.cpp -- launches on workspaces that are not as they must be: they end within the bound, the next call
// says what happened, and initialising the workspace mends it.
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/launch_status.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace leanattn {
namespace {

constexpr std::int64_t kBoundMs = 20;
constexpr std::int64_t kGrid = 8;

/// A kernel of each load path that shares its output tiles among all CTAs of kGrid.
KernelSpec spec_of(Arch arch, LoadPath load, FixUp fixup) {
  KernelSpec spec = base_spec(arch, DecodeProblem{.q_heads = 4, .kv_heads = 1, .head_dim = 128});
  spec.load = load, spec.fixup = fixup;
  spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64, spec.ctas_per_sm = 1;
  return spec;
}

/// A kernel whose warpgroups have roles, of 64 query heads over a latent cache.
KernelSpec spec_with_roles(Arch arch, FixUp fixup) {
  DecodeProblem problem{.q_heads = 64, .kv_heads = 1, .head_dim = 576};
  problem.features.v_head_dim = 512, problem.features.latent = true;
  KernelSpec spec = base_spec(arch, problem);
  spec.load = LoadPath::tensor, spec.fixup = fixup;
  spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64, spec.ctas_per_sm = 1;
  return spec;
}

/// The same over rows of 656 bytes, with two row blocks, whose CTAs convert rows together (converting_ctas).
KernelSpec spec_with_clusters(Arch arch, FixUp fixup) {
  KernelSpec spec = spec_with_roles(arch, fixup);
  spec.group = 128, spec.features.kv_format = KvFormat::fp8_ds_mla, spec.features.kv_scale = KvScale::tensor;
  return spec;
}

/// Four requests of 32 LeanTiles each, which kGrid CTAs take in pairs.
const std::vector<int> kPairs(4, 2048);
static_assert(kGrid == 2 * 4, "an output tile has two contributors");

class FaultsOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto made = LaunchStatus::allocate(kBoundMs);
    ASSERT_TRUE(made) << made.error().message;
    status = std::make_unique<LaunchStatus>(*std::move(made));
  }

  /// The kernel of a spec, whose source `plant` may change.
  std::unique_ptr<LoadedKernel> kernel_of(const KernelSpec& spec,
                                          const std::function<void(std::string&)>& plant = nullptr) {
    auto emitted = emit(spec);
    if (!emitted) return ADD_FAILURE() << emitted.error().message, nullptr;
    if (plant) plant(emitted->source);
    auto loaded = LoadedKernel::prepare(*emitted, nullptr);
    if (!loaded) return ADD_FAILURE() << loaded.error().message << loaded.error().log, nullptr;
    return std::make_unique<LoadedKernel>(*std::move(loaded));
  }
  DecodeCase make_case(const KernelSpec& spec, std::vector<int> lengths) {
    auto made = runner->make_case(spec, {.kv_heads = 1,
                                         .context_lengths = std::move(lengths),
                                         .context_capacity = 4000,
                                         .padded = false,
                                         .data = DataKind::uniform});
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  /// Arguments with a zeroed workspace of the test's own and the test's status block.
  LeanDecodeArgs bind(const DecodeCase& decode_case, const KernelSpec& spec, DeviceBuffer& workspace) {
    const WorkspaceLayout layout = decode_case.workspace(spec, kGrid);
    workspace = DeviceBuffer::allocate(layout.total_bytes).value();
    EXPECT_TRUE(fill_bytes_async(workspace.data(), 0, workspace.bytes(), stream));
    LeanDecodeArgs args = decode_case.args();
    bind_workspace(args, layout, workspace.data());
    args.status = status->block();
    return args;
  }
  Result<void> sync() { return runner->stream_object().synchronize(); }

  void expect_fault(const Result<void>& answer, const std::string& what) {
    ASSERT_FALSE(answer) << what;
    EXPECT_EQ(answer.error().code, ErrorCode::workspace_corrupt) << answer.error().message;
    EXPECT_NE(answer.error().message.find(what), std::string::npos) << answer.error().message;
  }
  void expect_right(DecodeCase& decode_case, bool lse, const std::string& what) {
    const auto reference = decode_case.reference(stream);
    ASSERT_TRUE(reference) << reference.error().message;
    std::vector<char> o(static_cast<std::size_t>(decode_case.o_bytes())),
        l(static_cast<std::size_t>(decode_case.lse_bytes()));
    ASSERT_TRUE(copy_to_host(o.data(), decode_case.o_buffer().data(), decode_case.o_bytes(), runner->stream_object()));
    ASSERT_TRUE(
        copy_to_host(l.data(), decode_case.lse_buffer().data(), decode_case.lse_bytes(), runner->stream_object()));
    const ComparisonReport report = decode_case.compare_raw(**reference, o.data(), l.data(), lse);
    EXPECT_TRUE(report.passed()) << what << ": " << report.first_failure;
  }
  /// Zeroes the workspace, acknowledges, and launches once more.
  void mend(DecodeCase& decode_case, const LoadedKernel& kernel, const LeanDecodeArgs& args, DeviceBuffer& workspace,
            const std::string& what) {
    ASSERT_TRUE(fill_bytes_async(workspace.data(), 0, workspace.bytes(), stream));
    status->acknowledge();
    ASSERT_TRUE(decode_case.reset_outputs(stream));
    ASSERT_TRUE(kernel.launch(args, kGrid, stream));
    ASSERT_TRUE(sync());
    EXPECT_TRUE(status->check()) << what;
    expect_right(decode_case, kernel.spec().lse, what);
  }

  std::unique_ptr<LaunchStatus> status;
};

TEST_F(FaultsOnGpu, APartialThatNeverComesEndsTheLaunchWithNanAndAReport) {
  struct Setting {
    KernelSpec spec;
    std::vector<int> lengths;  ///< of requests, of which CTA 3 contributes to one
  };
  std::vector<Setting> settings;
  const Arch arch = runner->device().arch;
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    for (const LoadPath load : {LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor}) {
      if (arch.major >= 9 || load == LoadPath::cp_async) settings.push_back({spec_of(arch, load, fixup), {4000}});
    }
    if (arch.major != 9) continue;
    settings.push_back({spec_with_roles(arch, fixup), {4000}});
    settings.push_back({spec_with_roles(arch, fixup), kPairs});
  }
  for (const auto& [spec, lengths] : settings) {
    const std::string what = kernel_name(spec) + ", requests: " + std::to_string(lengths.size());
    const auto sound = kernel_of(spec), mute = kernel_of(spec, [&spec = spec](std::string&source) {
                                          const std::string store = layout_of(spec).counts_partials
                                                                        ? "count_partial(args, f.c);"
                                                                        : "store_own_partial(args, f.c, results);";
                                          const auto at = source.find(store);
                                          ASSERT_NE(at, std::string::npos);
                                          source.replace(at, store.size(), "if (blockIdx.x != 3) " + store);
                                        });
    ASSERT_TRUE(sound && mute);
    DecodeCase decode_case = make_case(spec, lengths);
    DeviceBuffer workspace;
    const LeanDecodeArgs args = bind(decode_case, spec, workspace);
    ASSERT_TRUE(fill_bytes_async(decode_case.o_buffer().data(), 0, decode_case.o_bytes(), stream));
    ASSERT_TRUE(mute->launch(args, kGrid, stream));
    const auto ended = sync();
    ASSERT_TRUE(ended) << what << ": " << ended.error().message;
    expect_fault(status->check(), "in vain");
    std::vector<std::uint16_t> o(static_cast<std::size_t>(decode_case.o_bytes()) / 2);
    ASSERT_TRUE(copy_to_host(o.data(), decode_case.o_buffer().data(), decode_case.o_bytes(), runner->stream_object()));
    const auto values = static_cast<std::size_t>(spec.group * value_dim(spec));  // of a request; padding may lie around
    std::size_t nan = 0;
    for (const std::uint16_t bits : o) nan += (bits & 0x7fff) > 0x7f80 ? 1 : 0;
    EXPECT_EQ(nan, values) << what << ": a result that lacks a partial must not look like one";
    // Launches that follow find the report and stop at their first nap.
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(mute->launch(args, kGrid, stream));
    ASSERT_TRUE(sync());
    mend(decode_case, *sound, args, workspace, what);
  }
}

TEST_F(FaultsOnGpu, TicketsThatWereNotZeroAreReported) {
  const Arch arch = runner->device().arch;
  std::vector<KernelSpec> specs{spec_of(arch, LoadPath::cp_async, FixUp::ticket)};
  if (arch.major == 9)
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) specs.push_back(spec_with_roles(arch, fixup));
  for (const KernelSpec& spec : specs) {
    const auto kernel = kernel_of(spec);
    ASSERT_TRUE(kernel);
    for (const std::vector<int>& lengths : {std::vector{4000}, kPairs}) {
      DecodeCase decode_case = make_case(spec, lengths);
      for (const std::uint32_t poison : {static_cast<std::uint32_t>(kGrid), 1u << 31, 0xffffffffu}) {
        DeviceBuffer workspace;
        const LeanDecodeArgs args = bind(decode_case, spec, workspace);
        const WorkspaceLayout layout = decode_case.workspace(spec, kGrid);
        ASSERT_TRUE(fill_u32_async(args.tickets, poison, (layout.partials_offset - layout.tickets_offset) / 4, stream));
        ASSERT_TRUE(kernel->launch(args, kGrid, stream));
        ASSERT_TRUE(sync());
        expect_fault(status->check(), "a counter there had an impossible value");
        mend(decode_case, *kernel, args, workspace, kernel_name(spec) + ", " + std::to_string(poison));
      }
    }
  }
}

TEST_F(FaultsOnGpu, TwoStreamsOnOneWorkspaceEndAndItCanBeMended) {
  const auto other = Stream::create();
  ASSERT_TRUE(other);
  std::vector<KernelSpec> specs;
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    specs.push_back(spec_of(runner->device().arch, LoadPath::cp_async, fixup));
    if (runner->device().arch.major == 9) specs.push_back(spec_with_roles(runner->device().arch, fixup));
  }
  for (const KernelSpec& spec : specs) {
    const auto kernel = kernel_of(spec);
    ASSERT_TRUE(kernel);
    DecodeCase mine = make_case(spec, {4000}), theirs = make_case(spec, {3000});
    DeviceBuffer workspace;
    const LeanDecodeArgs args = bind(mine, spec, workspace);
    LeanDecodeArgs other_args = theirs.args();
    bind_workspace(other_args, theirs.workspace(spec, kGrid), workspace.data());
    other_args.status = status->block();
    ASSERT_TRUE(sync());
    for (int round = 0; round < 200; ++round) {
      ASSERT_TRUE(kernel->launch(args, kGrid, stream));
      ASSERT_TRUE(kernel->launch(other_args, kGrid, other->get()));
    }
    const auto ended = sync(), also = other->synchronize();
    ASSERT_TRUE(ended) << ended.error().message;
    ASSERT_TRUE(also) << also.error().message;
    RecordProperty(kernel_name(spec), status->has_fault() ? "fault" : "none");
    mend(mine, *kernel, args, workspace, "after two streams");
  }
}

/// Writes one set of lengths after the other, until the host says otherwise, and counts them for the host.
constexpr const char* kRewriter = R"(
extern "C" __global__ void rewrite(volatile int* lengths, const int* sets, int count, volatile int* ended,
                                   volatile int* written) {
  for (int set = 0; *ended == 0; set = (set + 1) % count) {
    lengths[threadIdx.x] = sets[set * blockDim.x + threadIdx.x];
    if (threadIdx.x == 0) *written = *written + 1;
    __nanosleep(200 + 37 * set);
  }
}
)";

/// Ends the rewriter, also where the test fails: it would keep the GPU for good.
struct EndsRewriter {
  int* ended;
  ~EndsRewriter() { __atomic_store_n(ended, 1, __ATOMIC_RELEASE); }
};

TEST_F(FaultsOnGpu, LengthsThatChangeWhileALaunchRunsDoNotHangIt) {
  constexpr unsigned kBatch = 4;
  const std::vector<std::vector<int>> sets{{4000, 100, 2000, 1}, {1, 4000, 0, 3999}, {0, 0, 4000, 0}, {7, 7, 7, 7}};
  auto other = Stream::create();
  ASSERT_TRUE(other);
  auto pinned = PinnedBuffer::allocate(static_cast<std::int64_t>((sets.size() * kBatch + 2) * sizeof(int)));
  ASSERT_TRUE(pinned);
  for (std::size_t set = 0; set < sets.size(); ++set)
    std::memcpy(pinned->as<int>() + set * kBatch, sets[set].data(), kBatch * sizeof(int));
  int *const ended = pinned->as<int>() + sets.size() * kBatch, *const written = ended + 1;
  const auto compiled = compile_source(kRewriter, runner->device().arch, nullptr);
  ASSERT_TRUE(compiled) << compiled.error().message << compiled.error().log;
  auto source = LoadedSource::load(*compiled);
  ASSERT_TRUE(source);
  CUfunc_st* const rewrite = source->function("rewrite", 0).value();

  std::vector<KernelSpec> specs;
  const Arch arch = runner->device().arch;
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    for (const LoadPath load : {LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor}) {
      if (arch.major < 9 && load != LoadPath::cp_async) continue;
      for (const int warps : {4, 8}) {
        specs.push_back(spec_of(arch, load, fixup));
        specs.back().warps = warps;
      }
    }
    if (arch.major == 9) {
      specs.push_back(spec_with_roles(arch, fixup));
      specs.push_back(spec_with_clusters(arch, fixup));
      ASSERT_EQ(layout_of(specs.back()).converting_ctas, 2);
    }
  }
  for (const KernelSpec& spec : specs) {
    const std::string what = kernel_name(spec);
    const auto kernel = kernel_of(spec);
    ASSERT_TRUE(kernel) << what;
    DecodeCase decode_case = make_case(spec, sets[0]);
    DeviceBuffer workspace;
    const LeanDecodeArgs args = bind(decode_case, spec, workspace);
    ASSERT_TRUE(sync());
    __atomic_store_n(ended, 0, __ATOMIC_RELEASE), __atomic_store_n(written, 0, __ATOMIC_RELEASE);
    ASSERT_TRUE(launch_with(rewrite, LaunchDims{.grid_x = 1, .threads = kBatch}, other->get(),
                            decode_case.lengths_on_device(), pinned->as<int>(), static_cast<int>(sets.size()), ended,
                            written));
    const EndsRewriter ends{ended};
    int faults = 0;
    // A round with a fault takes long, because each wait in vain takes a millisecond. Five of them say enough.
    for (int round = 0; round < 25 && faults < 5; ++round) {
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(kernel->launch(args, kGrid, stream));
      const auto finished = sync();
      ASSERT_TRUE(finished) << what << ": " << finished.error().message;
      faults += status->has_fault() ? 1 : 0;
      ASSERT_TRUE(fill_bytes_async(workspace.data(), 0, workspace.bytes(), stream));
      status->acknowledge();
    }
    EXPECT_GT(__atomic_load_n(written, __ATOMIC_ACQUIRE), 50) << what << ": the lengths hardly changed";
    __atomic_store_n(ended, 1, __ATOMIC_RELEASE);
    const auto also = other->synchronize();
    ASSERT_TRUE(also) << also.error().message;
    RecordProperty("rounds_with_a_fault_" + what, faults);
    ASSERT_TRUE(decode_case.set_context_lengths(sets[0], stream));
    mend(decode_case, *kernel, args, workspace, what + " after changes");
  }
}

/// Engines of the public interface with a short bound.
class FaultyEngineOnGpu : public FaultsOnGpu {
 protected:
  std::unique_ptr<EngineCore> open() {
    setenv("LEANATTN_WAIT_BOUND_MS", "20", 1);
    auto opened = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
    unsetenv("LEANATTN_WAIT_BOUND_MS");
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
};

TEST_F(FaultyEngineOnGpu, AReplayOnAPoisonedWorkspaceIsReportedByTheNextCallAndInitMendsIt) {
  const auto engine = open();
  // Batch-invariant kernels draw tickets. One that waits cannot tell poison from a partial.
  const KernelSpec heads{.head_dim = 128, .group = 4, .features = {.batch_invariant = true}};
  DecodeCase decode_case = make_case(heads, {4000});
  DecodeProblem problem = decode_case.problem();
  problem.lse = false;
  const auto plan = engine->plan(problem, {.batch = 1, .longest_context = 4000}, stream);
  ASSERT_TRUE(plan) << plan.error().message;
  auto workspace = DeviceBuffer::allocate((*plan)->limits().workspace.total_bytes).value();
  ASSERT_TRUE((*plan)->init_workspace(workspace.data(), workspace.bytes(), stream));
  const auto args = to_public(decode_case.args(), false);
  const auto graph = Graph::capture(runner->stream_object(), [&](CUstream_st* capturing) {
    return (*plan)->launch(args, workspace.data(), capturing);
  });
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE(fill_bytes_async(workspace.data(), 0x55, workspace.bytes(), stream));
  ASSERT_TRUE(graph->launch(stream));
  ASSERT_TRUE(sync());
  expect_fault(engine->check(), "ended with a fault");
  expect_fault((*plan)->launch(args, workspace.data(), stream), "ended with a fault");
  ASSERT_TRUE((*plan)->init_workspace(workspace.data(), workspace.bytes(), stream));
  EXPECT_TRUE(engine->check());
  ASSERT_TRUE(decode_case.reset_outputs(stream));
  ASSERT_TRUE(graph->launch(stream));
  expect_right(decode_case, false, "replay");
  ASSERT_TRUE(decode_case.reset_outputs(stream));
  ASSERT_TRUE((*plan)->launch(args, workspace.data(), stream));
  expect_right(decode_case, false, "launch");
}

TEST_F(FaultyEngineOnGpu, DebugModeNamesThePoisonedWordBeforeTheLaunch) {
  setenv("LEANATTN_DEBUG", "1", 1);
  const auto engine = open();
  unsetenv("LEANATTN_DEBUG");
  const KernelSpec heads{.head_dim = 128, .group = 4};
  DecodeCase decode_case = make_case(heads, {4000});
  DecodeProblem problem = decode_case.problem();
  problem.lse = false;
  const auto plan = engine->plan(problem, {.batch = 1, .longest_context = 4000}, stream);
  ASSERT_TRUE(plan) << plan.error().message;
  const std::int64_t bytes = (*plan)->limits().workspace.total_bytes;
  auto workspace = DeviceBuffer::allocate(bytes).value();
  ASSERT_TRUE((*plan)->init_workspace(workspace.data(), bytes, stream));
  const auto args = to_public(decode_case.args(), false);
  for (int i = 0; i < 3; ++i) {
    const auto launched = (*plan)->launch(args, workspace.data(), stream);
    ASSERT_TRUE(launched) << "a launch leaves all zero: " << launched.error().message;
  }
  for (const std::int64_t word : {bytes / 4 - 1, bytes / 8, std::int64_t{0}}) {
    ASSERT_TRUE(fill_u32_async(workspace.at(word * 4), 7, 1, stream));
    expect_fault((*plan)->launch(args, workspace.data(), stream), "word " + std::to_string(word) + " of workspace");
  }
  ASSERT_TRUE((*plan)->init_workspace(workspace.data(), bytes, stream));
  EXPECT_TRUE((*plan)->launch(args, workspace.data(), stream));
  EXPECT_TRUE(sync());
}

}  // namespace
}  // namespace leanattn
