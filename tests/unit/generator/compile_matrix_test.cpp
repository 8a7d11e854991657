// Every family x dtype x head_dim compiles under NVRTC for every arch of the matrix, without a spill. Compiled on all
// cores.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "generator/generator.hpp"
#include "runtime/compiler.hpp"

namespace leanattn {
namespace {

KernelSpec matrix_spec(Arch arch, DType dtype, int head_dim, LoadPath load, FixUp fixup, int group) {
  KernelSpec spec{
      .arch = arch, .head_dim = head_dim, .group = group, .dtype = dtype, .lse = true, .load = load, .fixup = fixup};
  spec.layout = group % 2 == 0 ? KvLayout::contiguous : KvLayout::strided;
  spec.stages = loads_to_registers(load) ? 1 : 2;
  while (!validate(spec) && spec.warps > 1) spec.warps /= 2;  // what fits the shared memory of the smaller archs
  return spec;
}

std::vector<KernelSpec> matrix() {
  std::vector<KernelSpec> specs;
  for (Arch arch : matrix_arches()) {
    for (DType dtype : {DType::bf16, DType::fp16}) {
      for (int head_dim : {64, 96, 128, 256}) {
        for (LoadPath load : {LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor, LoadPath::vector}) {
          if (load == LoadPath::bulk && arch.major < 9) continue;  // no bulk copies before Hopper
          if (load == LoadPath::tensor && (arch != Arch{9, 0, true} || head_dim % 64 != 0)) continue;  // wgmma
          for (FixUp fixup : {FixUp::ticket, FixUp::wait}) {
            // Both dtypes of a family share their register needs; alternate the group so that the matrix covers more of
            // it.
            const int group = load == LoadPath::vector ? (dtype == DType::bf16 ? 2 : 1)
                              : dtype == DType::bf16   ? 4
                              : fixup == FixUp::ticket ? 1
                                                       : 16;
            const KernelSpec spec = matrix_spec(arch, dtype, head_dim, load, fixup, group);
            if (load == LoadPath::ldg && !validate(spec)) continue;  // more registers than a thread has
            specs.push_back(spec);
          }
        }
      }
    }
  }
  return specs;
}

TEST(CompileMatrix, EveryFamilyCompilesWithoutSpillsOnEveryArch) {
  const std::vector<KernelSpec> specs = matrix();
  ASSERT_GE(specs.size(), 150u);
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> failures;
  const auto work = [&] {
    for (std::size_t i = next++; i < specs.size(); i = next++) {
      const auto kernel = emit(specs[i]);
      const auto compiled = kernel ? compile(*kernel) : tl::unexpected(kernel.error());
      std::string failure;
      if (!compiled) {
        failure = compiled.error().message + "\n" + compiled.error().log;
      } else if (compiled->resources.spill_store_bytes != 0 || compiled->resources.registers == 0) {
        failure = "spills or an unread log: " + compiled->log;
      }
      if (!failure.empty()) {
        const std::lock_guard lock(mutex);
        failures.push_back(kernel_name(specs[i]) + ": " + failure);
      }
    }
  };
  std::vector<std::jthread> workers(std::max(1u, std::thread::hardware_concurrency()));
  for (auto& worker : workers) worker = std::jthread(work);
  for (auto& worker : workers) worker.join();
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
  RecordProperty("kernels", static_cast<int>(specs.size()));
}

}  // namespace
}  // namespace leanattn
