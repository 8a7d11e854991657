// synchronisation.cpp -- barriers of CTAs and clusters, mbarriers, naps and fences (PTX ISA, "Parallel Synchronization
// and Communication Instructions"). Fences do nothing, because memory here has no order of its own.
#include <algorithm>

#include "tests/emulator/decoder.hpp"

namespace emulator {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// The fields of an mbarrier: arrivals that are missing, arrivals of a phase, bytes that are missing (above 2^20), the
// phase's parity, and a mark that memory which nobody has initialised does not have.
constexpr int kExpectedShift = 20, kBytesShift = 40, kPhaseShift = 61, kMarkShift = 62;
constexpr u64 kCountMask = (1 << 20) - 1, kBytesMask = (1 << 21) - 1, kNoBytes = 1 << 20;

void run_nothing(Warp&, const Instruction&) {}

// bar.sync, bar.arrive: whole warps arrive, in multiples of which threads are counted.
template <bool kWaits>
void run_barrier(Warp& w, const Instruction& in) {
  if (!w.together(kAllLanes)) return;
  const int lane = __builtin_ctz(w.exec);
  const u32 number = w.at<u32>(in, 0)[lane], threads = in.count > 1 ? w.at<u32>(in, 1)[lane] : 0;
  if (number >= w.cta->barriers.size()) w.fault(in, "barrier " + std::to_string(number));
  if (threads % kLanes != 0) w.fault(in, "a barrier of " + std::to_string(threads) + " threads");
  NamedBarrier& barrier = w.cta->barriers[number];
  if (barrier.arrived > 0 && barrier.expected != threads) {
    w.fault(in, "a barrier of " + std::to_string(threads) + " threads, which is one of " +
                    std::to_string(barrier.expected) + " for others that have arrived");
  }
  barrier.expected = threads;
  barrier.arrived += kLanes;
  const u64 generation = barrier.generation;
  w.cta->complete_barriers();
  if (barrier.arrived > threads && threads != 0) w.fault(in, "more threads arrive at a barrier than it has");
  if (!kWaits || barrier.generation != generation) return;
  Fragment& f = w.wait(Wait::for_barrier, false);
  f.barrier = number;
  f.generation = generation;
}

void run_warp_barrier(Warp& w, const Instruction& in) { w.together(w.at<u32>(in, 0)[__builtin_ctz(w.exec)], true); }

void select_bar(Decoder& d) {
  d.take("cta");
  if (d.take("warp")) {
    if (!d.take("sync")) d.unknown();
    d.emit(run_warp_barrier, {}, {d.source(0, Type::b32)});
    return;
  }
  const bool waits = d.take("sync");
  if (!waits && !d.take("arrive")) d.unknown();
  d.take("aligned");
  std::vector<Operand> sources = {d.source(0, Type::u32)};
  if (d.arguments() > 1) sources.push_back(d.source(1, Type::u32));
  d.emit(waits ? run_barrier<true> : run_barrier<false>, {}, sources);
}

// barrier.cluster: all threads of the cluster's CTAs, without those that have ended.
void run_cluster_arrive(Warp& w, const Instruction&) {
  if (!w.together(kAllLanes)) return;
  Cluster& cluster = *w.cta->cluster;
  u32 live = 0;
  for (const auto& cta : cluster.ctas) live += cta->live_warps;
  w.cluster_generation = cluster.generation;
  if (++cluster.arrived < live) return;
  cluster.arrived = 0;
  ++cluster.generation;
  w.machine->progress();
}
void run_cluster_wait(Warp& w, const Instruction&) {
  if (!w.together(kAllLanes)) return;
  if (w.cta->cluster->generation != w.cluster_generation) return;
  w.wait(Wait::for_cluster, false).generation = w.cluster_generation;
}

void select_barrier(Decoder& d) {
  if (!d.take("cluster")) return select_bar(d);
  const bool waits = d.take("wait");
  if (!waits && !d.take("arrive")) d.unknown();
  d.take_any({"acquire", "release", "relaxed"});
  d.take("aligned");
  d.emit(waits ? run_cluster_wait : run_cluster_arrive, {}, {});
}

// mbarriers. What a barrier refuses is a fault of the instruction.
template <class F>
void at_barriers(Warp& w, const Instruction& in, int address, F f) {
  const u64* addresses = w.at<u64>(in, address);
  w.for_each_lane([&](int lane) {
    unsigned char* at = w.shared(in, addresses[lane] + static_cast<u64>(in.immediate[0]), 8);
    try {
      f(at, lane);
    } catch (const Fault& fault) {
      w.fault(in, fault.what());
    }
  });
}

void run_mbarrier_init(Warp& w, const Instruction& in) {
  at_barriers(w, in, 0, [&](unsigned char* at, int lane) { MBarrier::init(at, w.at<u32>(in, 1)[lane]); });
}
void run_mbarrier_arrive(Warp& w, const Instruction& in) {
  at_barriers(w, in, 0, [&](unsigned char* at, int lane) { MBarrier(at).arrive(w.at<u32>(in, 1)[lane]); });
  w.machine->progress();
}
void run_mbarrier_expect(Warp& w, const Instruction& in) {
  at_barriers(w, in, 0, [&](unsigned char* at, int lane) { MBarrier(at).expect(w.at<u32>(in, 1)[lane]); });
}
void run_mbarrier_arrive_and_expect(Warp& w, const Instruction& in) {
  at_barriers(w, in, 0, [&](unsigned char* at, int lane) {
    MBarrier(at).expect(w.at<u32>(in, 1)[lane]);
    MBarrier(at).arrive(1);
  });
  w.machine->progress();
}
/// try_wait may suspend its thread for a while before it answers; test_wait answers at once.
template <bool kMayWait>
void run_mbarrier_wait(Warp& w, const Instruction& in) {
  const u32* parity = w.at<u32>(in, 2);
  const u64* addresses = w.at<u64>(in, 1);
  u32 done = 0;
  int missing = -1;
  at_barriers(w, in, 1, [&](unsigned char* at, int lane) {
    MBarrier(at).expect(0);  // it must be one
    const bool complete = MBarrier(at).phase() != ((parity[lane] & 1) != 0);
    done |= static_cast<u32>(complete) << lane;
    if (!complete) missing = lane;
  });
  if (missing < 0 || !kMayWait || w.machine->random() % 4 == 0) return w.set_predicate(in, 0, done);
  Fragment& f = w.wait(Wait::for_mbarrier, true);
  f.barrier = static_cast<u32>((addresses[missing] & ~kSharedWindow) + static_cast<u64>(in.immediate[0])) |
              (parity[missing] & 1) << 31;
  f.until = w.machine->clock + 1 + w.machine->draw(20000);
}

void select_mbarrier(Decoder& d) {
  const std::string_view what = d.take_any({"init", "inval", "arrive", "expect_tx", "try_wait", "test_wait"});
  const bool expects = what == "arrive" && d.take("expect_tx"), parity = d.take("parity");
  while (!d.take_any({"release", "acquire", "relaxed", "cta", "cluster", "shared", "shared::cta", "shared::cluster"})
              .empty())
    continue;
  if (d.type() != Type::b64) d.unknown();
  std::int64_t offset = 0;
  if (what == "init") {
    const Operand address = d.address(0, offset);
    d.emit(run_mbarrier_init, {}, {address, d.source(1, Type::u32)}).in.immediate[0] = offset;
  } else if (what == "inval") {
    d.emit(run_nothing, {}, {});
  } else if (what == "expect_tx") {
    const Operand address = d.address(0, offset);
    d.emit(run_mbarrier_expect, {}, {address, d.source(1, Type::u32)}).in.immediate[0] = offset;
  } else if (what == "arrive") {
    // The state that it returns is only of use to waits that have no parity.
    if (d.argument(0).name != "_") d.unknown("the state of an arrival");
    const Operand address = d.address(1, offset);
    const Operand count = d.arguments() > 2 ? d.source(2, Type::u32) : d.constant<u32>(1);
    d.emit(expects ? run_mbarrier_arrive_and_expect : run_mbarrier_arrive, {}, {address, count}).in.immediate[0] =
        offset;
  } else {
    if (!parity || d.arguments() > 3) d.unknown();
    const Operand address = d.address(1, offset);
    d.emit(what == "try_wait" ? run_mbarrier_wait<true> : run_mbarrier_wait<false>, {d.destination(0, Type::pred)},
           {address, d.source(2, Type::u32)})
        .in.immediate[0] = offset;
  }
}

void run_nap(Warp& w, const Instruction& in) {
  const u64 longest = u64{2} * w.at<u32>(in, 0)[__builtin_ctz(w.exec)];
  w.wait(Wait::for_time, false).until = w.machine->clock + w.machine->random() % (longest + 1);
}
void select_nap(Decoder& d) {
  if (d.type() != Type::u32) d.unknown();
  d.emit(run_nap, {}, {d.source(0, Type::u32)});
}

void select_fence(Decoder& d) {
  while (!d.take_any({"proxy", "async", "alias", "tensormap::generic", "mbarrier_init", "acq_rel", "sc", "acquire",
                      "release", "cta", "cluster", "gpu", "sys", "gl", "global", "shared::cta", "shared::cluster"})
              .empty())
    continue;
  d.emit(run_nothing, {}, {});
}

/// Launches of a stream follow each other, so that a dependent one finds all that it waits for.
void select_dependents(Decoder& d) {
  if (d.take_any({"wait", "launch_dependents"}).empty()) d.unknown();
  d.emit(run_nothing, {}, {});
}
void select_registers(Decoder& d) {  // setmaxnreg
  if (d.take_any({"inc", "dec"}).empty() || !d.take("sync") || !d.take("aligned") || d.type() != Type::u32) d.unknown();
  d.emit([](Warp& w, const Instruction&) { w.together(kAllLanes); }, {}, {});
}

}  // namespace

void MBarrier::check() const {
  if (bits_ >> kMarkShift != 1) throw Fault("no mbarrier is there");
}
void MBarrier::init(unsigned char* at, std::uint32_t count) {
  const u64 bits = u64{1} << kMarkShift | kNoBytes << kBytesShift | u64{count} << kExpectedShift | count;
  std::memcpy(at, &bits, sizeof bits);
}
void MBarrier::arrive(std::uint32_t count) {
  check();
  if (count > (bits_ & kCountMask)) throw Fault("more arrivals at an mbarrier than it expects");
  bits_ -= count;
  store();
}
void MBarrier::expect(std::int64_t bytes) {
  check();
  if (bytes == 0) return;
  const std::int64_t missing = static_cast<std::int64_t>(bits_ >> kBytesShift & kBytesMask) + bytes;
  if (missing < 0 || missing > static_cast<std::int64_t>(kBytesMask)) throw Fault("an mbarrier of too many bytes");
  bits_ = (bits_ & ~(kBytesMask << kBytesShift)) | static_cast<u64>(missing) << kBytesShift;
  store();
}
void MBarrier::store() {
  if ((bits_ & kCountMask) == 0 && (bits_ >> kBytesShift & kBytesMask) == kNoBytes)
    bits_ = (bits_ ^ u64{1} << kPhaseShift) | (bits_ >> kExpectedShift & kCountMask);
  std::memcpy(at_, &bits_, sizeof bits_);
}

void add_synchronisation(Selects& selects) {
  selects["bar"] = select_bar;
  selects["barrier"] = select_barrier;
  selects["mbarrier"] = select_mbarrier;
  selects["nanosleep"] = select_nap;
  selects["fence"] = select_fence;
  selects["membar"] = select_fence;
  selects["griddepcontrol"] = select_dependents;
  selects["setmaxnreg"] = select_registers;
}

}  // namespace emulator
