// bench_cold.cpp -- what the first launch of a kernel costs: emitting its source, compiling, reading cubin.db and, on a
// GPU, loading.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "cache/cubin/cubin_db.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/lookup/default_config.hpp"
#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

/// The kernel of an untuned Llama-3-8B decode.
KernelSpec default_spec() {
  return default_config({facts_for_arch({9, 0, true}, 132).value(), {}, {.longest_context = 8192}}).spec;
}

void spec_to_source(benchmark::State& state) {
  const KernelSpec spec = default_spec();
  for (auto _ : state) benchmark::DoNotOptimize(emit(spec));
}
BENCHMARK(spec_to_source)->Unit(benchmark::kMicrosecond);

void spec_to_cubin(benchmark::State& state) {
  const KernelSpec spec = default_spec();
  for (auto _ : state) {
    const auto emitted = emit(spec);
    const auto compiled = compile(*emitted);
    if (!compiled) return state.SkipWithError(compiled.error().message.c_str());
  }
}
BENCHMARK(spec_to_cubin)->Unit(benchmark::kMillisecond);

/// The time includes opening the database, which a process does once, before its first kernel.
void spec_to_cubin_from_cubin_db(benchmark::State& state) {
  const TemporaryDirectory directory(std::filesystem::temp_directory_path());
  const KernelSpec spec = default_spec();
  {
    const auto cache = open_cubin_db(directory.path(), nullptr);
    const auto compiled = compile(*emit(spec), cache.get());
    if (!compiled) return state.SkipWithError(compiled.error().message.c_str());
  }
  for (auto _ : state) {
    const auto cache = open_cubin_db(directory.path(), nullptr);
    const auto compiled = compile(*emit(spec), cache.get());
    if (!compiled || !compiled->from_cache) return state.SkipWithError("cubin.db did not have the kernel");
  }
}
BENCHMARK(spec_to_cubin_from_cubin_db)->Unit(benchmark::kMillisecond);

/// For this machine's GPU. With `cached` the kernel comes from cubin.db, else it is compiled every time.
void spec_to_loaded_kernel(benchmark::State& state, bool cached) {
  const auto context = Context::retain(0);
  if (!context) return state.SkipWithError(context.error().message.c_str());
  const auto facts = device_facts(0);
  if (!facts) return state.SkipWithError(facts.error().message.c_str());
  const KernelSpec spec = default_config({*facts, {}, {.longest_context = 8192}}).spec;
  const TemporaryDirectory directory(std::filesystem::temp_directory_path());
  if (cached) {
    const auto cache = open_cubin_db(directory.path(), nullptr);
    if (const auto stored = compile(*emit(spec), cache.get()); !stored)
      return state.SkipWithError(stored.error().message.c_str());
  }
  for (auto _ : state) {
    const auto cache = cached ? open_cubin_db(directory.path(), nullptr) : nullptr;
    CompiledKernel compiled;
    const auto loaded = LoadedKernel::prepare(*emit(spec), cache.get(), &compiled);
    if (!loaded) return state.SkipWithError(loaded.error().message.c_str());
    if (compiled.from_cache != cached) return state.SkipWithError("cubin.db did not have the kernel");
  }
}
BENCHMARK_CAPTURE(spec_to_loaded_kernel, compiled, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(spec_to_loaded_kernel, from_cubin_db, true)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace leanattn

BENCHMARK_MAIN();
