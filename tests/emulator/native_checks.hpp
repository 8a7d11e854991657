// native_checks.hpp -- the kernels of checks (templates/check/kernels.cuh), compiled for the host. They are most of
// what a check executes, and not what it is there to try. One thread at a time.
#pragma once

#include <string_view>

#include "tests/emulator/machine.hpp"

namespace emulator {

/// The first line of the text behind cubins of these kernels, unless they have a score expression of their own.
constexpr std::string_view kChecksMark = "// The kernels of templates/check/kernels.cuh.\n";

/// Executes all CTAs, one after the other. False: it is none of these kernels.
bool run_native_check(const LaunchConfig& config);

}  // namespace emulator
