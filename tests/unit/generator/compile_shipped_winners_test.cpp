// compile_shipped_winners_test.cpp -- the winners that come with leanattn compile with the NVRTC that is loaded: some
// of them on every change, which the seed of the run chooses, and all of them before a release (scripts/shipped-winners
// --compile) and at night.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/layers.hpp"
#include "generator/generator.hpp"
#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/problem.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/generator/on_all_cores.hpp"

namespace leanattn {
namespace {

constexpr const char* kFile = LEANATTN_SOURCE_DIR "/data/tuning.db";

/// What is compiled of a kernel of any operation.
struct ShippedKernel {
  std::string source, entry;
  Arch arch;
};

/// The kernel of a winner. Errors: those of the text, and of emit().
Result<ShippedKernel> shipped_kernel(const std::string& config) {
  const auto named = [](auto kernel) -> Result<ShippedKernel> {
    if (!kernel) return tl::unexpected(kernel.error());
    return ShippedKernel{std::move(kernel->source), std::move(kernel->entry), kernel->spec.arch};
  };
  if (const auto recurrent = recurrent_spec_from_json(config)) return named(emit(*recurrent));
  const auto attention = config_from_json(config);
  return attention ? named(emit(attention->spec)) : tl::unexpected(attention.error());
}

/// The kernels of the file, each once.
std::vector<ShippedKernel> shipped_kernels() {
  setenv("LEANATTN_SHIPPED_DB", kFile, 1);
  unsetenv("LEANATTN_SITE_DB");
  std::vector<ShippedKernel> kernels;
  std::set<std::string> known;
  for (const LayerContents& layer : layer_contents(std::nullopt)) {
    for (const LayerContents::Device& device : layer.devices) {
      for (const auto& entry : load_layered_winners(device.model, std::nullopt).entries) {
        auto kernel = shipped_kernel(entry.winner.config);
        if (!kernel) {
          ADD_FAILURE() << entry.winner.config << ": " << kernel.error().message;
        } else if (known.insert(kernel->entry).second) {
          kernels.push_back(*std::move(kernel));
        }
      }
    }
  }
  return kernels;
}

TEST(ShippedWinners, CompileWithTheNvrtcThatIsLoaded) {
  std::vector<ShippedKernel> kernels = shipped_kernels();
  if (kernels.empty()) GTEST_SKIP() << "this tree has no winners";
  constexpr std::size_t kSome = 2;
  if (!thorough() && kernels.size() > kSome) {
    const std::size_t turns = kernels.size() / kSome, first = run_seed() % turns * kSome;
    kernels = {kernels.begin() + static_cast<std::ptrdiff_t>(first),
               kernels.begin() + static_cast<std::ptrdiff_t>(first + kSome)};
  }
  const auto version = nvrtc_version();
  ASSERT_TRUE(version) << version.error().message;
  std::printf("NVRTC %s: %zu kernels\n", version->c_str(), kernels.size());
  expect_no_failure(kernels.size(), [&](std::size_t i) -> std::string {
    const ShippedKernel& kernel = kernels[i];
    const auto compiled = compile_kernel(kernel.source, kernel.entry, kernel.arch, nullptr);
    return compiled ? "" : compiled.error().message + "\n" + compiled.error().log;
  });
}

}  // namespace
}  // namespace leanattn
