// dependent_chain.cpp -- the kernel of a DependentChain and its launches.
#include "tuner/oracle/dependent_chain.hpp"

#include <algorithm>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/compiler.hpp"
#include "tuner/oracle/decode_case_detail.hpp"
#include "tuner/oracle/oracle_kernels.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

enum Step { kTake = 0, kSpoil = 1, kPutBack = 2 };  // the values of chain_rows' argument `step`

constexpr unsigned kConsumerThreads = 128;
constexpr std::int64_t kMostBlocks = 64;  // so few that the kernel behind it finds free SMs

// The rows are those of the query tokens, which are the last tokens of their contexts: first q's [query tokens,
// q_heads], then k's and v's [query tokens, kv_heads]. `kept` holds them densely.
constexpr const char* kSource = R"cuda(
extern "C" __global__ void __launch_bounds__(128)
    chain_rows(LeanDecodeArgs args, CheckFeatures check, unsigned* kept, int step, unsigned delay_ns) {
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
  const long long tokens = check_all_query_tokens(args, check);
  const long long q_rows = tokens * check.q_heads, kv_rows = tokens * args.kv_heads;
  const int element_bytes = check.kv_format == kCheckSame ? 2 : 1;
  const int per_byte = check.kv_format == kCheckInt4 ? 2 : 1;
  const int widest = max(check.head_dim, check.v_head_dim) / 2;   // words of 4 bytes
  // A scale behind each row comes with it.
  const int k_words = (check.row_bytes > 0 ? check.row_bytes : check.head_dim * element_bytes / per_byte) / 4;
  const int scale_words = (const char*)args.k_scale == (const char*)args.k + 4 * k_words ? 1 : 0;
  for (long long row = blockIdx.x; row < q_rows + 2 * kv_rows; row += gridDim.x) {
    const bool is_q = row < q_rows, is_k = row < q_rows + kv_rows;
    const int heads = is_q ? check.q_heads : args.kv_heads;
    const long long of_tensor = is_q ? row : (row - q_rows) % kv_rows;
    const int head = (int)(of_tensor % heads);
    const auto [request, t] = check_query_token_at(args, check, of_tensor / heads);
    const int query_tokens = check_query_tokens(args, check, request);
    const int token = check_context(args, check, request) - query_tokens + t;
    if (!is_q && token < 0) continue;   // This row does not exist.
    if (!is_q && check.append == 0 && check_in_hole(args, check, request, token)) continue;   // Nor does this one.
    char* address;
    int words = check.head_dim / 2;
    if (is_q) {
      address = (char*)check_q_row(args, check, request, t, head);
    } else if (!is_k && check.latent != 0) {
      continue;   // V has no rows of its own.
    } else if (check.append != 0) {
      address = (char*)check_new_row(args, check, is_k ? kCheckK : kCheckV, request, t, head);
      words = (is_k ? check.head_dim : check.v_head_dim) / 2;
    } else if (is_k) {
      address = (char*)args.k + check_k_offset(args, check, request, head, token) * element_bytes;
      words = k_words + scale_words;
    } else {
      address = (char*)args.v + check_v_offset(args, check, request, head, token) * element_bytes;
      words = check.v_head_dim * element_bytes / per_byte / 4 + scale_words;
    }
    for (int word = threadIdx.x; word < words; word += blockDim.x) {
      unsigned* there = (unsigned*)address + word;
      unsigned* here = kept + row * widest + word;
      if (step == 0) *here = *there;
      if (step == 1) *there = ~0u;   // NaN in all formats but int8 and int4
      if (step == 2) *there = *here;
    }
  }
}
)cuda";

}  // namespace

std::string dependent_chain_source() {
  std::string source = "// The kernel in front of a dependent launch that is checked.\n";
  source += kAllArguments;
  for (const std::string_view name : {"kernel_args.cuh", "check/features.cuh", "check/data.cuh", "check/layout.cuh"})
    append_template(source, name);
  return source + kSource;
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
  check_ = decode_case.check_arguments();
  const std::int64_t bytes = rows() * std::max(check_.head_dim, check_.v_head_dim) * 2;
  if (rows_.bytes() < bytes) {
    // Launches that read the old rows may still run.
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

std::int64_t DependentChain::rows() const {
  return all_query_tokens(args_, check_) * (check_.q_heads + 2 * args_.kv_heads);
}

Result<void> DependentChain::launch(int step, unsigned delay_ns, CUstream_st* stream) const {
  const LaunchDims dims{.grid_x = static_cast<unsigned>(std::clamp<std::int64_t>(rows(), 1, kMostBlocks)),
                        .threads = kConsumerThreads};
  return launch_with(kernel_, dims, stream, args_, check_, rows_.data(), step, delay_ns);
}

}  // namespace v1
}  // namespace leanattn
