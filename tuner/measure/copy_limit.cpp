#include "tuner/measure/copy_limit.hpp"

#include <algorithm>

#include "generator/integers.hpp"
#include "generator/templates.hpp"
#include "runtime/cuda/compiler.hpp"

namespace leanattn {
inline namespace v1 {

std::vector<CopyVariant> CopyLimit::variants() {
  return {{.name = "128x4", .loads = 4, .threads = 128},
          {.name = "256x4", .loads = 4, .threads = 256},
          {.name = "128x8", .loads = 8, .threads = 128},
          {.name = "256x8", .loads = 8, .threads = 256},
          {.name = "4x512x4", .loads = 4, .threads = 512, .ctas_per_sm = 4},
          {.name = "2x512x8", .loads = 8, .threads = 512, .ctas_per_sm = 2}};
}

Result<CopyLimit> CopyLimit::load(const DeviceFacts& device, CubinCache* cubins) {
  const auto compiled =
      compile_source(joined_templates("// What reading and writing an array takes.", {"standalone/copy_limit.cuh"}),
                     device.arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  auto source = LoadedSource::load(*compiled);
  if (!source) return tl::unexpected(source.error());
  CopyLimit limit(*std::move(source));
  limit.sm_count_ = std::max(device.sm_count, 1);
  const auto four = limit.source_.function("copy_limit_4"), eight = limit.source_.function("copy_limit_8");
  if (!four) return tl::unexpected(four.error());
  if (!eight) return tl::unexpected(eight.error());
  limit.four_ = *four, limit.eight_ = *eight;
  return limit;
}

Result<void> CopyLimit::launch(const CopyVariant& variant, void* data, std::int64_t bytes, int writes,
                               CUstream_st* stream) const {
  const long long chunks = bytes / 16;
  const std::int64_t runs = divide_up(bytes, std::int64_t{16} * variant.threads * variant.loads);
  const std::int64_t ctas =
      variant.ctas_per_sm == 0 ? runs : std::min<std::int64_t>(runs, std::int64_t{sm_count_} * variant.ctas_per_sm);
  return launch_with(variant.loads == 4 ? four_ : eight_,
                     {.grid_x = static_cast<unsigned>(ctas), .threads = static_cast<unsigned>(variant.threads)}, stream,
                     data, chunks, writes);
}

}  // namespace v1
}  // namespace leanattn
