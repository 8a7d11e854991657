// default_config.hpp -- the safe configurations, from which everything else starts. Pure functions; any thread.
#pragma once

#include <optional>
#include <vector>

#include "leanattn/error.hpp"
#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// The first of default_configs(). It is safe on every supported GPU, because its CTAs are resident all at once and
/// need few registers. They wait for nobody (tickets), except as with_fitting_fix_up() says.
Config default_config(const DecodeStep& step);

/// Whether GPUs of this architecture have kernels for the problem, which must be valid. Errors: unsupported.
Result<void> validate_on(const DeviceFacts& device, const DecodeProblem& problem);

/// The default, followed by those to try when this NVRTC cannot compile it well: the same with tickets, where
/// its CTAs wait for each other, and then other kernels. There is always one. All of them are valid if the problem is,
/// and validate_on() the device.
std::vector<Config> default_configs(const DecodeStep& step);

/// The exchange_order that kernels of a group's ranks must have; nullopt without a group, where any will do. Ranks
/// have parts of different sizes, whose look-ups need not agree, but their columns must have one order: that of the
/// default kernel, which does not depend on the shape.
std::optional<int> order_of_group(const DeviceFacts& device, const DecodeProblem& problem);

/// `config` with the fix-up `wait` instead of `ticket` where CTAs share output tiles whose partials are so large that
/// one CTA would take long to merge them alone, and all CTAs are resident at once; else `config` itself. For
/// configurations that were not measured for this step.
Config with_fitting_fix_up(const DecodeStep& step, Config config);

}  // namespace v1
}  // namespace leanattn
