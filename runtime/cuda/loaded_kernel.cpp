// loaded_kernel.cpp -- loading an emitted kernel, and the launch path.
#include "runtime/cuda/loaded_kernel.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

#include "cache/cubin/cubin_db.hpp"
#include "generator/families/family.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/load_cubin.hpp"
#include "runtime/cuda/tensor_map.hpp"
#include "runtime/cuda/tensor_map_cache.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/line/schedule.cuh"

static_assert(std::is_trivially_copyable_v<LeanDecodeArgs> && std::is_standard_layout_v<LeanDecodeArgs>,
              "the driver copies the argument block byte by byte");
// Which fields share a line of the constant cache, 64 bytes of which the block skips 16 (templates/kernel_args.cuh).
static_assert(offsetof(LeanDecodeArgs, k_stride_batch) == 48, "the first line ends with the bases of the cache");
static_assert(offsetof(LeanDecodeArgs, q_offsets) == 112, "the second line ends with the page table");
static_assert(offsetof(LeanDecodeArgs, o) == 176, "the third line ends with the workspace");

}  // namespace

void bind_workspace(LeanDecodeArgs& args, const WorkspaceLayout& layout, void* base) {
  char* const bytes = static_cast<char*>(base);
  args.partials = reinterpret_cast<float*>(bytes + layout.partials_offset);
  args.tickets = reinterpret_cast<unsigned*>(bytes + layout.tickets_offset);
}

Result<LoadedKernel> LoadedKernel::load(const EmittedKernel& kernel, const CompiledKernel& compiled) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const auto library = load_cubin(compiled.cubin);
  if (!library) return tl::unexpected(library.error());
  LoadedKernel loaded;
  loaded.library_ = std::shared_ptr<CUlib_st>(*library, [](CUlib_st* owned) {
    if (const auto unloading = driver()) (*unloading)->cuLibraryUnload(owned);
  });
  loaded.entry_ = kernel.entry;
  loaded.spec_ = kernel.spec;
  loaded.threads_ = kernel.threads;
  loaded.shared_bytes_ = kernel.shared_bytes;
  if (auto found = loaded.bind_to_current_context(); !found) return tl::unexpected(std::move(found.error()));
  return loaded;
}

Result<LoadedKernel> LoadedKernel::in_current_context() const {
  LoadedKernel loaded;
  loaded.library_ = library_;
  loaded.entry_ = entry_;
  loaded.spec_ = spec_;
  loaded.threads_ = threads_;
  loaded.shared_bytes_ = shared_bytes_;
  if (auto found = loaded.bind_to_current_context(); !found) return tl::unexpected(std::move(found.error()));
  return loaded;
}

Result<void> LoadedKernel::bind_to_current_context() {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const KernelLayout layout = layout_of(spec_);
  ctas_of_range_ = layout.row_blocks_in_step;
  heads_in_step_ = layout.heads_in_step;
  if (spec_.load == LoadPath::tensor && !layout.gathers_rows)
    maps_ = std::make_unique<TensorMapCache>(
        layout.family->halves == nullptr && !(layout.copies_boxes && has_block_scales(spec_.features)) ? 1 : 2);
  // Rings in shared memory want all of it; loads straight to registers stage their lines in L1, so there the driver
  // decides.
  const auto carve_out = loads_to_registers(spec_.load) ? CarveOut::automatic : CarveOut::largest_shared;
  const auto function = load_function(library_.get(), entry_, shared_bytes_, carve_out);
  if (!function) return tl::unexpected(function.error());
  function_ = *function;
  auto counted = check((*api)->cuOccupancyMaxActiveBlocksPerMultiprocessor(&resident_, function_, threads_,
                                                                           static_cast<std::size_t>(shared_bytes_)),
                       "cuOccupancyMaxActiveBlocksPerMultiprocessor", ErrorCode::load_failed);
  if (!counted) return counted;
  if (resident_ < 1) {
    return fail(ErrorCode::load_failed,
                fmt::format("not one CTA of {} ({} threads, {} bytes of shared memory) fits an SM of this device",
                            entry_, threads_, shared_bytes_),
                "Choose fewer warps, stages or tokens per warp.");
  }
  const auto sms = current_sm_count();
  if (!sms) return tl::unexpected(sms.error());
  resident_total_ = std::int64_t{*sms} * resident_;
  return {};
}

Result<LoadedKernel> LoadedKernel::prepare(const EmittedKernel& kernel, CubinCache* cache, CompiledKernel* compiled) {
  // Asked first: without a driver a compile would be time spent for nothing.
  if (const auto api = driver(); !api) return tl::unexpected(api.error());
  auto made = compile(kernel, cache);
  if (!made) return tl::unexpected(made.error());
  auto loaded = load(kernel, *made);
  if (!loaded && loaded.error().code == ErrorCode::load_failed && made->from_cache) {
    if (const auto key = compile_key(kernel.source, kernel.spec.arch)) cache->erase(*key);
    made = compile(kernel, cache);
    if (!made) return tl::unexpected(made.error());
    loaded = load(kernel, *made);
  }
  if (loaded && compiled != nullptr) *compiled = std::move(*made);
  return loaded;
}

LoadedKernel::LoadedKernel() = default;
LoadedKernel::LoadedKernel(LoadedKernel&&) noexcept = default;
LoadedKernel& LoadedKernel::operator=(LoadedKernel&&) noexcept = default;
LoadedKernel::~LoadedKernel() = default;

Result<void> LoadedKernel::launch(const LeanDecodeArgs& args, std::int64_t grid, CUstream_st* stream, int l2_promotion,
                                  bool beside_ranks) const {
  if (grid < 1 || grid > kMostCtas) [[unlikely]] {
    return fail(ErrorCode::launch_failed, fmt::format("a grid of {} CTAs cannot be launched", grid),
                fmt::format("Choose 1 to {}.", kMostCtas));
  }
  // Where row blocks or KV heads go in step, a range has a CTA for each of them. There is one range at least, in which
  // case every output tile is whole and nothing is stored in the workspace. CTAs beyond the last whole range would have
  // nothing to do, and a grid of clusters must have whole ones.
  const std::int64_t ctas_of_range =
      heads_in_step_ ? lean_heads_in_step(static_cast<unsigned>(args.kv_heads)) : ctas_of_range_;
  const std::int64_t ranges = std::max<std::int64_t>(grid / ctas_of_range, 1);
  grid = ranges * ctas_of_range;
  const bool waits = leanattn::waits(spec_);
  if (waits && grid > resident_total_) [[unlikely]] {
    return fail(
        ErrorCode::launch_failed,
        fmt::format(
            "a grid of {} CTAs that wait for each other exceeds the {} that the SMs of this context hold at once", grid,
            resident_total_),
        "Use a smaller grid, or on one GPU a kernel with the ticket fix-up, which never waits.");
  }
  const auto api = driver();
  if (!api) [[unlikely]]
    return tl::unexpected(api.error());

  CUlaunchAttribute attributes[2]{};
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(grid);
  config.gridDimY = 1;
  config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(threads_);
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(shared_bytes_);
  config.hStream = stream;
  config.attrs = attributes;
  // Both may hold: an early start lets the prologue overlap, and a cooperative grid still becomes resident as a whole
  // once the previous kernel's CTAs leave.
  if (waits && !beside_ranks) {
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[config.numAttrs++].value.cooperative = 1;
  }
  if (spec_.pdl && !beside_ranks) {
    attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
  }
  LeanDecodeArgs filled = has_selection(spec_.features) ? lean_line_of_selection(args, spec_.features.q_len) : args;
  filled.grid_reciprocal = lean_reciprocal(static_cast<unsigned>(ranges));
  KvTensorMaps maps;
  if (maps_) {
    const TensorMapKey key = tensor_map_key(args, l2_promotion);
    if (!maps_->find(key, maps)) {
      auto encoded = encode_tensor_maps(spec_, args, l2_promotion);
      if (!encoded) [[unlikely]]
        return tl::unexpected(encoded.error());
      maps = *encoded;
      maps_->insert(key, maps);
    }
  }
  // The driver copies the parameters before it returns; kernels of other load paths have the first only.
  void* params[] = {&filled, &maps.walks[0].k, &maps.walks[0].v, &maps.walks[1].k, &maps.walks[1].v};
  const CUresult status = (*api)->cuLaunchKernelEx(&config, function_, params, nullptr);
  if (status == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) [[unlikely]] {
    return fail(ErrorCode::launch_failed,
                fmt::format("a grid of {} CTAs that wait for each other does not fit the SMs of this stream", grid),
                "Make the plan with the stream that it is launched on.");
  }
  return check(status, "cuLaunchKernelEx", ErrorCode::launch_failed);
}

}  // namespace v1
}  // namespace leanattn
