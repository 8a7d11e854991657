#include "tuner/measure/read_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "cache/cubin/cubin_db.hpp"
#include "generator/templates.hpp"
#include "runtime/cuda/compiler.hpp"

namespace leanattn {
inline namespace v1 {

std::vector<ReadVariant> read_variants(Arch arch) {
  std::vector<ReadVariant> variants = {
      {.name = "plain 2x512x4", .kernel = "read_limit_plain_4", .ctas_per_sm = 2, .threads = 512},
      {.name = "plain 4x512x4", .kernel = "read_limit_plain_4", .ctas_per_sm = 4, .threads = 512},
      {.name = "plain 2x512x8", .kernel = "read_limit_plain_8", .ctas_per_sm = 2, .threads = 512},
  };
  if (arch.major >= 9) {
    const auto bulk = [&](int ctas, int stages, int stage_bytes) {
      if (ctas * (stages * stage_bytes + 1024) > shared_bytes_per_sm(arch)) return;
      variants.push_back({.name = fmt::format("bulk {}x{}x{}k", ctas, stages, stage_bytes / 1024),
                          .kernel = "read_limit_bulk",
                          .ctas_per_sm = ctas,
                          .threads = 32,
                          .stage_bytes = stage_bytes,
                          .stages = stages});
    };
    bulk(3, 8, 8 << 10);
    bulk(2, 6, 16 << 10);
    bulk(4, 8, 4 << 10);
    bulk(1, 8, 8 << 10);
  }
  return variants;
}

std::string read_limit_source() {
  const auto templates = embedded_templates();
  const auto found = std::find_if(templates.begin(), templates.end(),
                                  [](const EmbeddedTemplate& t) { return t.name == "standalone/read_limit.cuh"; });
  assert(found != templates.end());
  return std::string(found->text);
}

Result<ReadLimit> ReadLimit::load(const DeviceFacts& device, CubinCache* cubins) {
  const Result<CompiledKernel> compiled = compile_source(read_limit_source(), device.arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  Result<LoadedSource> source = LoadedSource::load(*compiled);
  if (!source) return tl::unexpected(source.error());
  Result<DeviceBuffer> sink = DeviceBuffer::allocate(256);
  if (!sink) return tl::unexpected(sink.error());
  ReadLimit limit(std::move(*source), std::move(*sink));
  limit.sm_count_ = std::max(device.sm_count, 1);
  limit.variants_ = read_variants(device.arch);
  for (const ReadVariant& variant : limit.variants_) {
    const Result<CUfunc_st*> function = limit.source_.function(variant.kernel, device.shared_bytes_per_cta / 2);
    if (!function) return tl::unexpected(function.error());
    limit.functions_.push_back(*function);
  }
  return limit;
}

Result<void> ReadLimit::launch(std::size_t variant, const void* a, const void* b, std::int64_t bytes_each,
                               CUstream_st* stream) const {
  if (bytes_each <= 0 || bytes_each % 16 != 0) {
    return fail(ErrorCode::invalid_argument, fmt::format("a read of {} bytes", bytes_each),
                "Give a positive multiple of 16.");
  }
  for (const void* const array : {a, b}) {
    const auto address = reinterpret_cast<std::uintptr_t>(array);
    if (address % 16 != 0)
      return fail(ErrorCode::invalid_argument, fmt::format("a read from address {:#x}", address),
                  "Give a multiple of 16.");
  }
  const ReadVariant& v = variants_[variant];
  const long long chunks = bytes_each / 16;
  const LaunchDims dims{.grid_x = static_cast<unsigned>(sm_count_ * v.ctas_per_sm),
                        .threads = static_cast<unsigned>(v.threads),
                        .shared_bytes = static_cast<unsigned>(v.stage_bytes * v.stages)};
  // The driver knows only the sizes of a kernel's arguments, not their types.
  auto* sink = sink_.as<unsigned>();
  if (v.stage_bytes == 0) return launch_with(functions_[variant], dims, stream, a, b, chunks, sink);
  return launch_with(functions_[variant], dims, stream, a, b, chunks, sink, v.stage_bytes, v.stages);
}

}  // namespace v1
}  // namespace leanattn
