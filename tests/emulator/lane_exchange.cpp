// lane_exchange.cpp -- what the lanes of a warp do together (PTX ISA, "shfl.sync", "vote.sync", "match.sync",
// "redux.sync", "bar.warp.sync", "activemask").
#include <algorithm>
#include <bit>

#include "tests/emulator/decoder.hpp"

namespace emulator {
namespace {

using u32 = std::uint32_t;
using s32 = std::int32_t;

/// The members that operand k names, which are the same for all lanes that execute.
u32 members(Warp& w, const Instruction& in, int k) {
  const u32* mask = w.at<u32>(in, k);
  const u32 first = mask[std::countr_zero(w.exec)];
  w.for_each_lane([&](int lane) {
    if (mask[lane] != first) w.fault(in, "lanes name different members");
    if ((mask[lane] >> lane & 1) == 0) w.fault(in, "a lane is no member");
  });
  return first;
}

enum class Shuffle { idx, up, down, bfly };
template <Shuffle kKind>
void run_shuffle(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in, 5))) return;
  const u32 *value = w.at<u32>(in, 2), *by = w.at<u32>(in, 3), *clamp = w.at<u32>(in, 4);
  u32 values[kLanes], inside = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int b = static_cast<int>(by[lane] & 31), bound = static_cast<int>(clamp[lane] & 31),
              segment = static_cast<int>(clamp[lane] >> 8 & 31);
    const int last = (lane & segment) | (bound & ~segment), first = lane & segment;
    int from = 0;
    bool valid = false;
    if (kKind == Shuffle::up) from = lane - b, valid = from >= last;
    if (kKind == Shuffle::down) from = lane + b, valid = from <= last;
    if (kKind == Shuffle::bfly) from = lane ^ b, valid = from <= last;
    if (kKind == Shuffle::idx) from = first | (b & ~segment), valid = from <= last;
    if (!valid) from = lane;
    inside |= static_cast<u32>(valid) << lane;
    if ((w.exec >> lane & 1) != 0 && (w.exec >> from & 1) == 0)
      w.fault(in, "a value of lane " + std::to_string(from) + ", which does not take part");
    values[lane] = value[from];
  }
  w.set(in, 0, values);
  w.set_predicate(in, 1, inside);
}

void select_shuffle(Decoder& d) {
  if (!d.take("sync")) d.unknown();
  const std::string_view kind = d.take_any({"idx", "up", "down", "bfly"});
  if (d.type() != Type::b32) d.unknown();
  const Handler handler = kind == "idx"    ? run_shuffle<Shuffle::idx>
                          : kind == "up"   ? run_shuffle<Shuffle::up>
                          : kind == "down" ? run_shuffle<Shuffle::down>
                                           : run_shuffle<Shuffle::bfly>;
  const Argument& to = d.argument(0);
  const bool both = to.kind == Argument::Kind::list;
  const Operand value = d.destination(both ? to.items.at(0) : to, Type::b32);
  const Operand inside = both ? d.destination(to.items.at(1), Type::pred) : d.temporary(Type::pred);
  d.emit(handler, {value, inside},
         {d.source(1, Type::b32), d.source(2, Type::b32), d.source(3, Type::b32), d.source(4, Type::b32)});
}

enum class Vote { all, any, uni, ballot };
template <Vote kKind, bool kNegated>
void run_vote(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in, 2))) return;
  const u32 held = *w.at<u32>(in, 1);
  const u32 votes = (kNegated ? ~held : held) & w.exec;
  if (kKind == Vote::ballot) {
    u32 values[kLanes];
    std::fill(std::begin(values), std::end(values), votes);
    w.set(in, 0, values);
    return;
  }
  const bool all = votes == w.exec, none = votes == 0;
  const bool holds = kKind == Vote::all ? all : kKind == Vote::any ? !none : all || none;
  w.set_predicate(in, 0, holds ? kAllLanes : 0);
}

void select_vote(Decoder& d) {
  if (!d.take("sync")) d.unknown();
  const std::string_view kind = d.take_any({"all", "any", "uni", "ballot"});
  const Type type = d.type();
  Argument what = d.argument(1);
  const bool negated = std::exchange(what.negated, false);
  const auto of = [&](auto no) -> Handler {
    constexpr bool kNo = decltype(no)::value;
    return kind == "all"   ? run_vote<Vote::all, kNo>
           : kind == "any" ? run_vote<Vote::any, kNo>
           : kind == "uni" ? run_vote<Vote::uni, kNo>
                           : run_vote<Vote::ballot, kNo>;
  };
  const Handler handler = negated ? of(std::true_type{}) : of(std::false_type{});
  d.emit(handler, {d.destination(0, type)}, {d.source(what, Type::pred), d.source(2, Type::b32)});
}

template <class T, class F>
void run_reduce(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in, 2))) return;
  const T* value = w.at<T>(in, 1);
  T result = value[std::countr_zero(w.exec)];
  const u32 all = w.exec;
  for (u32 left = all & (all - 1); left != 0; left &= left - 1) result = F{}(result, value[std::countr_zero(left)]);
  T values[kLanes];
  std::fill(std::begin(values), std::end(values), result);
  w.set(in, 0, values);
}
template <class T, class F>
Handler reduction(F) {
  return run_reduce<T, F>;
}

void select_reduce(Decoder& d) {
  if (!d.take("sync")) d.unknown();
  const std::string_view kind = d.take_any({"add", "min", "max", "and", "or", "xor"});
  const Type type = d.type();
  Handler handler = nullptr;
  if (kind == "add") handler = reduction<u32>([](u32 a, u32 b) { return a + b; });
  if (kind == "and") handler = reduction<u32>([](u32 a, u32 b) { return a & b; });
  if (kind == "or") handler = reduction<u32>([](u32 a, u32 b) { return a | b; });
  if (kind == "xor") handler = reduction<u32>([](u32 a, u32 b) { return a ^ b; });
  if (kind == "min")
    handler = is_signed(type) ? reduction<s32>([](s32 a, s32 b) { return std::min(a, b); })
                              : reduction<u32>([](u32 a, u32 b) { return std::min(a, b); });
  if (kind == "max")
    handler = is_signed(type) ? reduction<s32>([](s32 a, s32 b) { return std::max(a, b); })
                              : reduction<u32>([](u32 a, u32 b) { return std::max(a, b); });
  if (handler == nullptr || bytes_of(type) != 4 || is_float(type)) d.unknown();
  d.emit(handler, {d.destination(0, type)}, {d.source(1, type), d.source(2, Type::b32)});
}

template <class T>
void run_match(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in, 2))) return;
  const T* value = w.at<T>(in, 1);
  u32 values[kLanes] = {};
  w.for_each_lane([&](int lane) {
    w.for_each_lane([&](int other) { values[lane] |= static_cast<u32>(value[other] == value[lane]) << other; });
  });
  w.set(in, 0, values);
}
void select_match(Decoder& d) {
  if (!d.take("any") || !d.take("sync")) d.unknown();
  const Type type = d.type();
  d.emit(bytes_of(type) == 8 ? run_match<std::uint64_t> : run_match<u32>, {d.destination(0, Type::b32)},
         {d.source(1, type), d.source(2, Type::b32)});
}

// Any member may be elected; here it is the last one, which no other choice of a lane is.
void run_elect(Warp& w, const Instruction& in) {
  if (!w.together(members(w, in, 2))) return;
  const int elected = kLanes - 1 - std::countl_zero(w.exec);
  u32 values[kLanes];
  std::fill(std::begin(values), std::end(values), static_cast<u32>(elected));
  w.set(in, 0, values);
  w.set_predicate(in, 1, 1u << elected);
}
void select_elect(Decoder& d) {
  const Argument& to = d.argument(0);
  if (!d.take("sync") || to.kind != Argument::Kind::list) d.unknown();
  d.emit(run_elect, {d.destination(to.items.at(0), Type::b32), d.destination(to.items.at(1), Type::pred)},
         {d.source(1, Type::b32)});
}

void select_active(Decoder& d) {
  if (d.type() != Type::b32) d.unknown();
  const Handler handler = [](Warp& w, const Instruction& in) {
    u32 values[kLanes];
    std::fill(std::begin(values), std::end(values), w.exec);
    w.set(in, 0, values);
  };
  d.emit(handler, {d.destination(0, Type::b32)}, {});
}

}  // namespace

void add_lane_exchange(Selects& selects) {
  selects["shfl"] = select_shuffle;
  selects["vote"] = select_vote;
  selects["redux"] = select_reduce;
  selects["match"] = select_match;
  selects["activemask"] = select_active;
  selects["elect"] = select_elect;
}

}  // namespace emulator
