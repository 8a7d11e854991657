// verify_combinations.cpp -- every generated combination over a small set of shapes.
#include <algorithm>
#include <map>

#include "tuner/verify_runner.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct SmallCase {
  CaseShape shape;
  std::vector<std::int64_t> grids;
};

/// An empty request among short ones; strides with padding and a request of one token; one long request cut among many
/// CTAs, so that the fix-up becomes a tree.
const std::vector<SmallCase>& small_cases() {
  static const std::vector<SmallCase> cases{
      {{.kv_heads = 2,
        .context_lengths = {83, 0, 200},
        .context_capacity = 0,
        .padded = false,
        .data = DataKind::uniform},
       {7, 200}},
      {{.kv_heads = 3, .context_lengths = {513, 1}, .context_capacity = 600, .padded = true, .data = DataKind::peaked},
       {1, 132}},
      {{.kv_heads = 1, .context_lengths = {3000}, .context_capacity = 0, .padded = true, .data = DataKind::uniform},
       {131}},
  };
  return cases;
}

}  // namespace

Result<void> verify_all_combinations(VerifyRunner& runner, const std::vector<VerifyKernel>& kernels,
                                     CompileQueue& queue) {
  std::vector<VerifyGroup> groups;  // in order of first appearance
  const auto group_of = [&](const std::string& name) -> VerifyGroup& {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const VerifyGroup& group) { return group.name == name; });
    if (found != groups.end()) return *found;
    VerifyGroup group;
    group.name = name;
    return groups.emplace_back(std::move(group));
  };
  std::map<std::string, std::size_t>
      left;  // kernels still to come, by group: a group is reported as soon as it is complete
  for (const VerifyKernel& kernel : kernels) ++left[kernel.group];
  VerifyGroup oracles;
  oracles.name = "GPU oracle against the CPU's";

  Result<void> outcome;
  std::size_t position = 0;
  while (outcome && !runner.cancelled()) {
    const auto choice = queue.next();
    if (!choice) break;
    VerifyGroup& group = group_of(choice->kernel->group);
    const auto run = [&]() -> Result<void> {
      const auto kernel = runner.load(group, *choice);
      if (!kernel) return tl::unexpected(kernel.error());
      if (*kernel == nullptr) return {};
      for (const SmallCase& small : small_cases()) {
        const auto decode_case = runner.cached_case((*kernel)->spec(), small.shape);
        if (!decode_case) return tl::unexpected(decode_case.error());
        // The CPU's oracle is slow: a sample of cases, spread over all heads and dtypes.
        if (position % 29 == 0) {
          if (auto ok = runner.cross_check(oracles, **decode_case); !ok) return ok;
        }
        for (const std::int64_t grid : small.grids) {
          if (auto ok = runner.check(group, **decode_case, **kernel, runner.usable_grid(**kernel, grid)); !ok)
            return ok;
        }
      }
      return {};
    };
    outcome = run();
    ++position;
    if (--left[group.name] == 0) {
      runner.finish(group);
      std::erase_if(groups, [name = group.name](const VerifyGroup& done) { return done.name == name; });
    }
  }
  for (VerifyGroup& group : groups)
    runner.finish(std::move(group));  // an error or a cancellation left these incomplete
  if (oracles.cases > 0) runner.finish(std::move(oracles));
  return outcome;
}

}  // namespace v1
}  // namespace leanattn
