// co_residency_gpu_test.cpp -- kernels that merge by tickets and kernels that wait, where the SMs are not all theirs:
// beside a kernel that holds some, on a green context of few, on two streams with dependent launch, and in graphs on
// eight streams at once. Nothing hangs, and every result is right.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/launch_status.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

constexpr int kCapacity = 1200;
const std::vector<std::vector<int>> kSets{{1200, 3, 0, 700}, {1, 1, 1, 1}, {0, 0, 0, 1200}, {64, 1199, 640, 65}};

/// Each CTA takes all shared memory of an SM, and keeps it until the host says otherwise.
constexpr const char* kHolder = R"(
extern "C" __global__ void hold(volatile int* started, volatile int* released) {
  if (threadIdx.x == 0) {
    started[blockIdx.x] = 1;
    while (*released == 0) __nanosleep(1000);
  }
}
)";

/// A kernel that holds SMs on a stream of its own until release().
class Holder {
 public:
  explicit Holder(const DeviceFacts& device) : shared_bytes_(device.shared_bytes_per_cta) {
    const auto compiled = compile_source(kHolder, device.arch, nullptr);
    EXPECT_TRUE(compiled) << compiled.error().message << compiled.error().log;
    source_ = std::make_unique<LoadedSource>(LoadedSource::load(*compiled).value());
    function_ = source_->function("hold", shared_bytes_).value();
    stream_ = Stream::create().value();
    flags_ = PinnedBuffer::allocate((device.sm_count + 1) * static_cast<std::int64_t>(sizeof(int))).value();
    released_ = flags_.as<int>() + device.sm_count;
  }
  ~Holder() { release(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  /// Returns once all CTAs run.
  void hold(int sms) {
    std::memset(flags_.data(), 0, static_cast<std::size_t>(flags_.bytes()));
    const LaunchDims dims{
        .grid_x = static_cast<unsigned>(sms), .threads = 32, .shared_bytes = static_cast<unsigned>(shared_bytes_)};
    ASSERT_TRUE(launch_with(function_, dims, stream_.get(), flags_.as<int>(), released_));
    for (int cta = 0; cta < sms; ++cta) {
      while (__atomic_load_n(flags_.as<int>() + cta, __ATOMIC_ACQUIRE) == 0) {
      }
    }
  }
  void release() {
    __atomic_store_n(released_, 1, __ATOMIC_RELEASE);
    EXPECT_TRUE(stream_.synchronize());
  }

 private:
  int shared_bytes_;
  std::unique_ptr<LoadedSource> source_;
  CUfunc_st* function_ = nullptr;
  Stream stream_;
  PinnedBuffer flags_;  ///< of each CTA, whether it runs; then what ends them
  int* released_ = nullptr;
};

/// What a stream has of its own: data, workspace, and the bits that each set of lengths must give.
struct Lane {
  DecodeCase decode_case;
  DeviceBuffer workspace;
  LeanDecodeArgs args{};
  Stream stream;
  std::vector<std::vector<char>> expected;  // [set]
};

class CoResidencyOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto made = LaunchStatus::allocate(kDefaultWaitBoundMs);
    ASSERT_TRUE(made) << made.error().message;
    status = std::make_unique<LaunchStatus>(*std::move(made));
  }

  KernelSpec spec_of(FixUp fixup, bool pdl = false) {
    KernelSpec spec =
        base_spec(runner->device().arch, DecodeProblem{.q_heads = 8, .kv_heads = 2, .head_dim = 128, .pdl = pdl});
    spec.load = runner->device().arch.major >= 9 ? LoadPath::tensor : LoadPath::cp_async;
    spec.fixup = fixup;
    spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64, spec.ctas_per_sm = 1;
    return spec;
  }
  std::unique_ptr<LoadedKernel> kernel_of(const KernelSpec& spec) {
    auto loaded = LoadedKernel::prepare(emit(spec).value(), nullptr);
    if (!loaded) return ADD_FAILURE() << loaded.error().message << loaded.error().log, nullptr;
    return std::make_unique<LoadedKernel>(*std::move(loaded));
  }
  /// A lane whose expected bits come from launches that nothing disturbs, and that agree with the oracle.
  Lane make_lane(const LoadedKernel& kernel, std::int64_t grid) {
    auto made = runner->make_case(kernel.spec(), {.kv_heads = 2,
                                                  .context_lengths = kSets[0],
                                                  .context_capacity = kCapacity,
                                                  .padded = false,
                                                  .data = DataKind::uniform});
    EXPECT_TRUE(made) << made.error().message;
    Lane lane{.decode_case = std::move(*made),
              .workspace = {},
              .args = {},
              .stream = Stream::create().value(),
              .expected = {}};
    const WorkspaceLayout layout = lane.decode_case.workspace(kernel.spec(), grid);
    lane.workspace = DeviceBuffer::allocate(layout.total_bytes).value();
    EXPECT_TRUE(fill_bytes_async(lane.workspace.data(), 0, lane.workspace.bytes(), stream));
    lane.args = lane.decode_case.args();
    bind_workspace(lane.args, layout, lane.workspace.data());
    lane.args.status = status->block();
    for (const std::vector<int>& lengths : kSets) {
      EXPECT_TRUE(lane.decode_case.set_context_lengths(lengths, stream));
      EXPECT_TRUE(lane.decode_case.reset_outputs(stream));
      EXPECT_TRUE(kernel.launch(lane.args, grid, stream));
      EXPECT_TRUE(runner->stream_object().synchronize());
      lane.expected.push_back(outputs(lane));
      const auto reference = lane.decode_case.reference(stream);
      EXPECT_TRUE(reference) << reference.error().message;
      const char* const bits = lane.expected.back().data();
      const ComparisonReport report =
          lane.decode_case.compare_raw(**reference, bits, bits + lane.decode_case.o_bytes(), kernel.spec().lse);
      EXPECT_TRUE(report.passed()) << kernel_name(kernel.spec()) << ": " << report.first_failure;
    }
    return lane;
  }
  /// The outputs of the lane's last launch, which must have ended: O, then LSE.
  std::vector<char> outputs(const Lane& lane) {
    const DecodeCase& of = lane.decode_case;
    std::vector<char> bits(static_cast<std::size_t>(of.o_bytes() + of.lse_bytes()));
    EXPECT_TRUE(copy_to_host(bits.data(), of.o_buffer().data(), of.o_bytes(), runner->stream_object()));
    EXPECT_TRUE(
        copy_to_host(bits.data() + of.o_bytes(), of.lse_buffer().data(), of.lse_bytes(), runner->stream_object()));
    return bits;
  }
  /// Enqueues on the lane's stream what changes its lengths to those of a set.
  void set_lengths(Lane& lane, const PinnedBuffer& lengths, std::size_t set) {
    ASSERT_TRUE(copy_to_device_async(lane.decode_case.lengths_on_device(), lengths.as<int>() + set * 4, 4 * sizeof(int),
                                     lane.stream.get()));
    ASSERT_TRUE(lane.decode_case.plant_kv(lane.stream.get()));
    ASSERT_TRUE(lane.decode_case.reset_outputs(lane.stream.get()));
  }
  static PinnedBuffer pinned_sets() {
    auto lengths = PinnedBuffer::allocate(static_cast<std::int64_t>(kSets.size() * 4 * sizeof(int))).value();
    for (std::size_t set = 0; set < kSets.size(); ++set)
      std::memcpy(lengths.as<int>() + set * 4, kSets[set].data(), 4 * sizeof(int));
    return lengths;
  }
  std::int64_t most_ctas(const LoadedKernel& kernel) { return std::min<std::int64_t>(kernel.resident_ctas(), 264); }

  std::unique_ptr<LaunchStatus> status;
};

TEST_F(CoResidencyOnGpu, LaunchesAreRightBesideAKernelThatHoldsSms) {
  const int sms = runner->device().sm_count;
  Holder holder(runner->device());
  const PinnedBuffer lengths = pinned_sets();
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    const auto kernel = kernel_of(spec_of(fixup));
    ASSERT_TRUE(kernel);
    Lane lane = make_lane(*kernel, most_ctas(*kernel));
    for (const int held : {1, 50, 100, sms - 1}) {
      if (held < 1 || held >= sms) continue;
      const auto end = Event::create(false);
      ASSERT_TRUE(end);
      holder.hold(held);
      for (std::size_t round = 0; round < 2 * kSets.size(); ++round) {
        set_lengths(lane, lengths, round % kSets.size());
        ASSERT_TRUE(kernel->launch(lane.args, most_ctas(*kernel), lane.stream.get()));
      }
      ASSERT_TRUE(end->record(lane.stream.get()));
      // A grid that waits may need SMs that are held. Tickets never do; the deadline only ends a test that hangs.
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(fixup == FixUp::wait ? 100 : 30000);
      while (!end->query().value() && std::chrono::steady_clock::now() < deadline) {
      }
      if (fixup == FixUp::ticket) {
        EXPECT_TRUE(end->query().value()) << "it needs no SM that is held: " << held;
      }
      holder.release();
      ASSERT_TRUE(lane.stream.synchronize());
      EXPECT_EQ(outputs(lane), lane.expected[kSets.size() - 1]) << held << " SMs held, " << to_string(fixup);
      EXPECT_TRUE(status->check()) << held;
    }
  }
}

TEST_F(CoResidencyOnGpu, DependentLaunchesThatWaitAreRightOnTwoStreams) {
  if (!has_dependent_launch(runner->device().arch)) GTEST_SKIP() << "no dependent launch before sm_90";
  const auto kernel = kernel_of(spec_of(FixUp::wait, true));
  ASSERT_TRUE(kernel);
  const std::int64_t grid = most_ctas(*kernel);
  std::vector<Lane> lanes;
  for (int i = 0; i < 2; ++i) lanes.push_back(make_lane(*kernel, grid));
  const PinnedBuffer lengths = pinned_sets();
  for (std::size_t round = 0; round < static_cast<std::size_t>(tries(20, 500)); ++round) {
    for (std::size_t i = 0; i < lanes.size(); ++i) set_lengths(lanes[i], lengths, (round + i) % kSets.size());
    for (int repeat = 0; repeat < 10; ++repeat) {
      for (Lane& lane : lanes) ASSERT_TRUE(kernel->launch(lane.args, grid, lane.stream.get()));
    }
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      ASSERT_TRUE(lanes[i].stream.synchronize());
      ASSERT_EQ(outputs(lanes[i]), lanes[i].expected[(round + i) % kSets.size()]) << "round " << round;
    }
  }
  EXPECT_TRUE(status->check());
}

TEST_F(CoResidencyOnGpu, GraphsOnEightStreamsStayRightWhileLengthsChange) {
  const PinnedBuffer lengths = pinned_sets();
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    const auto kernel = kernel_of(spec_of(fixup));
    ASSERT_TRUE(kernel);
    const std::int64_t grid = most_ctas(*kernel);
    std::vector<Lane> lanes;
    std::vector<Graph> graphs;
    for (int i = 0; i < 8; ++i) {
      lanes.push_back(make_lane(*kernel, grid));
      auto graph = Graph::capture(lanes.back().stream, [&](CUstream_st* capturing) {
        return kernel->launch(lanes.back().args, grid, capturing);
      });
      ASSERT_TRUE(graph) << graph.error().message;
      graphs.push_back(*std::move(graph));
    }
    constexpr int kInFlight = 100;
    const int rounds = tries(3, 10000 / kInFlight);
    for (int round = 0; round < rounds; ++round) {
      std::size_t last = 0;
      for (int replay = 0; replay < kInFlight; ++replay) {
        last = static_cast<std::size_t>(round * 7 + replay) % kSets.size();
        for (std::size_t i = 0; i < lanes.size(); ++i) {
          set_lengths(lanes[i], lengths, (last + i) % kSets.size());
          ASSERT_TRUE(graphs[i].launch(lanes[i].stream.get()));
        }
      }
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        ASSERT_TRUE(lanes[i].stream.synchronize());
        ASSERT_EQ(outputs(lanes[i]), lanes[i].expected[(last + i) % kSets.size()])
            << to_string(fixup) << ", round " << round << ", stream " << i;
      }
    }
    EXPECT_TRUE(status->check());
  }
}

/// A green context of few SMs with a stream, by functions that older drivers do not have.
class GreenStream {
 public:
  /// Empty where the driver has no green contexts.
  static std::unique_ptr<GreenStream> make(unsigned sms) {
    const auto green = std::make_unique<GreenStream>();
    return green->open(sms) ? std::make_unique<GreenStream>(std::move(*green)) : nullptr;
  }
  GreenStream() = default;
  GreenStream(GreenStream&& other) noexcept
      : destroy_(other.destroy_),
        context_(std::exchange(other.context_, nullptr)),
        stream_(std::exchange(other.stream_, nullptr)),
        sms_(other.sms_) {}
  ~GreenStream() {
    if (stream_ != nullptr) driver().value()->cuStreamDestroy(stream_);
    if (context_ != nullptr) destroy_(context_);
  }
  CUstream get() const { return stream_; }
  int sms() const { return sms_; }

 private:
  bool open(unsigned wanted) {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return false;
#define LEANATTN_FIND(name)                                                        \
  const auto name##_ = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (name##_ == nullptr) return false
    LEANATTN_FIND(cuDeviceGetDevResource);
    LEANATTN_FIND(cuDevSmResourceSplitByCount);
    LEANATTN_FIND(cuDevResourceGenerateDesc);
    LEANATTN_FIND(cuGreenCtxCreate);
    LEANATTN_FIND(cuGreenCtxDestroy);
    LEANATTN_FIND(cuGreenCtxStreamCreate);
#undef LEANATTN_FIND
    destroy_ = cuGreenCtxDestroy_;
    CUdevResource all{}, few{};
    unsigned groups = 1;
    CUdevResourceDesc description{};
    if (cuDeviceGetDevResource_(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cuDevSmResourceSplitByCount_(&few, &groups, &all, nullptr, 0, wanted) != CUDA_SUCCESS || groups < 1 ||
        cuDevResourceGenerateDesc_(&description, &few, 1) != CUDA_SUCCESS ||
        cuGreenCtxCreate_(&context_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) {
      return false;
    }
    sms_ = static_cast<int>(few.sm.smCount);
    return cuGreenCtxStreamCreate_(&stream_, context_, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS;
  }

  decltype(&::cuGreenCtxDestroy) destroy_ = nullptr;
  CUgreenCtx context_ = nullptr;
  CUstream stream_ = nullptr;
  int sms_ = 0;
};

TEST_F(CoResidencyOnGpu, AGreenContextOfFewSmsGetsAGridThatFits) {
  const auto green = GreenStream::make(16);
  if (!green) GTEST_SKIP() << "this driver makes no green context of 16 SMs";
  ASSERT_LT(green->sms(), runner->device().sm_count);
  EXPECT_EQ(stream_sm_count(green->get(), runner->device().sm_count), green->sms());
  auto opened = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
  ASSERT_TRUE(opened) << opened.error().message;
  EngineCore& engine = **opened;
  // Latent heads have large partials, which CTAs merge together where they may wait.
  KernelSpec heads{.head_dim = 576, .group = 16};
  heads.features.v_head_dim = 512, heads.features.latent = true;
  for (const bool latent : {false, true}) {
    const KernelSpec of = latent ? heads : KernelSpec{.head_dim = 128, .group = 4};
    auto decode_case = runner->make_case(of, {.kv_heads = 1,
                                              .context_lengths = {30000, 5},
                                              .context_capacity = 30000,
                                              .padded = false,
                                              .data = DataKind::uniform});
    ASSERT_TRUE(decode_case) << decode_case.error().message;
    DecodeProblem problem = decode_case->problem();
    problem.lse = false;
    const Shape shape{.batch = 2, .longest_context = 30000};
    const auto reference = decode_case->reference(stream);
    ASSERT_TRUE(reference) << reference.error().message;
    for (CUstream_st* const on : {stream, green->get(), stream, green->get()}) {
      const auto plan = engine.plan(problem, shape, on);
      ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
      if (on == green->get() && (*plan)->waits()) {
        EXPECT_LE((*plan)->choice().config.grid, green->sms() * (*plan)->kernel().resident_ctas_per_sm);
      }
      auto workspace = DeviceBuffer::allocate((*plan)->limits().workspace.total_bytes).value();
      ASSERT_TRUE(decode_case->reset_outputs(stream));
      ASSERT_TRUE(runner->stream_object().synchronize());
      ASSERT_TRUE((*plan)->init_workspace(workspace.data(), workspace.bytes(), on));
      leanattn_decode_args args = to_public(decode_case->args(), false);
      if (latent) {
        args.v = nullptr;
        args.v_stride_batch = args.v_stride_head = args.v_stride_token = 0;
      }
      const auto launched = (*plan)->launch(args, workspace.data(), on);
      ASSERT_TRUE(launched) << launched.error().message;
      ASSERT_TRUE(synchronize_context());
      ASSERT_EQ(driver().value()->cuStreamSynchronize(on), CUDA_SUCCESS);
      std::vector<char> o(static_cast<std::size_t>(decode_case->o_bytes())),
          l(static_cast<std::size_t>(decode_case->lse_bytes()));
      ASSERT_TRUE(
          copy_to_host(o.data(), decode_case->o_buffer().data(), decode_case->o_bytes(), runner->stream_object()));
      // Nothing may have been written there.
      ASSERT_TRUE(
          copy_to_host(l.data(), decode_case->lse_buffer().data(), decode_case->lse_bytes(), runner->stream_object()));
      const ComparisonReport report = decode_case->compare_raw(**reference, o.data(), l.data(), false);
      EXPECT_TRUE(report.passed()) << (*plan)->name() << ": " << report.first_failure;
      EXPECT_TRUE(engine.check());
    }
  }
}

}  // namespace
}  // namespace leanattn
