// dependent_chain.cpp -- the kernel of a DependentChain, and its launches.
#include "tuner/dependent_chain.hpp"

#include <algorithm>
#include <cassert>

#include "cache/cubin_db.hpp"
#include "generator/templates.hpp"
#include "runtime/compiler.hpp"
#include "tuner/decode_case_detail.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

enum Step { kTake = 0, kSpoil = 1, kPutBack = 2 };  // of chain_rows

constexpr unsigned kThreads = 128;
constexpr std::int64_t kMostBlocks = 64;  // so that the kernel behind it finds free SMs to start on

// Rows are counted [batch, q_heads] of q, then [batch, kv_heads] of k, then of v; `kept` holds them densely.
constexpr const char* kSource = R"cuda(
extern "C" __global__ void __launch_bounds__(128)
    chain_rows(LeanDecodeArgs args, int q_heads, int head_dim, uint4* kept, int step, unsigned delay_ns) {
#if __CUDA_ARCH__ >= 900
  if (step == 2) asm volatile("griddepcontrol.launch_dependents;");
#endif
  if (delay_ns > 0) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < delay_ns);
  }
  const long long q_rows = (long long)args.batch * q_heads, kv_rows = (long long)args.batch * args.kv_heads;
  const int chunks = head_dim / 8;   // of 16 bytes
  for (long long row = blockIdx.x; row < q_rows + 2 * kv_rows; row += gridDim.x) {
    unsigned short* place;
    if (row < q_rows) {
      place = (unsigned short*)args.q + row / q_heads * args.q_stride_batch + row % q_heads * args.q_stride_head;
    } else {
      const bool is_k = row < q_rows + kv_rows;
      const long long of_kv = (row - q_rows) % kv_rows, request = of_kv / args.kv_heads, head = of_kv % args.kv_heads;
      const int length = min(max(args.context_lengths[request], 0), args.context_capacity);
      if (length == 0) continue;   // no token to produce
      const long long token = length - 1;
      place = is_k ? (unsigned short*)args.k + request * args.k_stride_batch + head * args.k_stride_head + token * args.k_stride_token
                   : (unsigned short*)args.v + request * args.v_stride_batch + head * args.v_stride_head + token * args.v_stride_token;
    }
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
      uint4* there = (uint4*)place + chunk;
      uint4* here = kept + row * chunks + chunk;
      if (step == 0) *here = *there;
      if (step == 1) *there = make_uint4(~0u, ~0u, ~0u, ~0u);   // NaN in bf16 and fp16
      if (step == 2) *there = *here;
    }
  }
}
)cuda";

}  // namespace

std::string dependent_chain_source() {
  const auto templates = embedded_templates();
  const auto found = std::find_if(templates.begin(), templates.end(),
                                  [](const EmbeddedTemplate& t) { return t.name == "kernel_args.cuh"; });
  assert(found != templates.end());
  return "// What comes before a dependent launch under test.\n" + std::string(found->text) + kSource;
}

Result<DependentChain> DependentChain::load(Arch arch, CubinCache* cubins) {
  const Result<CompiledKernel> compiled = compile_source(dependent_chain_source(), arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  Result<LoadedSource> loaded = LoadedSource::load(*compiled);
  if (!loaded) return tl::unexpected(loaded.error());
  DependentChain chain(std::move(*loaded));
  const Result<CUfunc_st*> kernel = chain.source_.function("chain_rows");
  if (!kernel) return tl::unexpected(kernel.error());
  chain.kernel_ = *kernel;
  return chain;
}

Result<void> DependentChain::take(const DecodeCase& decode_case, CUstream_st* stream) {
  args_ = decode_case.args();
  q_heads_ = decode_case.problem().q_heads;
  head_dim_ = decode_case.problem().head_dim;
  const std::int64_t rows = std::int64_t{args_.batch} * (q_heads_ + 2 * args_.kv_heads);
  const std::int64_t bytes = rows * head_dim_ * 2;
  if (rows_.bytes() < bytes) {
    // Launches that read the old rows may still be in flight.
    LEANATTN_TRY(decode_case_detail::wait_for(stream));
    auto grown = DeviceBuffer::allocate(bytes);
    if (!grown) return tl::unexpected(grown.error());
    rows_ = std::move(*grown);
  }
  return launch(kTake, 0, stream);
}

Result<void> DependentChain::produce(CUstream_st* stream, unsigned delay_ns) const {
  LEANATTN_TRY(launch(kSpoil, 0, stream));
  return launch(kPutBack, delay_ns, stream);
}

Result<void> DependentChain::launch(int step, unsigned delay_ns, CUstream_st* stream) const {
  const std::int64_t rows = std::int64_t{args_.batch} * (q_heads_ + 2 * args_.kv_heads);
  const LaunchDims dims{.grid_x = static_cast<unsigned>(std::min(rows, kMostBlocks)), .threads = kThreads};
  return launch_with(kernel_, dims, stream, args_, q_heads_, head_dim_, rows_.data(), step, delay_ns);
}

}  // namespace v1
}  // namespace leanattn
