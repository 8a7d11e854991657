// ptxas_log.cpp -- finds registers, spills, shared memory and serialised wgmma in the log of `ptxas -v`.
#include "runtime/cuda/ptxas_log.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::string_view kSpaces = " \t";

/// The number in front of `unit` in a line such as "8 bytes spill stores"; 0 when there is none. ptxas may put any
/// number of spaces between the two.
int number_before(std::string_view line, std::string_view unit) {
  const auto at = line.find(unit);
  if (at == std::string_view::npos) return 0;
  const auto last = line.find_last_not_of(kSpaces, at == 0 ? 0 : at - 1);
  if (last == std::string_view::npos || at == 0) return 0;
  const auto before = line.find_last_not_of("0123456789", last);
  const auto first = before == std::string_view::npos ? 0 : before + 1;
  int value = 0;
  std::from_chars(line.data() + first, line.data() + last + 1, value);
  return value;
}

int saturating_sum(int a, int b) {
  return a > std::numeric_limits<int>::max() - b ? std::numeric_limits<int>::max() : a + b;
}

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    visit(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

KernelResources parse_ptxas_log(std::string_view log) {
  KernelResources total;
  for_each_line(log, [&](std::string_view line) {
    if (contains(line, "bytes stack frame")) {
      total.stack_bytes = std::max(total.stack_bytes, number_before(line, "bytes stack frame"));
      total.spill_store_bytes = saturating_sum(total.spill_store_bytes, number_before(line, "bytes spill stores"));
      total.spill_load_bytes = saturating_sum(total.spill_load_bytes, number_before(line, "bytes spill loads"));
    } else if (contains(line, "Used ") && contains(line, " registers")) {
      total.registers = std::max(total.registers, number_before(line, "registers"));
      total.static_shared_bytes = std::max(total.static_shared_bytes, number_before(line, "bytes smem"));
    } else if (contains(line, "wgmma.mma_async instructions are serialized")) {
      total.wgmma_serialized = true;
    } else if (contains(line, "'setmaxnreg' ignored")) {
      total.setmaxnreg_ignored = true;
    }
  });
  return total;
}

std::string first_error(std::string_view log) {
  std::string_view first, error;
  for_each_line(log, [&](std::string_view line) {
    if (line.find_first_not_of(kSpaces) == std::string_view::npos) return;
    if (first.empty()) first = line;
    if (error.empty() && (contains(line, "error") || contains(line, "fatal"))) error = line;
  });
  if (!error.empty()) return std::string(error);
  return first.empty() ? "no log" : std::string(first);
}

}  // namespace v1
}  // namespace leanattn
