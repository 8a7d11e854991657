// lanewise.hpp -- handlers of instructions that compute each lane's result from that lane's operands.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tests/emulator/machine.hpp"

namespace emulator {

/// A word with a bit for each lane: where a result or an operand of lanewise is a predicate.
struct Predicate {};

namespace detail {

template <class T>
struct Values {
  const T* at;
  Values(Warp& w, const Instruction& in, int k) : at(w.at<T>(in, k)) {}
  T operator[](int lane) const { return at[lane]; }
};
template <>
struct Values<Predicate> {
  std::uint32_t bits;
  Values(Warp& w, const Instruction& in, int k) : bits(*w.at<std::uint32_t>(in, k)) {}
  bool operator[](int lane) const { return (bits >> lane & 1) != 0; }
};

template <class Out, class F, class... In>
void compute(Warp& w, const Instruction& in, Values<In>... operands) {
  if constexpr (std::is_same_v<Out, Predicate>) {
    // In words at first, because compilers make vector instructions of that.
    alignas(64) std::uint32_t holds[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) holds[lane] = F{}(operands[lane]...) ? std::uint32_t{1} << lane : 0;
    std::uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= holds[lane];
    w.set_predicate(in, 0, bits);
  } else {
    alignas(64) Out results[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) results[lane] = F{}(operands[lane]...);
    w.set(in, 0, results);
  }
}

template <class F, class Out>
void run_nothing(Warp& w, const Instruction& in) {
  compute<Out, F>(w, in);
}
template <class F, class Out, class A>
void run_one(Warp& w, const Instruction& in) {
  compute<Out, F>(w, in, Values<A>(w, in, 1));
}
template <class F, class Out, class A, class B>
void run_two(Warp& w, const Instruction& in) {
  compute<Out, F>(w, in, Values<A>(w, in, 1), Values<B>(w, in, 2));
}
template <class F, class Out, class A, class B, class C>
void run_three(Warp& w, const Instruction& in) {
  compute<Out, F>(w, in, Values<A>(w, in, 1), Values<B>(w, in, 2), Values<C>(w, in, 3));
}
template <class F, class Out, class A, class B, class C, class D>
void run_four(Warp& w, const Instruction& in) {
  compute<Out, F>(w, in, Values<A>(w, in, 1), Values<B>(w, in, 2), Values<C>(w, in, 3), Values<D>(w, in, 4));
}

}  // namespace detail

/// The handler that computes `function`, which has no state, of operands of the types In. It is also computed for lanes
/// that do not execute, whose results are dropped.
template <class Out, class A, class F>
Handler lanewise(F) {
  return detail::run_one<F, Out, A>;
}
template <class Out, class A, class B, class F>
Handler lanewise(F) {
  return detail::run_two<F, Out, A, B>;
}
template <class Out, class A, class B, class C, class F>
Handler lanewise(F) {
  return detail::run_three<F, Out, A, B, C>;
}
template <class Out, class A, class B, class C, class D, class F>
Handler lanewise(F) {
  return detail::run_four<F, Out, A, B, C, D>;
}

// Formats of 16 bits. Conversions to them round to the nearest, ties to even.
inline float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }
inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}
inline float from_f16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  const float small = static_cast<float>(rest) * 0x1p-24f;  // of a subnormal
  const std::uint32_t large = rest >= 0x7c00 ? rest << 13 | 0x7f800000 : (rest << 13) + (112u << 23);
  return std::bit_cast<float>(sign | (rest < 0x400 ? std::bit_cast<std::uint32_t>(small) : large));
}
inline std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  const std::uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  const float scaled = std::bit_cast<float>(magnitude) + 0.5f;  // the last bit of the sum is worth 2^-24
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(scaled) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : magnitude >= 0x477ff000 ? 0x7c00 : normal;
  return static_cast<std::uint16_t>(magnitude > 0x7f800000 ? 0x7fff : sign | finite);
}

}  // namespace emulator
