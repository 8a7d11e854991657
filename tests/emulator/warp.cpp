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
  text << launch->config.kernel->name << ", CTA " << cta->number << ", warp " << index << ", lanes "
       << hexadecimal(exec) << ", PTX line " << in.line << " '" << launch->config.program->text_of(in) << "': " << what;
  throw Fault(text.str());
}

unsigned char* Warp::global_if(const Instruction& in, std::uint64_t address, std::uint64_t bytes, bool writes) const {
  const auto holds = [&](const Range& range) {
    return address - range.begin < range.bytes && range.bytes - (address - range.begin) >= bytes &&
           range.writable >= writes;
  };
  Range& recent = launch->recent[static_cast<std::size_t>(&in - launch->config.program->code.data())];
  if (!holds(recent)) {
    recent = machine->range_near(address);
    if (!holds(recent)) return nullptr;
  }
  return reinterpret_cast<unsigned char*>(address);
}

unsigned char* Warp::global(const Instruction& in, std::uint64_t address, std::uint64_t bytes, bool writes) const {
  if (bytes <= 16 && address % bytes != 0) fault(in, "misaligned address " + hexadecimal(address));
  if (unsigned char* found = global_if(in, address, bytes, writes); found != nullptr) return found;
  const Range near = machine->range_near(address);
  fault(in, (writes ? "cannot write at " : "cannot read at ") + hexadecimal(address) + ": the nearest buffer has " +
                std::to_string(near.bytes) + " bytes from " + hexadecimal(near.begin) + " on" +
                (near.writable ? "" : " and is constant"));
}

unsigned char* Warp::shared_if(std::uint64_t address, std::uint64_t bytes) const {
  std::uint64_t at = address & ~kSharedWindow;
  Cta* owner = cta;
  if (const std::uint64_t rank = at >> kRankShift; rank != 0) {
    if (rank > cta->cluster->ctas.size()) return nullptr;
    owner = cta->cluster->ctas[rank - 1].get();
    if (owner->live_warps == 0) return nullptr;
    at &= (std::uint64_t{1} << kRankShift) - 1;
  }
  return at >= kReservedShared && at + bytes <= owner->shared.size() ? owner->shared.data() + at : nullptr;
}

unsigned char* Warp::shared(const Instruction& in, std::uint64_t address, std::uint64_t bytes) const {
  if (bytes <= 16 && address % bytes != 0) fault(in, "misaligned shared address " + hexadecimal(address));
  if (unsigned char* found = shared_if(address, bytes); found != nullptr) return found;
  fault(in, "no shared memory is at " + hexadecimal(address & ~kSharedWindow) + ": the CTA has " +
                hexadecimal(cta->shared.size()) + " bytes, and a CTA that has ended has none");
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

void Warp::jump(std::uint32_t place) {
  if (exec == lanes) {
    next = place;
    stops = !fragments.empty();
    return;
  }
  fragments.push_back({.pc = pc + 1, .lanes = lanes & ~exec});
  fragments.push_back({.pc = place, .lanes = exec});
  lanes = 0;
  stops = true;
}

void Warp::jump(const std::uint32_t* places) {
  const std::uint32_t all = exec;
  while (exec != 0) {
    const std::uint32_t place = places[__builtin_ctz(exec)];
    std::uint32_t group = 0;
    for_each_lane([&](int lane) { group |= static_cast<std::uint32_t>(places[lane] == place) << lane; });
    if (group == lanes) return jump(place);
    fragments.push_back({.pc = place, .lanes = group});
    exec &= ~group;
  }
  if ((lanes & ~all) != 0) fragments.push_back({.pc = pc + 1, .lanes = lanes & ~all});
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
