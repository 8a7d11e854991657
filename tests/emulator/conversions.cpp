// conversions.cpp -- moves and conversions (PTX ISA, "mov", "cvt", "cvta").
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/emulator/decoder.hpp"
#include "tests/emulator/lanewise.hpp"
#include "tests/emulator/matrix.hpp"

namespace emulator {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class To, class From>
Handler integer_conversion() {
  return lanewise<To, From>([](From x) { return static_cast<To>(x); });
}
template <class From>
Handler integer_conversion(Type to) {
  switch (bytes_of(to)) {
    case 1: return integer_conversion<u8, From>();
    case 2: return integer_conversion<u16, From>();
    case 4: return integer_conversion<u32, From>();
    case 8: return integer_conversion<u64, From>();
    default: return nullptr;
  }
}

/// To the nearest whole number, or as the modifier says: towards zero, down, up.
template <class F>
Handler with_rounding(std::string_view rounding, F make) {
  if (rounding == "rni") return make([](auto x) { return std::nearbyint(x); });
  if (rounding == "rzi") return make([](auto x) { return std::trunc(x); });
  if (rounding == "rmi") return make([](auto x) { return std::floor(x); });
  if (rounding == "rpi") return make([](auto x) { return std::ceil(x); });
  return nullptr;
}
/// All conversions of floats to integers saturate, and make 0 of NaN (PTX ISA, "cvt").
template <class To, class From>
Handler float_to_integer(std::string_view rounding) {
  return with_rounding(rounding, [](auto round) {
    return lanewise<To, From>([](From x) {
      const From whole = decltype(round){}(x);
      constexpr double kLeast = static_cast<double>(std::numeric_limits<To>::min());
      constexpr double kMost = static_cast<double>(std::numeric_limits<To>::max());
      if (whole != whole) return To{0};
      if (whole <= kLeast) return std::numeric_limits<To>::min();
      return whole >= kMost ? std::numeric_limits<To>::max() : static_cast<To>(whole);
    });
  });
}
template <class From>
Handler float_to_integer(Type to, std::string_view rounding) {
  switch (to) {
    case Type::u8: return float_to_integer<u8, From>(rounding);
    case Type::s8: return float_to_integer<std::int8_t, From>(rounding);
    case Type::u16: return float_to_integer<u16, From>(rounding);
    case Type::s16: return float_to_integer<std::int16_t, From>(rounding);
    case Type::u32: return float_to_integer<u32, From>(rounding);
    case Type::s32: return float_to_integer<std::int32_t, From>(rounding);
    case Type::u64: return float_to_integer<u64, From>(rounding);
    case Type::s64: return float_to_integer<std::int64_t, From>(rounding);
    default: return nullptr;
  }
}
template <class To>
Handler integer_to_float(Type from) {
  switch (from) {
    case Type::u8: return lanewise<To, u8>([](u8 x) { return static_cast<To>(x); });
    case Type::s8: return lanewise<To, std::int8_t>([](std::int8_t x) { return static_cast<To>(x); });
    case Type::u16: return lanewise<To, u16>([](u16 x) { return static_cast<To>(x); });
    case Type::s16: return lanewise<To, std::int16_t>([](std::int16_t x) { return static_cast<To>(x); });
    case Type::u32: return lanewise<To, u32>([](u32 x) { return static_cast<To>(x); });
    case Type::s32: return lanewise<To, std::int32_t>([](std::int32_t x) { return static_cast<To>(x); });
    case Type::u64: return lanewise<To, u64>([](u64 x) { return static_cast<To>(x); });
    case Type::s64: return lanewise<To, std::int64_t>([](std::int64_t x) { return static_cast<To>(x); });
    default: return nullptr;
  }
}

// Formats of 8 bits (PTX ISA, "Alternate floating-point data formats"). e4m3 has no infinities.
template <int kMantissa, bool kInfinities>
float from_8bit(u8 x) {
  constexpr int kBias = kMantissa == 3 ? 7 : 15;
  const int exponent = (x & 127) >> kMantissa, mantissa = x & ((1 << kMantissa) - 1);
  const float sign = (x & 128) != 0 ? -1.0f : 1.0f;
  if (kInfinities && exponent == 31)
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (!kInfinities && (x & 127) == 127) return std::numeric_limits<float>::quiet_NaN();
  const int whole = exponent == 0 ? mantissa : mantissa | 1 << kMantissa;
  return sign * std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - kBias - kMantissa);
}
/// Rounds to the nearest, ties to even, and what is too large to the largest.
template <int kMantissa, bool kInfinities>
u8 to_8bit(float x) {
  constexpr int kBias = kMantissa == 3 ? 7 : 15;
  constexpr u8 kLargest = kInfinities ? 0x7b : 0x7e;
  const u8 sign = std::signbit(x) ? 128 : 0;
  if (x != x) return 0x7f;
  const float magnitude = std::abs(x);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::min(std::ilogb(magnitude), 64), 1 - kBias);
  // In units of the last place; a carry into the exponent is what it should be.
  const auto units = static_cast<long>(std::nearbyint(std::ldexp(std::min(magnitude, 1e9f), kMantissa - exponent)));
  const long code = units + ((static_cast<long>(exponent) + kBias - 1) << kMantissa);
  return static_cast<u8>(sign | (code > kLargest ? kLargest : static_cast<u8>(code)));
}
struct E4m3 {
  static float decode(u8 x) { return from_8bit<3, false>(x); }
  static u8 encode(float x) { return to_8bit<3, false>(x); }
};
struct E5m2 {
  static float decode(u8 x) { return from_8bit<2, true>(x); }
  static u8 encode(float x) { return to_8bit<2, true>(x); }
};

/// cvt of two floats to one word: the first one is the upper half.
void select_packed(Decoder& d, std::string_view to) {
  const bool saturates = d.take("satfinite");
  d.take(to);
  if (to == "e4m3x2" || to == "e5m2x2") {
    if (d.type() != Type::f32 || !saturates) d.unknown();
    const Handler handler = to == "e4m3x2" ? lanewise<u16, float, float>([](float hi, float lo) {
      return static_cast<u16>(E4m3::encode(hi) << 8 | E4m3::encode(lo));
    })
                                           : lanewise<u16, float, float>([](float hi, float lo) {
                                               return static_cast<u16>(E5m2::encode(hi) << 8 | E5m2::encode(lo));
                                             });
    d.emit(handler, {d.destination(0, Type::b16)}, {d.source(1, Type::f32), d.source(2, Type::f32)});
    return;
  }
  if (saturates) d.unknown();
  const std::string_view from = d.take_any({"e4m3x2", "e5m2x2"});
  if (!from.empty()) {
    if (to != "f16x2") d.unknown();
    const Handler handler = from == "e4m3x2"
                                ? lanewise<u32, u16>([](u16 x) {
                                    return static_cast<u32>(to_f16(E4m3::decode(static_cast<u8>(x))) |
                                                            to_f16(E4m3::decode(static_cast<u8>(x >> 8))) << 16);
                                  })
                                : lanewise<u32, u16>([](u16 x) {
                                    return static_cast<u32>(to_f16(E5m2::decode(static_cast<u8>(x))) |
                                                            to_f16(E5m2::decode(static_cast<u8>(x >> 8))) << 16);
                                  });
    d.emit(handler, {d.destination(0, Type::b32)}, {d.source(1, Type::b16)});
    return;
  }
  if (d.type() != Type::f32) d.unknown();
  const Handler handler =
      to == "f16x2"
          ? lanewise<u32, float, float>([](float hi, float lo) { return u32{to_f16(hi)} << 16 | to_f16(lo); })
          : lanewise<u32, float, float>([](float hi, float lo) { return u32{to_bf16(hi)} << 16 | to_bf16(lo); });
  d.emit(handler, {d.destination(0, Type::b32)}, {d.source(1, Type::f32), d.source(2, Type::f32)});
}

Handler from_float(Type to, Type from, std::string_view rounding) {
  const bool whole = rounding.size() == 3;
  if (from == Type::f64 && to == Type::f32 && !whole)
    return lanewise<float, double>([](double x) { return static_cast<float>(x); });
  if (from == Type::f32 && to == Type::f64)
    return lanewise<double, float>([](float x) { return static_cast<double>(x); });
  if (from == Type::f32 && to == Type::f16) return lanewise<u16, float>([](float x) { return to_f16(x); });
  if (from == Type::f32 && to == Type::bf16) return lanewise<u16, float>([](float x) { return to_bf16(x); });
  if (from == Type::f16 && to == Type::f32) return lanewise<float, u16>([](u16 x) { return from_f16(x); });
  if (from == Type::bf16 && to == Type::f32) return lanewise<float, u16>([](u16 x) { return from_bf16(x); });
  if (from == to && whole && from == Type::f32)
    return with_rounding(
        rounding, [](auto round) { return lanewise<float, float>([](float x) { return decltype(round){}(x); }); });
  if (from == to && whole && from == Type::f64)
    return with_rounding(
        rounding, [](auto round) { return lanewise<double, double>([](double x) { return decltype(round){}(x); }); });
  if (from == Type::f32 && !is_float(to)) return float_to_integer<float>(to, rounding);
  if (from == Type::f64 && !is_float(to)) return float_to_integer<double>(to, rounding);
  return nullptr;
}

void select_convert(Decoder& d) {
  const std::string_view rounding = d.take_any({"rn", "rz", "rni", "rzi", "rmi", "rpi"});
  for (const std::string_view to : {"f16x2", "bf16x2", "e4m3x2", "e5m2x2"}) {
    // What is converted to pairs has all its modifiers behind the type, but for .satfinite.
    if (d.opcode().find("." + std::string(to)) != std::string::npos) {
      if (rounding != "rn") d.unknown();
      const std::size_t first = d.opcode().find("x2");
      const std::string head = d.opcode().substr(0, first + 2);
      if (head.ends_with(to)) return select_packed(d, to);
    }
  }
  d.take("ftz");
  const bool saturates = d.take("sat");
  const Type to = d.type(), from = d.type();
  Handler handler = nullptr;
  if (is_float(from)) {
    if (rounding == "rz") d.unknown();
    if (!saturates || !is_float(to)) {  // conversions to integers saturate anyway
      handler = from_float(to, from, rounding);
    } else if (from == Type::f32 && to == Type::f32) {
      handler = lanewise<float, float>([](float x) { return x > 0 ? std::min(x, 1.0f) : 0.0f; });
    }
  } else if (is_float(to)) {
    if (rounding != "rn" || saturates) d.unknown();
    handler = to == Type::f32   ? integer_to_float<float>(from)
              : to == Type::f64 ? integer_to_float<double>(from)
                                : nullptr;
  } else if (!saturates) {
    handler = widening(from, to);
  }
  if (handler == nullptr) d.unknown();
  d.emit(handler, {d.destination(0, to)}, {d.source(1, from)});
}

// Special registers.
template <class F>
void run_uniform(Warp& w, const Instruction& in) {
  u32 values[kLanes];
  std::fill(std::begin(values), std::end(values), static_cast<u32>(F{}(w)));
  w.set(in, 0, values);
}
template <class F>
Handler uniform(F) {
  return run_uniform<F>;
}
template <int kAxis>
void run_thread(Warp& w, const Instruction& in) {
  const Dim3 block = w.launch->config.block;
  u32 values[kLanes];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 thread = static_cast<u32>(w.index) * kLanes + lane;
    values[lane] = kAxis == 0 ? thread % block.x : kAxis == 1 ? thread / block.x % block.y : thread / block.x / block.y;
  }
  w.set(in, 0, values);
}
template <class F>
void run_lane(Warp& w, const Instruction& in) {
  u32 values[kLanes];
  for (u32 lane = 0; lane < kLanes; ++lane) values[lane] = F{}(lane);
  w.set(in, 0, values);
}
template <class F>
Handler of_lane(F) {
  return run_lane<F>;
}
void run_clock(Warp& w, const Instruction& in) {
  u64 values[kLanes];
  std::fill(std::begin(values), std::end(values), w.machine->clock);
  w.set(in, 0, values);
}

Handler special(std::string_view name) {
  if (name == "%tid.x") return run_thread<0>;
  if (name == "%tid.y") return run_thread<1>;
  if (name == "%tid.z") return run_thread<2>;
  if (name == "%ntid.x") return uniform([](Warp& w) { return w.launch->config.block.x; });
  if (name == "%ntid.y") return uniform([](Warp& w) { return w.launch->config.block.y; });
  if (name == "%ntid.z") return uniform([](Warp& w) { return w.launch->config.block.z; });
  if (name == "%ctaid.x") return uniform([](Warp& w) { return w.cta->position.x; });
  if (name == "%ctaid.y") return uniform([](Warp& w) { return w.cta->position.y; });
  if (name == "%ctaid.z") return uniform([](Warp& w) { return w.cta->position.z; });
  if (name == "%nctaid.x") return uniform([](Warp& w) { return w.launch->config.grid.x; });
  if (name == "%nctaid.y") return uniform([](Warp& w) { return w.launch->config.grid.y; });
  if (name == "%nctaid.z") return uniform([](Warp& w) { return w.launch->config.grid.z; });
  if (name == "%cluster_ctarank") return uniform([](Warp& w) { return w.cta->rank; });
  if (name == "%cluster_nctarank") return uniform([](Warp& w) { return w.cta->cluster->ctas.size(); });
  if (name == "%laneid") return of_lane([](u32 lane) { return lane; });
  if (name == "%lanemask_lt") return of_lane([](u32 lane) { return (u32{1} << lane) - 1; });
  if (name == "%lanemask_le") return of_lane([](u32 lane) { return static_cast<u32>((u64{2} << lane) - 1); });
  if (name == "%lanemask_eq") return of_lane([](u32 lane) { return u32{1} << lane; });
  if (name == "%lanemask_ge") return of_lane([](u32 lane) { return ~((u32{1} << lane) - 1); });
  if (name == "%lanemask_gt") return of_lane([](u32 lane) { return ~static_cast<u32>((u64{2} << lane) - 1); });
  if (name == "%clock" || name == "%globaltimer_lo") return uniform([](Warp& w) { return w.machine->clock; });
  if (name == "%clock64" || name == "%globaltimer") return run_clock;
  // Which SM a CTA runs on tells nothing that is true of all GPUs.
  if (name == "%smid") return uniform([](Warp& w) { return w.cta->number; });
  return nullptr;
}

void run_address_of_parameters(Warp& w, const Instruction& in) {
  u64 values[kLanes];
  std::fill(std::begin(values), std::end(values),
            reinterpret_cast<u64>(w.launch->config.parameters.data()) + static_cast<u64>(in.immediate[0]));
  w.set(in, 0, values);
}
void run_address_of_globals(Warp& w, const Instruction& in) {
  u64 values[kLanes];
  std::fill(std::begin(values), std::end(values),
            reinterpret_cast<u64>(w.launch->config.program->globals.data()) + static_cast<u64>(in.immediate[0]));
  w.set(in, 0, values);
}

template <class Whole, class Part>
void run_pack(Warp& w, const Instruction& in) {
  Whole values[kLanes] = {};
  for (int k = 1; k < in.count; ++k) {
    const Part* part = w.at<Part>(in, k);
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = static_cast<Whole>(values[lane] | static_cast<Whole>(part[lane])
                                                           << (k - 1) * static_cast<int>(sizeof(Part) * 8));
  }
  w.set(in, 0, values);
}
template <class Whole, class Part>
void run_unpack(Warp& w, const Instruction& in) {
  Whole whole[kLanes];
  std::memcpy(whole, w.at<Whole>(in, in.results), sizeof whole);
  for (int k = 0; k < in.results; ++k) {
    Part values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = static_cast<Part>(whole[lane] >> k * static_cast<int>(sizeof(Part) * 8));
    w.set(in, k, values);
  }
}

template <class T>
void run_copy(Warp& w, const Instruction& in) {
  T values[kLanes];
  std::memcpy(values, w.at<T>(in, 1), sizeof values);
  w.set(in, 0, values);
}
void run_copy_predicate(Warp& w, const Instruction& in) { w.set_predicate(in, 0, *w.at<u32>(in, 1)); }

/// mov between a register and the registers of its parts.
void select_parts(Decoder& d, Type type) {
  const bool packs = d.argument(1).kind == Argument::Kind::list;
  const std::size_t parts = d.argument(packs ? 1 : 0).items.size();
  const int part = bytes_of(type) / static_cast<int>(parts);
  const Type part_type = part == 2   ? Type::b16
                         : part == 4 ? Type::b32
                         : part == 8 ? Type::b64
                         : part == 1 ? Type::b8
                                     : Type::none;
  Handler handler = nullptr;
  const auto choose = [&](auto whole, auto piece) {
    using W = decltype(whole);
    using P = decltype(piece);
    if (bytes_of(type) == sizeof(W) && part == sizeof(P)) handler = packs ? run_pack<W, P> : run_unpack<W, P>;
  };
  choose(u32{}, u16{});
  choose(u32{}, u8{});
  choose(u16{}, u8{});
  choose(u64{}, u32{});
  choose(u64{}, u16{});
  choose(static_cast<unsigned __int128>(0), u64{});
  choose(static_cast<unsigned __int128>(0), u32{});
  if (handler == nullptr) d.unknown("its parts");
  if (packs) {
    d.emit(handler, {d.destination(0, type)}, d.sources(1, part_type));
  } else {
    d.emit(handler, d.destinations(0, part_type), {d.source(1, type)});
  }
}

void select_move(Decoder& d) {
  const Type type = d.type();
  const Argument& from = d.argument(1);
  if (from.kind == Argument::Kind::list || d.argument(0).kind == Argument::Kind::list) return select_parts(d, type);
  if (type == Type::pred) {
    d.emit(run_copy_predicate, {d.destination(0, type)}, {d.source(1, type)});
    return;
  }
  if (from.kind == Argument::Kind::name && special(from.name) != nullptr) {
    const bool wide = from.name == "%clock64" || from.name == "%globaltimer";
    d.emit(special(from.name), {d.destination(0, wide ? Type::u64 : Type::u32)}, {});
    return;
  }
  if (const std::string_view space = d.space_of(from); !space.empty()) {
    const std::int64_t place = d.place_of(from);
    if (space == "parameter" || space == "global") {
      RawInstruction& raw = d.emit(space == "global" ? run_address_of_globals : run_address_of_parameters,
                                   {d.destination(0, Type::u64)}, {});
      raw.in.immediate[0] = place;
      return;
    }
    Argument number;
    number.kind = Argument::Kind::integer;
    number.integer = place;
    const Operand source = d.source(number, type);
    d.emit(bytes_of(type) == 8 ? run_copy<u64> : run_copy<u32>, {d.destination(0, type)}, {source});
    return;
  }
  Handler handler = nullptr;
  switch (bytes_of(type)) {
    case 2: handler = run_copy<u16>; break;
    case 4: handler = run_copy<u32>; break;
    case 8: handler = run_copy<u64>; break;
    case 16: handler = run_copy<unsigned __int128>; break;
    default: d.unknown();
  }
  d.emit(handler, {d.destination(0, type)}, {d.source(1, type)});
}

/// cvta: between generic addresses and those of a space.
void select_convert_address(Decoder& d) {
  const bool to = d.take("to");
  const std::string_view space = d.take_any({"global", "shared", "local", "const", "param", "shared::cta"});
  const Type type = d.type();
  if (space.empty() || type != Type::u64) d.unknown();
  const u64 window = space.starts_with("shared") ? kSharedWindow : space == "local" ? kLocalWindow : 0;
  const Operand result = d.destination(0, type), source = d.source(1, type);
  d.emit(to ? lanewise<u64, u64, u64>([](u64 a, u64 b) { return a - b; })
            : lanewise<u64, u64, u64>([](u64 a, u64 b) { return a + b; }),
         {result}, {source, d.constant<u64>(window)});
}

}  // namespace

const Handler kCopy32 = run_copy<u32>;

Handler widening(Type from, Type to) {
  switch (from) {
    case Type::u8:
    case Type::b8: return integer_conversion<u8>(to);
    case Type::s8: return integer_conversion<std::int8_t>(to);
    case Type::s16: return integer_conversion<std::int16_t>(to);
    case Type::s32: return integer_conversion<std::int32_t>(to);
    case Type::s64: return integer_conversion<std::int64_t>(to);
    default: break;
  }
  switch (bytes_of(from)) {
    case 2: return integer_conversion<u16>(to);
    case 4: return integer_conversion<u32>(to);
    case 8: return integer_conversion<u64>(to);
    default: return nullptr;
  }
}

void add_conversions(Selects& selects) {
  selects["mov"] = select_move;
  selects["cvt"] = select_convert;
  selects["cvta"] = select_convert_address;
}

}  // namespace emulator
