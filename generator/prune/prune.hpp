// prune.hpp -- leaves of a kernel's source what the kernel uses. Templates ask `if constexpr` for every feature; in an
// emitted kernel, whose constants are known, most of these questions are answered, and what hangs on the other answer
// is only in the reader's way. Pure functions from text to text; any thread. Internal: not installed.
//
// This understands the C++ that templates are written in, not all of it; comments, for one, are `//`. What it does not
// understand it leaves as it is.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace leanattn {
inline namespace v1 {

/// Replaces each `if constexpr`, and each other `if` that constants of namespace scope decide, by the branch that is
/// taken; likewise `#if` under nvcc or NVRTC for an architecture, 900 for sm_90. Statements behind a `return` that is
/// now unconditional go too.
std::string resolve_branches(std::string_view source, int cuda_arch);

/// Takes out the calls of functions of namespace scope that do nothing (`LEAN_DEVICE void f(...) {}`), and puts on one
/// line a function whose body is one short statement, and `#pragma unroll` with its loop, as LEAN_UNROLL. To be called
/// after resolve_branches, which leaves such functions.
std::string shorten(std::string_view source);

/// Removes the declarations of namespace scope that no `extern "C"` function and none of `roots` reaches, with the
/// comments right above them, and the modules of which nothing is left. A module begins with a comment line that starts
/// with "////".
std::string remove_unreached(std::string_view source, std::span<const std::string_view> roots = {});

/// The names in `source`, as often as it has them. Views into it.
std::vector<std::string_view> names_in(std::string_view source);

}  // namespace v1
}  // namespace leanattn
