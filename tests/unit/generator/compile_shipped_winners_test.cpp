// compile_shipped_winners_test.cpp -- the winners that come with leanattn compile with the NVRTC that is loaded: some
// of them on every change, which the seed of the run chooses, and all of them before a release (scripts/shipped-winners
// --compile) and at night.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cache/layers.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/problem.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/generator/on_all_cores.hpp"

namespace leanattn {
namespace {

constexpr const char* kFile = LEANATTN_SOURCE_DIR "/data/tuning.db";

/// The kernels of the file, each once.
std::vector<KernelSpec> shipped_kernels() {
  setenv("LEANATTN_SHIPPED_DB", kFile, 1);
  unsetenv("LEANATTN_SITE_DB");
  std::vector<KernelSpec> kernels;
  for (const LayerContents& layer : layer_contents(std::nullopt)) {
    for (const LayerContents::Device& device : layer.devices) {
      for (const auto& entry : load_layered_winners(device.model, std::nullopt).entries) {
        const auto config = config_from_json(entry.winner.config);
        if (!config) {
          ADD_FAILURE() << entry.winner.config << ": " << config.error().message;
        } else if (std::find(kernels.begin(), kernels.end(), config->spec) == kernels.end()) {
          kernels.push_back(config->spec);
        }
      }
    }
  }
  return kernels;
}

TEST(ShippedWinners, CompileWithTheNvrtcThatIsLoaded) {
  std::vector<KernelSpec> kernels = shipped_kernels();
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
    const auto kernel = emit(kernels[i]);
    const auto compiled = kernel ? compile(*kernel) : tl::unexpected(kernel.error());
    return compiled ? "" : compiled.error().message + "\n" + compiled.error().log;
  });
}

}  // namespace
}  // namespace leanattn
