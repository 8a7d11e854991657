// warp.cpp -- how the lanes of a warp part and meet, and where their addresses lead.
#include <algorithm>
#include <sstream>

#include "tests/emulator/machine.hpp"
#include "tests/emulator/matrix.hpp"

namespace emulator {
namespace {

std::string hexadecimal(std::uint64_t x) {
  std::ostringstream text;
  text << "0x" << std::hex << x;
  return text.str();
}

}  // namespace

void Warp::fault(const Instruction& in, const std::string& what) const {
  std::ostringstream text;
  text << launch->config.kernel->name << ", CTA " << cta->number << ", warp " << index << ", lanes " << hexadecimal(exec)
       << ", PTX line " << in.line << " '" << launch->config.program->text_of(in) << "': " << what;
  throw Fault(text.str());
}

unsigned char* Warp::global(const Instruction& in, std::uint64_t address, std::uint64_t bytes, bool writes) const {
  if (address % bytes != 0 && bytes <= 16) fault(in, "misaligned address " + hexadecimal(address));
  Range& recent = launch->recent[static_cast<std::size_t>(&in - launch->config.program->code.data())];
  if (address - recent.begin >= recent.bytes || recent.bytes - (address - recent.begin) < bytes) {
    const auto& memory = machine->memory;
    auto behind = std::upper_bound(memory.begin(), memory.end(), address,
                                   [](std::uint64_t a, const Range& range) { return a < range.begin; });
    if (behind == memory.begin()) fault(in, hexadecimal(address) + " is no global memory");
    recent = *std::prev(behind);
    if (address - recent.begin >= recent.bytes || recent.bytes - (address - recent.begin) < bytes) {
      fault(in, hexadecimal(address) + " is outside of the nearest buffer, which has " + std::to_string(recent.bytes) +
                    " bytes from " + hexadecimal(recent.begin) + " on");
    }
  }
  if (writes && !recent.writable) fault(in, "a write to constant memory");
  return reinterpret_cast<unsigned char*>(address);
}

unsigned char* Warp::shared(const Instruction& in, std::uint64_t address, std::uint64_t bytes) const {
  std::uint64_t at = address & ~kSharedWindow;
  if (at % bytes != 0 && bytes <= 16) fault(in, "misaligned shared address " + hexadecimal(address));
  Cta* owner = cta;
  if (const std::uint64_t rank = at >> kRankShift; rank != 0) {
    if (rank > cta->cluster->ctas.size()) fault(in, "shared memory of no CTA: " + hexadecimal(address));
    owner = cta->cluster->ctas[rank - 1].get();
    if (owner->live_warps == 0) fault(in, "shared memory of a CTA that has ended");
    at &= (std::uint64_t{1} << kRankShift) - 1;
  }
  if (at < kReservedShared || at + bytes > owner->shared.size())
    fault(in, "shared address " + hexadecimal(at) + " of " + hexadecimal(owner->shared.size()) + " bytes");
  return owner->shared.data() + at;
}

unsigned char* Warp::local_memory(const Instruction& in, std::uint64_t address, std::uint64_t bytes, int lane) {
  const std::uint64_t at = address & ~kLocalWindow;
  const auto frame = static_cast<std::uint64_t>(launch->config.program->local_bytes);
  if (at % bytes != 0) fault(in, "misaligned local address " + hexadecimal(address));
  if (at + bytes > frame) fault(in, "local address " + hexadecimal(at) + " of " + hexadecimal(frame) + " bytes");
  return local.data() + frame * static_cast<std::uint64_t>(lane) + at;
}

Fragment& Warp::wait(Wait what, bool again) {
  if ((lanes & ~exec) != 0) fragments.push_back({.pc = pc + 1, .lanes = lanes & ~exec});
  fragments.push_back({.pc = again ? pc : pc + 1, .lanes = exec, .wait = what});
  lanes = 0;
  stops = true;
  return fragments.back();
}

bool Warp::together(std::uint32_t members, bool anywhere) {
  if ((members & live & ~exec) == 0) return true;
  Fragment& f = wait(Wait::for_lanes, true);
  f.needed = members;
  f.anywhere = anywhere;
  return false;
}

void Warp::exit() {
  live &= ~exec;
  lanes &= ~exec;
  if (lanes == 0) stops = true;
}

void Warp::jump(const std::uint32_t* places) {
  const std::uint32_t first = places[__builtin_ctz(exec)];
  std::uint32_t same = 0;
  for_each_lane([&](int lane) { same |= static_cast<std::uint32_t>(places[lane] == first) << lane; });
  if (same == lanes) {
    next = first;
    stops = !fragments.empty();
    return;
  }
  if ((lanes & ~exec) != 0) fragments.push_back({.pc = pc + 1, .lanes = lanes & ~exec});
  for (std::uint32_t left = exec; left != 0;) {
    const std::uint32_t place = places[__builtin_ctz(left)];
    std::uint32_t group = 0;
    for (std::uint32_t l = left; l != 0; l &= l - 1)
      if (places[__builtin_ctz(l)] == place) group |= l & -l;
    fragments.push_back({.pc = place, .lanes = group});
    left &= ~group;
  }
  lanes = 0;
  stops = true;
}

bool Warp::is_over(const Fragment& f) const {
  switch (f.wait) {
    case Wait::none: return true;
    case Wait::for_lanes: return (f.needed & live & ~f.lanes) == 0;
    case Wait::for_barrier: return cta->barriers[f.barrier].generation != f.generation;
    case Wait::for_mbarrier:
      return machine->clock >= f.until ||
             MBarrier(cta->shared.data() + (f.barrier & 0x7fffffff)).phase() != (f.barrier >> 31 != 0);
    case Wait::for_time: return machine->clock >= f.until;
    case Wait::for_cluster: return cta->cluster->generation != f.generation;
  }
  return false;
}

bool Warp::can_run() const {
  return std::any_of(fragments.begin(), fragments.end(), [&](const Fragment& f) { return is_over(f); });
}

std::uint64_t Warp::wakes_at() const {
  std::uint64_t earliest = UINT64_MAX;
  for (const Fragment& f : fragments)
    if (f.wait == Wait::for_time || f.wait == Wait::for_mbarrier) earliest = std::min(earliest, f.until);
  return earliest;
}

/// Lets fragments meet, and takes the one at the lowest place that can go on. False: there is none.
bool Warp::choose() {
  stops = false;
  std::uint32_t at_any = 0;
  for (Fragment& f : fragments) {
    if (f.wait != Wait::none && is_over(f)) f.wait = Wait::none;
    if (f.wait == Wait::for_lanes && f.anywhere) at_any |= f.lanes;
  }
  for (Fragment& f : fragments) {
    if (f.wait == Wait::for_lanes && f.anywhere && (f.needed & live & ~at_any) == 0) f.wait = Wait::none, ++f.pc;
  }
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const auto meets = [](const Fragment& f) { return f.wait == Wait::none || f.wait == Wait::for_lanes; };
    for (std::size_t j = i + 1; meets(fragments[i]) && j < fragments.size();) {
      if (meets(fragments[j]) && fragments[j].pc == fragments[i].pc) {
        fragments[i].lanes |= fragments[j].lanes;
        fragments[i].wait = Wait::none;
        fragments.erase(fragments.begin() + static_cast<std::ptrdiff_t>(j));
      } else {
        ++j;
      }
    }
  }
  auto lowest = fragments.end();
  for (auto f = fragments.begin(); f != fragments.end(); ++f)
    if (f->wait == Wait::none && (lowest == fragments.end() || f->pc < lowest->pc)) lowest = f;
  if (lowest == fragments.end()) return false;
  pc = lowest->pc, lanes = lowest->lanes;
  fragments.erase(lowest);
  limit = UINT32_MAX;
  for (const Fragment& f : fragments)
    if (f.pc > pc) limit = std::min(limit, f.pc);
  return true;
}

void Warp::run(std::uint64_t turns) {
  const Instruction* const code = launch->config.program->code.data();
  std::uint64_t executed = 0;
  if (!choose()) return;
  while (executed < turns) {
    const Instruction& in = code[pc];
    ++executed;
    exec = lanes;
    next = pc + 1;
    if (in.guard != kNoOperand) {
      const std::uint32_t guard = *slot<std::uint32_t>(in.guard);
      exec &= in.guard_negated ? ~guard : guard;
    }
    if (exec != 0) {
      if (!in.names_pinned || matrix == nullptr || !defers(*this, in)) in.run(*this, in);
    }
    pc = next;
    if (pc < limit && !stops) continue;
    if (lanes != 0) fragments.push_back({.pc = pc, .lanes = lanes});
    lanes = 0;
    if (!choose()) break;
  }
  if (lanes != 0) fragments.push_back({.pc = pc, .lanes = lanes});
  lanes = 0;
  machine->executed += executed;
  machine->clock += executed;
}

}  // namespace emulator
