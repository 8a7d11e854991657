#include "runtime/recurrent/recurrent_kernel.hpp"

#include "runtime/cuda/compiler.hpp"

namespace leanattn {
inline namespace v1 {

Result<RecurrentKernel> RecurrentKernel::prepare(const RecurrentSpec& spec, CubinCache* cubins) {
  const auto emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  return prepare(*emitted, cubins);
}

Result<RecurrentKernel> RecurrentKernel::prepare(const EmittedRecurrent& emitted, CubinCache* cubins) {
  const auto compiled = compile_kernel(emitted.source, emitted.entry, emitted.spec.arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  auto source = LoadedSource::load(*compiled);
  if (!source) return tl::unexpected(source.error());
  RecurrentKernel kernel(emitted.spec, *std::move(source));
  const auto function =
      kernel.source_.function(emitted.entry, 0, ctas_of_cluster(emitted.spec) > kPortableCtasOfCluster);
  if (!function) return tl::unexpected(function.error());
  kernel.function_ = *function;
  kernel.resources_ = compiled->resources;
  return kernel;
}

Result<void> RecurrentKernel::launch(const LeanRecurrentArgs& args, int batch, CUstream_st* stream) const {
  if (batch == 0) return {};
  const LaunchDims dims{.grid_x = static_cast<unsigned>(ctas_of_head(spec_)),
                        .grid_y = static_cast<unsigned>(spec_.problem.v_heads),
                        .grid_z = static_cast<unsigned>(batch),
                        .threads = static_cast<unsigned>(32 * spec_.tunables.warps)};
  return launch_with(function_, dims, stream, args);
}

}  // namespace v1
}  // namespace leanattn
