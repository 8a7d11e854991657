// oracle_kernels.cpp -- compiles, loads and enqueues templates/check_kernels.cuh.
#include "tuner/oracle_kernels.hpp"

#include <algorithm>
#include <cassert>
#include <string_view>

#include "cache/cubin_db.hpp"
#include "generator/templates.hpp"
#include "runtime/compiler.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr unsigned kThreads = 512;               // kCheckThreads of templates/check_kernels.cuh
constexpr std::int64_t kMostBlocksPerRow = 256;  // of a fill: enough to saturate memory with one row
constexpr std::int64_t kMostGridY = 65535;

int format_of(DType dtype) { return dtype == DType::bf16 ? 0 : 1; }

LaunchDims dims(std::int64_t grid_x, std::int64_t grid_y = 1) {
  return {.grid_x = static_cast<unsigned>(grid_x), .grid_y = static_cast<unsigned>(grid_y), .threads = kThreads};
}

}  // namespace

std::string oracle_source() {
  std::string source = "// Helper kernels of leanattn's checks: fill, FP64 oracle, plain implementation.\n";
  for (const std::string_view name : {"kernel_args.cuh", "check_data.cuh", "check_kernels.cuh"}) {
    const auto templates = embedded_templates();
    const auto found =
        std::find_if(templates.begin(), templates.end(), [&](const EmbeddedTemplate& t) { return t.name == name; });
    assert(found != templates.end());
    source.append("// ---- templates/").append(name).append(" ----\n").append(found->text).append("\n");
  }
  return source;
}

Result<std::shared_ptr<const OracleKernels>> OracleKernels::load(Arch arch, CubinCache* cubins) {
  const Result<CompiledKernel> compiled = compile_source(oracle_source(), arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  Result<LoadedSource> loaded = LoadedSource::load(*compiled);
  if (!loaded) return tl::unexpected(loaded.error());
  std::shared_ptr<OracleKernels> kernels(new OracleKernels(std::move(*loaded)));
  const std::pair<const char*, CUfunc_st**> entries[] = {{"check_fill_q", &kernels->fill_q_},
                                                         {"check_fill_kv", &kernels->fill_kv_},
                                                         {"check_oracle", &kernels->oracle_},
                                                         {"check_plain", &kernels->plain_}};
  for (const auto& [name, slot] : entries) {
    const Result<CUfunc_st*> function = kernels->source_.function(name);
    if (!function) return tl::unexpected(function.error());
    *slot = *function;
  }
  return std::shared_ptr<const OracleKernels>(std::move(kernels));
}

Result<void> OracleKernels::fill_q(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim, DataKind kind,
                                   std::uint64_t seed, CUstream_st* stream) const {
  const std::int64_t rows = std::int64_t{args.batch} * q_heads;
  return launch_with(fill_q_, dims(std::min<std::int64_t>(rows, 65536)), stream, args, format_of(dtype), q_heads,
                     head_dim, static_cast<int>(kind), static_cast<unsigned long long>(seed));
}

Result<void> OracleKernels::fill_kv(const LeanDecodeArgs& args, DType dtype, int head_dim, DataKind kind,
                                    std::uint64_t seed, CUstream_st* stream) const {
  const std::int64_t rows = std::int64_t{args.batch} * args.kv_heads;
  const std::int64_t chunks = std::int64_t{args.context_capacity} * (head_dim / 8);
  const std::int64_t blocks = std::clamp<std::int64_t>((chunks + kThreads - 1) / kThreads, 1, kMostBlocksPerRow);
  return launch_with(fill_kv_, dims(blocks, std::min(rows, kMostGridY)), stream, args, format_of(dtype), head_dim,
                     static_cast<int>(kind), static_cast<unsigned long long>(seed));
}

Result<void> OracleKernels::oracle(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim,
                                   std::int64_t first_row, std::int64_t rows, std::int64_t longest, double* weights,
                                   double* o, double* lse, CUstream_st* stream) const {
  return launch_with(oracle_, dims(rows), stream, args, format_of(dtype), q_heads, head_dim,
                     static_cast<long long>(first_row), static_cast<long long>(longest), weights, o, lse);
}

Result<void> OracleKernels::plain(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim,
                                  std::int64_t first_row, std::int64_t rows, std::int64_t longest, float* weights,
                                  std::uint16_t* o, CUstream_st* stream) const {
  return launch_with(plain_, dims(rows), stream, args, format_of(dtype), q_heads, head_dim,
                     static_cast<long long>(first_row), static_cast<long long>(longest), weights,
                     static_cast<unsigned short*>(o));
}

}  // namespace v1
}  // namespace leanattn
