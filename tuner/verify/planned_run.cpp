// planned_run.cpp -- kernel after kernel; a group is reported as soon as its last kernel is done.
#include "tuner/verify/planned_run.hpp"

#include <algorithm>
#include <map>

namespace leanattn {
inline namespace v1 {

Result<void> verify_planned(VerifyRunner& runner, std::span<const VerifyKernel> kernels, CompileQueue& queue,
                            const PlannedRun& planned) {
  std::vector<VerifyGroup> groups;  // those that have begun, in the order of their first kernels
  const auto group_of = [&](const std::string& name) -> VerifyGroup& {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const VerifyGroup& group) { return group.name == name; });
    if (found != groups.end()) return *found;
    VerifyGroup group;
    group.name = name;
    return groups.emplace_back(std::move(group));
  };
  // How many kernels of each group are still to come. A group is reported as soon as it is complete.
  std::map<std::string, std::size_t> left;
  for (const VerifyKernel& kernel : kernels) ++left[kernel.group];
  VerifyGroup oracles;
  oracles.name = "the GPU's oracle against the CPU's: " + planned.name;

  Result<void> outcome;
  std::size_t position = 0;
  while (outcome && position < kernels.size() && !runner.cancelled()) {
    const auto choice = queue.next();
    if (!choice) break;
    VerifyGroup& group = group_of(choice->kernel->group);
    const auto run = [&]() -> Result<void> {
      const auto kernel = runner.load(group, *choice);
      if (!kernel) return tl::unexpected(kernel.error());
      if (*kernel == nullptr) return {};
      for (const PlannedCase& planned_case : planned.cases((*kernel)->spec())) {
        if (runner.cancelled()) break;
        const auto decode_case = runner.cached_case((*kernel)->spec(), planned_case.shape);
        if (!decode_case) return tl::unexpected(decode_case.error());
        if (position % planned.cross_check_every == 0) {
          if (auto ok = runner.cross_check(oracles, **decode_case); !ok) return ok;
        }
        for (const std::int64_t grid : planned_case.grids) {
          if (auto ok = runner.check(group, **decode_case, **kernel, runner.usable_grid(**kernel, grid),
                                     planned_case.launches);
              !ok)
            return ok;
        }
      }
      return {};
    };
    outcome = run();
    ++position;
    if (--left[group.name] == 0) {
      if (planned.every_group_runs && group.kernels == 0 && group.failed == 0) {
        ++group.cases;
        VerifyRunner::record_failure(group, "the compiler refuses every kernel of this group");
      }
      runner.finish(group);
      std::erase_if(groups, [name = group.name](const VerifyGroup& done) { return done.name == name; });
    }
  }
  for (VerifyGroup& group : groups)
    runner.finish(std::move(group));  // An error or a cancellation left these groups incomplete.
  if (oracles.cases > 0) runner.finish(std::move(oracles));
  return outcome;
}

}  // namespace v1
}  // namespace leanattn
