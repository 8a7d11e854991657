// themes.cpp -- the table of themes, and those without CUDA graphs.
#include "tuner/verify/themes.hpp"

#include <algorithm>
#include <random>

#include "tuner/verify/compile_queue.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Grids that every kernel must accept: one CTA, a prime number, an H200's number of SMs and one less, and more.
constexpr std::int64_t kGrids[] = {1, 7, 131, 132, 200};
/// Far more CTAs than these shapes have LeanTiles.
constexpr std::int64_t kMoreThanTiles = 12345;

std::vector<int> random_lengths(std::uint64_t seed, int batch, int limit) {
  std::mt19937_64 random(seed);
  std::vector<int> lengths(static_cast<std::size_t>(batch));
  for (int& length : lengths) length = static_cast<int>(random() % (static_cast<std::uint64_t>(limit) + 1));
  return lengths;
}

Result<void> contexts_one_by_one(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  constexpr int kLast = 300;
  auto decode_case = runner.make_case(kernel.spec(), {.kv_heads = 2,
                                                      .context_lengths = {kLast},
                                                      .context_capacity = kLast + 20,
                                                      .padded = false,
                                                      .data = DataKind::uniform});
  if (!decode_case) return tl::unexpected(decode_case.error());
  const int step = runner.options().quick ? 7 : 1;
  for (int context = 1; context <= kLast && !runner.cancelled(); context += step) {
    if (auto ok = decode_case->set_context_lengths({context}, runner.stream()); !ok) return ok;
    const LaunchGrid grid = runner.usable_grid(kernel, kGrids[static_cast<std::size_t>(context) % std::size(kGrids)]);
    if (auto ok = runner.check(group, *decode_case, kernel, grid); !ok) return ok;
  }
  return {};
}

Result<void> long_contexts(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  for (const int context : {4096, 65536, 1048576}) {
    for (const DataKind data : {DataKind::uniform, DataKind::coverage}) {
      if (runner.cancelled()) return {};
      const auto memory = device_memory();
      if (!memory) return tl::unexpected(memory.error());
      const std::int64_t kv_bytes = std::int64_t{context} * kernel.spec().head_dim * 2 * 2;
      if (kv_bytes * 2 > memory->free_bytes) continue;  // A small GPU checks the shorter contexts only.
      auto decode_case = runner.make_case(
          kernel.spec(),
          {.kv_heads = 1, .context_lengths = {context}, .context_capacity = 0, .padded = false, .data = data});
      if (!decode_case) return tl::unexpected(decode_case.error());
      for (const std::int64_t grid : {std::int64_t{1}, std::int64_t{132}, std::int64_t{200}, std::int64_t{2000}}) {
        if (grid == 1 && context > 65536) continue;  // One CTA is slow, and 64k takes the same path.
        if (auto ok = runner.check(group, *decode_case, kernel, runner.usable_grid(kernel, grid)); !ok) return ok;
      }
    }
  }
  return {};
}

Result<void> ragged_batches(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  // Some requests are empty, have a negative length, which counts as empty, or a length that is clamped to the
  // capacity.
  const std::vector<int> kBatches[] = {
      {0, 1, 300, -5, 4096, 17, 0, 70000, 64}, {0}, {0, 0, 0}, {5000, 0, 0, 0, 0, 0, 1}, {1, 1, 1, 1, 1, 5000}};
  for (const std::vector<int>& lengths : kBatches) {
    const auto decode_case = runner.cached_case(kernel.spec(), {.kv_heads = 2,
                                                                .context_lengths = lengths,
                                                                .context_capacity = 5000,
                                                                .padded = true,
                                                                .data = DataKind::peaked});
    if (!decode_case) return tl::unexpected(decode_case.error());
    for (const std::int64_t grid : kGrids) {
      if (runner.cancelled()) return {};
      if (auto ok = runner.check(group, **decode_case, kernel, runner.usable_grid(kernel, grid)); !ok) return ok;
    }
    if (auto ok = runner.check(group, **decode_case, kernel, runner.usable_grid(kernel, kMoreThanTiles)); !ok)
      return ok;
  }
  return {};
}

Result<void> batch_sizes(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  constexpr std::int64_t kMostElements = 8 << 20;  // of O, above which the host's comparison takes seconds
  constexpr int kLargest = 8300;                   // for small heads only, because it takes long
  for (const int batch : {2, 31, 32, 33, 64, 100, 256, 257, 1031, 4096, 4200, kLargest}) {
    const std::int64_t elements = std::int64_t{batch} * kernel.spec().group * kernel.spec().head_dim;
    if (elements > (batch == kLargest ? kMostElements / 4 : kMostElements)) continue;
    const auto lengths =
        random_lengths(runner.options().seed + static_cast<std::uint64_t>(batch), batch, batch > 300 ? 40 : 250);
    auto decode_case = runner.make_case(kernel.spec(), {.kv_heads = 1,
                                                        .context_lengths = lengths,
                                                        .context_capacity = 0,
                                                        .padded = batch % 2 == 1,
                                                        .data = DataKind::uniform});
    if (!decode_case) return tl::unexpected(decode_case.error());
    for (const std::int64_t grid : {std::int64_t{7}, std::int64_t{132}, std::int64_t{2500}}) {
      if (runner.cancelled()) return {};
      if (auto ok = runner.check(group, *decode_case, kernel, runner.usable_grid(kernel, grid)); !ok) return ok;
    }
  }
  return {};
}

Result<void> extreme_logits(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  const auto decode_case = runner.cached_case(kernel.spec(), {.kv_heads = 2,
                                                              .context_lengths = {1, 64, 777, 3000, 2},
                                                              .context_capacity = 0,
                                                              .padded = false,
                                                              .data = DataKind::extreme});
  if (!decode_case) return tl::unexpected(decode_case.error());
  for (const std::int64_t grid : {std::int64_t{7}, std::int64_t{132}}) {
    if (auto ok = runner.check(group, **decode_case, kernel, runner.usable_grid(kernel, grid)); !ok) return ok;
  }
  return {};
}

Result<void> repeated_launches(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  constexpr int kLaunches = 20;
  const auto decode_case = runner.cached_case(kernel.spec(), {.kv_heads = 3,
                                                              .context_lengths = {2500, 0, 700, 33},
                                                              .context_capacity = 0,
                                                              .padded = false,
                                                              .data = DataKind::peaked});
  if (!decode_case) return tl::unexpected(decode_case.error());
  for (const std::int64_t grid : {std::int64_t{57}, std::int64_t{132}, std::int64_t{400}}) {
    if (auto ok = runner.check(group, **decode_case, kernel, runner.usable_grid(kernel, grid), kLaunches); !ok)
      return ok;
  }
  return {};
}

/// Shapes and grids in random order on one workspace, which is not zeroed in between.
Result<void> one_workspace(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  const CaseShape kShapes[] = {
      {.kv_heads = 1, .context_lengths = {900}, .context_capacity = 0, .padded = false, .data = DataKind::uniform},
      {.kv_heads = 4, .context_lengths = {10, 400}, .context_capacity = 0, .padded = true, .data = DataKind::uniform},
      {.kv_heads = 2,
       .context_lengths = random_lengths(runner.options().seed, 40, 120),
       .context_capacity = 0,
       .padded = false,
       .data = DataKind::peaked},
      {.kv_heads = 8,
       .context_lengths = {1500, 0, 1},
       .context_capacity = 0,
       .padded = false,
       .data = DataKind::uniform},
  };
  std::mt19937_64 random(runner.options().seed);
  for (int i = 0; i < 40 && !runner.cancelled(); ++i) {
    const auto decode_case = runner.cached_case(kernel.spec(), kShapes[random() % std::size(kShapes)]);
    if (!decode_case) return tl::unexpected(decode_case.error());
    const auto grid = static_cast<std::int64_t>(1 + random() % 400);
    if (auto ok = runner.check(group, **decode_case, kernel, runner.usable_grid(kernel, grid)); !ok) return ok;
  }
  return {};
}

struct Theme {
  const char* name;
  Result<void> (*run)(VerifyRunner&, VerifyGroup&, const LoadedKernel&);
  bool needs_pdl = false;  ///< whether it applies to kernels with programmatic dependent launch only
};

constexpr Theme kThemes[] = {
    {"contexts of 1 to 300 tokens, with NaN behind each", contexts_one_by_one},
    {"contexts of 4k, 64k and 1M tokens", long_contexts},
    {"ragged batches, empty requests, clamped lengths", ragged_batches},
    {"batches of 2 to 8300 requests", batch_sizes},
    {"logits of +-1e4", extreme_logits},
    {"20 launches with equal bits", repeated_launches},
    {"one workspace for many shapes and grids", one_workspace},
    {"replays of one graph with changing lengths", verify_graph_replays},
    {"launches back to back in a graph", verify_back_to_back},
    {"dependent launches whose q and newest tokens come late", verify_dependent_chain, true},
};

using LoadedKernels = std::vector<std::unique_ptr<LoadedKernel>>;

/// The kernels on which a theme runs. If quick, one with each fix-up, which the themes take in turn.
std::vector<const LoadedKernel*> kernels_of(std::size_t theme, const LoadedKernels& kernels, bool quick) {
  std::vector<const LoadedKernel*> with[2];
  for (const auto& kernel : kernels) {
    const KernelSpec& spec = kernel->spec();
    if (spec.pdl || !kThemes[theme].needs_pdl) with[quick && spec.fixup == FixUp::wait].push_back(kernel.get());
  }
  if (!quick) return with[0];
  std::vector<const LoadedKernel*> chosen;
  for (const auto& some : with) {
    if (!some.empty()) chosen.push_back(some[theme % some.size()]);
  }
  return chosen;
}

}  // namespace

Result<LoadedKernels> load_representatives(VerifyRunner& runner, std::size_t count, CompileQueue& queue) {
  VerifyGroup group;
  group.name = "representative kernels compile and load";
  LoadedKernels loaded;
  for (std::size_t i = 0; i < count && !runner.cancelled(); ++i) {
    const auto choice = queue.next();
    if (!choice) break;
    const std::int64_t failed_before = group.failed;
    auto kernel = runner.load(group, *choice);
    if (!kernel) return tl::unexpected(kernel.error());
    if (group.failed == failed_before) ++group.cases;
    if (*kernel != nullptr) loaded.push_back(std::move(*kernel));
  }
  if (group.cases > 0) runner.finish(std::move(group));
  return loaded;
}

Result<void> verify_themes(VerifyRunner& runner, const LoadedKernels& kernels) {
  for (std::size_t number = 0; number < std::size(kThemes); ++number) {
    const Theme& theme = kThemes[number];
    VerifyGroup group;
    group.name = theme.name;
    Result<void> outcome;
    for (const LoadedKernel* kernel : kernels_of(number, kernels, runner.options().quick)) {
      if (runner.cancelled() || !outcome) break;
      const std::int64_t cases_before = group.cases;
      outcome = theme.run(runner, group, *kernel);
      if (group.cases > cases_before) ++group.kernels;  // Some themes do not apply to some kernels.
    }
    if (group.cases > 0) runner.finish(std::move(group));
    if (!outcome) return outcome;
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
