// arithmetic.cpp -- instructions on integers, floats and predicates (PTX ISA, "Integer Arithmetic Instructions",
// "Floating Point Instructions", "Half Precision Floating Point Instructions", "Comparison and Selection Instructions",
// "Logic and Shift Instructions").
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/emulator/decoder.hpp"
#include "tests/emulator/lanewise.hpp"

namespace emulator {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// make(T()) for the integer type T; null for other types.
template <class Make>
Handler of_integers(Type type, Make make) {
  switch (type) {
    case Type::u16: return make(u16{});
    case Type::u32: return make(u32{});
    case Type::u64: return make(u64{});
    case Type::s16: return make(s16{});
    case Type::s32: return make(s32{});
    case Type::s64: return make(s64{});
    default: return nullptr;
  }
}
template <class Make>
Handler of_floats(Type type, Make make) {
  return type == Type::f32 ? make(float{}) : type == Type::f64 ? make(double{}) : nullptr;
}
template <class Make>
Handler of_bits(Type type, Make make) {
  const int bytes = bytes_of(type);
  return bytes == 2 ? make(u16{}) : bytes == 4 ? make(u32{}) : bytes == 8 ? make(u64{}) : nullptr;
}
template <class T>
struct Wider;
template <>
struct Wider<u16> {
  using type = u32;
};
template <>
struct Wider<s16> {
  using type = s32;
};
template <>
struct Wider<u32> {
  using type = u64;
};
template <>
struct Wider<s32> {
  using type = s64;
};
template <>
struct Wider<u64> {
  using type = unsigned __int128;
};
template <>
struct Wider<s64> {
  using type = __int128;
};
template <class T>
using Unsigned = std::make_unsigned_t<T>;

/// Emits a handler of one result and `count` operands of the same type.
void emit_same(Decoder& d, Handler handler, Type type, std::size_t count) {
  if (handler == nullptr) d.unknown("its type");
  const Operand result = d.destination(0, type);
  std::vector<Operand> sources;
  for (std::size_t i = 1; i <= count; ++i) sources.push_back(d.source(i, type));
  d.emit(handler, {result}, sources);
}

/// Takes the rounding of a float instruction, which must be to the nearest, and .ftz.
bool take_rounding(Decoder& d) {
  d.take("rn");
  return d.take("ftz");
}

float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// Of two halves of a word.
template <class F>
u32 both_halves(u32 a, u32 b, bool bf16, F f) {
  const auto one = [&](int shift) -> u32 {
    const auto x = static_cast<u16>(a >> shift), y = static_cast<u16>(b >> shift);
    return bf16 ? to_bf16(f(from_bf16(x), from_bf16(y))) : to_f16(f(from_f16(x), from_f16(y)));
  };
  return one(0) | one(16) << 16;
}

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;
    return a < b ? a : b;
  }
};
struct Most {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a != a ? b : b != b ? a : a > b || (a == b && std::signbit(b)) ? a : b;
    return a > b ? a : b;
  }
};

/// Instructions of two operands that exist for floats and, in modular arithmetic, for integers.
template <class F>
Handler two_operands(Type type, bool ftz) {
  if (type == Type::f16x2) return lanewise<u32, u32, u32>([](u32 a, u32 b) { return both_halves(a, b, false, F{}); });
  if (type == Type::bf16x2) return lanewise<u32, u32, u32>([](u32 a, u32 b) { return both_halves(a, b, true, F{}); });
  if (type == Type::f16)
    return lanewise<u16, u16, u16>([](u16 a, u16 b) { return to_f16(F{}(from_f16(a), from_f16(b))); });
  if (type == Type::bf16)
    return lanewise<u16, u16, u16>([](u16 a, u16 b) { return to_bf16(F{}(from_bf16(a), from_bf16(b))); });
  if (type == Type::f32 && ftz)
    return lanewise<float, float, float>([](float a, float b) { return flushed(F{}(flushed(a), flushed(b))); });
  if (type == Type::f32) return lanewise<float, float, float>(F{});
  if (type == Type::f64) return lanewise<double, double, double>(F{});
  return nullptr;
}

template <class F>
void select_modular(Decoder& d) {
  const bool ftz = take_rounding(d);
  const Type type = d.type();
  Handler handler = two_operands<F>(type, ftz);
  if (handler == nullptr) {
    handler = of_integers(type, [](auto x) {
      using T = Unsigned<decltype(x)>;
      return lanewise<T, T, T>([](T a, T b) { return static_cast<T>(F{}(static_cast<u64>(a), static_cast<u64>(b))); });
    });
  }
  emit_same(d, handler, type, 2);
}

/// a + b, rounded towards zero. fp64 has the sum as far as it counts.
float sum_towards_zero(float a, float b) {
  const double sum = static_cast<double>(a) + b;
  const float nearest = static_cast<float>(sum);
  return std::abs(static_cast<double>(nearest)) > std::abs(sum) ? std::nextafter(nearest, 0.0F) : nearest;
}

void select_add(Decoder& d) {
  if (!d.take("rz")) return select_modular<Add>(d);
  const Type type = d.type();
  if (type != Type::f32) d.unknown();
  emit_same(d, lanewise<float, float, float>([](float a, float b) { return sum_towards_zero(a, b); }), type, 2);
}

void select_multiply(Decoder& d) {
  const std::string_view part = d.take_any({"lo", "hi", "wide"});
  if (part.empty() || part == "lo") return select_modular<Multiply>(d);
  const Type type = d.type();
  const bool wide = part == "wide";
  const Handler handler = of_integers(type, [wide](auto x) -> Handler {
    using T = decltype(x);
    using W = typename Wider<T>::type;
    if constexpr (sizeof(T) < 8) {
      if (wide)
        return lanewise<W, T, T>([](T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); });
    }
    return lanewise<T, T, T>(
        [](T a, T b) { return static_cast<T>(static_cast<W>(a) * static_cast<W>(b) >> sizeof(T) * 8); });
  });
  if (!wide) return emit_same(d, handler, type, 2);
  const Type result = bytes_of(type) == 2 ? Type::u32 : Type::u64;
  d.emit(handler, {d.destination(0, result)}, {d.source(1, type), d.source(2, type)});
}

void select_multiply_add(Decoder& d) {
  const std::string_view part = d.take_any({"lo", "hi", "wide"});
  if (part.empty()) d.unknown();
  const Type type = d.type();
  if (part == "wide") {
    const Handler handler = of_integers(type, [](auto x) -> Handler {
      using T = decltype(x);
      using W = typename Wider<T>::type;
      if constexpr (sizeof(T) < 8) {
        return lanewise<W, T, T, W>([](T a, T b, W c) {
          return static_cast<W>(static_cast<Unsigned<W>>(static_cast<W>(a) * static_cast<W>(b)) +
                                static_cast<Unsigned<W>>(c));
        });
      }
      return nullptr;
    });
    const Type result = bytes_of(type) == 2 ? Type::u32 : Type::u64;
    if (handler == nullptr) d.unknown("its type");
    d.emit(handler, {d.destination(0, result)}, {d.source(1, type), d.source(2, type), d.source(3, result)});
    return;
  }
  const bool high = part == "hi";
  emit_same(d,
            of_integers(type,
                        [high](auto x) {
                          using T = decltype(x);
                          using W = typename Wider<T>::type;
                          if (high) {
                            return lanewise<T, T, T, T>([](T a, T b, T c) {
                              return static_cast<T>((static_cast<W>(a) * static_cast<W>(b) >> sizeof(T) * 8) + c);
                            });
                          }
                          return lanewise<T, T, T, T>([](T a, T b, T c) {
                            return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b) + static_cast<u64>(c));
                          });
                        }),
            type, 3);
}

/// a * b + c, rounded down. fp64 has the product, and the sum as far as it counts.
float fma_down(float a, float b, float c) {
  const double sum = static_cast<double>(a) * b + c;
  const float nearest = static_cast<float>(sum);
  return static_cast<double>(nearest) > sum ? std::nextafter(nearest, -std::numeric_limits<float>::infinity())
                                            : nearest;
}

void select_fma(Decoder& d) {
  const bool down = d.take("rm"), ftz = take_rounding(d);
  const Type type = d.type();
  if (ftz) d.unknown("ftz");
  if (down) {
    if (type != Type::f32) d.unknown();
    return emit_same(
        d, lanewise<float, float, float, float>([](float a, float b, float c) { return fma_down(a, b, c); }), type, 3);
  }
  Handler handler = of_floats(type, [](auto x) {
    using T = decltype(x);
    return lanewise<T, T, T, T>([](T a, T b, T c) { return std::fma(a, b, c); });
  });
  // The product of two halves is exact in fp32, and its sum is in fp64.
  const auto halves = [](u32 a, u32 b, u32 c, auto from, auto to) {
    const auto one = [&](int shift) -> u32 {
      const double sum = static_cast<double>(from(static_cast<u16>(a >> shift))) * from(static_cast<u16>(b >> shift)) +
                         from(static_cast<u16>(c >> shift));
      return to(static_cast<float>(sum));
    };
    return one(0) | one(16) << 16;
  };
  if (type == Type::f16x2) {
    handler = lanewise<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) {
      return decltype(halves){}(
          a, b, c, [](u16 x) { return from_f16(x); }, [](float x) { return to_f16(x); });
    });
  } else if (type == Type::bf16x2) {
    handler = lanewise<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) {
      return decltype(halves){}(
          a, b, c, [](u16 x) { return from_bf16(x); }, [](float x) { return to_bf16(x); });
    });
  }
  emit_same(d, handler, type, 3);
}

void select_divide(Decoder& d) {
  const std::string_view kind = d.take_any({"approx", "full", "rn"});
  d.take("ftz");
  const Type type = d.type();
  Handler handler = of_floats(type, [](auto x) {
    using T = decltype(x);
    return lanewise<T, T, T>([](T a, T b) { return a / b; });
  });
  if (handler == nullptr && kind.empty()) {
    handler = of_integers(type, [](auto x) {
      using T = decltype(x);
      return lanewise<T, T, T>([](T a, T b) -> T {
        if (b == 0) return static_cast<T>(~T{0});
        return std::is_signed_v<T> && b == static_cast<T>(-1) ? static_cast<T>(-static_cast<Unsigned<T>>(a))
                                                              : static_cast<T>(a / b);
      });
    });
  }
  emit_same(d, handler, type, 2);
}
void select_remainder(Decoder& d) {
  const Type type = d.type();
  emit_same(d,
            of_integers(type,
                        [](auto x) {
                          using T = decltype(x);
                          return lanewise<T, T, T>([](T a, T b) -> T {
                            if (b == 0) return a;
                            return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b);
                          });
                        }),
            type, 2);
}

template <class F>
void select_extreme(Decoder& d) {
  const bool ftz = d.take("ftz");
  const Type type = d.type();
  Handler handler = two_operands<F>(type, ftz);
  if (handler == nullptr) {
    handler = of_integers(type, [](auto x) {
      using T = decltype(x);
      return lanewise<T, T, T>(F{});
    });
  }
  emit_same(d, handler, type, 2);
}

void select_absolute(Decoder& d) {
  d.take("ftz");
  const Type type = d.type();
  Handler handler = of_floats(type, [](auto x) {
    using T = decltype(x);
    return lanewise<T, T>([](T a) { return std::abs(a); });
  });
  if (type == Type::s32) handler = lanewise<u32, u32>([](u32 a) { return a >> 31 != 0 ? 0 - a : a; });
  if (type == Type::s64) handler = lanewise<u64, u64>([](u64 a) { return a >> 63 != 0 ? 0 - a : a; });
  if (type == Type::f16x2 || type == Type::bf16x2) handler = lanewise<u32, u32>([](u32 a) { return a & 0x7fff7fff; });
  emit_same(d, handler, type, 1);
}
void select_negate(Decoder& d) {
  d.take("ftz");
  const Type type = d.type();
  Handler handler = of_floats(type, [](auto x) {
    using T = decltype(x);
    return lanewise<T, T>([](T a) { return -a; });
  });
  if (handler == nullptr) {
    handler = of_integers(type, [](auto x) {
      using T = Unsigned<decltype(x)>;
      return lanewise<T, T>([](T a) { return static_cast<T>(0 - static_cast<u64>(a)); });
    });
  }
  if (type == Type::f16x2 || type == Type::bf16x2) handler = lanewise<u32, u32>([](u32 a) { return a ^ 0x80008000; });
  emit_same(d, handler, type, 1);
}
void select_copysign(Decoder& d) {
  const Type type = d.type();
  emit_same(d,
            of_floats(type,
                      [](auto x) {
                        using T = decltype(x);
                        return lanewise<T, T, T>([](T sign, T magnitude) { return std::copysign(magnitude, sign); });
                      }),
            type, 2);
}

/// 2^x, as accurate as the GPU's: the polynomial of 2^f for |f| <= 1/2, times a power of two.
float exp2_approx(float x) {
  const float bounded = x < -160.0f ? -160.0f : x > 160.0f ? 160.0f : x != x ? 0.0f : x;
  const float whole = std::nearbyint(bounded), f = bounded - whole;
  float p = 1.5403530393381608e-4f;
  p = std::fma(p, f, 1.3333558146428443e-3f);
  p = std::fma(p, f, 9.6181291076284772e-3f);
  p = std::fma(p, f, 5.5504108664821580e-2f);
  p = std::fma(p, f, 2.4022650695910072e-1f);
  p = std::fma(p, f, 6.9314718055994531e-1f);
  p = std::fma(p, f, 1.0f);
  const int n = static_cast<int>(whole), half = n / 2;
  const float scaled = p * std::bit_cast<float>((127 + half) << 23) * std::bit_cast<float>((127 + n - half) << 23);
  return x != x ? x : scaled;
}

template <class F>
void select_function(Decoder& d) {
  d.take_any({"approx", "rn"});
  const bool ftz = d.take("ftz");
  const Type type = d.type();
  Handler handler = type == Type::f64 ? lanewise<double, double>(F{}) : nullptr;
  if (type == Type::f32) {
    handler =
        ftz ? lanewise<float, float>([](float x) { return flushed(F{}(flushed(x))); }) : lanewise<float, float>(F{});
  }
  emit_same(d, handler, type, 1);
}
struct Exp2 {
  float operator()(float x) const { return exp2_approx(x); }
  double operator()(double x) const { return std::exp2(x); }
};
struct Log2 {
  template <class T>
  T operator()(T x) const {
    return std::log2(x);
  }
};
struct Tanh {
  template <class T>
  T operator()(T x) const {
    return std::tanh(x);
  }
};
struct Sine {
  template <class T>
  T operator()(T x) const {
    return std::sin(x);
  }
};
struct Cosine {
  template <class T>
  T operator()(T x) const {
    return std::cos(x);
  }
};
struct Root {
  template <class T>
  T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct InverseRoot {
  template <class T>
  T operator()(T x) const {
    return 1 / std::sqrt(x);
  }
};
struct Inverse {
  template <class T>
  T operator()(T x) const {
    return 1 / x;
  }
};

// Logic. Predicates are words of bits.
template <class F>
void run_predicates(Warp& w, const Instruction& in) {
  w.set_predicate(in, 0, F{}(*w.at<u32>(in, 1), *w.at<u32>(in, in.count > 2 ? 2 : 1)));
}
template <class F>
void select_logic(Decoder& d) {
  const Type type = d.type();
  if (type == Type::pred) return emit_same(d, run_predicates<F>, type, 2);
  emit_same(d,
            of_bits(type,
                    [](auto x) {
                      using T = decltype(x);
                      return lanewise<T, T, T>([](T a, T b) { return static_cast<T>(F{}(a, b)); });
                    }),
            type, 2);
}
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct ExclusiveOr {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct Not {
  u32 operator()(u32 a, u32) const { return ~a; }
};

void select_not(Decoder& d) {
  const Type type = d.type();
  if (type == Type::pred) return emit_same(d, run_predicates<Not>, type, 1);
  emit_same(d,
            of_bits(type,
                    [](auto x) {
                      using T = decltype(x);
                      return lanewise<T, T>([](T a) { return static_cast<T>(~a); });
                    }),
            type, 1);
}

void select_shift(Decoder& d) {
  const bool left = d.opcode().starts_with("shl");
  const Type type = d.type();
  Handler handler = nullptr;
  if (left) {
    handler = of_bits(type, [](auto x) {
      using T = decltype(x);
      return lanewise<T, T, u32>(
          [](T a, u32 n) { return n >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<u64>(a) << n); });
    });
  } else if (is_signed(type)) {
    handler = of_integers(type, [](auto x) {
      using T = decltype(x);
      return lanewise<T, T, u32>(
          [](T a, u32 n) { return static_cast<T>(a >> (n >= sizeof(T) * 8 ? sizeof(T) * 8 - 1 : n)); });
    });
  } else {
    handler = of_bits(type, [](auto x) {
      using T = decltype(x);
      return lanewise<T, T, u32>([](T a, u32 n) { return n >= sizeof(T) * 8 ? T{0} : static_cast<T>(a >> n); });
    });
  }
  d.emit(handler, {d.destination(0, type)}, {d.source(1, type), d.source(2, Type::u32)});
}

void select_funnel_shift(Decoder& d) {
  const bool left = d.take("l");
  if (!left && !d.take("r")) d.unknown();
  const bool wrap = d.take("wrap");
  if (!wrap && !d.take("clamp")) d.unknown();
  const Type type = d.type();
  if (type != Type::b32) d.unknown();
  Handler handler = nullptr;
  if (left && wrap)
    handler = lanewise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>(((u64{b} << 32 | a) << (n & 31)) >> 32); });
  if (left && !wrap)
    handler = lanewise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>(((u64{b} << 32 | a) << (n < 32 ? n : 32)) >> 32); });
  if (!left && wrap)
    handler = lanewise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>((u64{b} << 32 | a) >> (n & 31)); });
  if (!left && !wrap)
    handler = lanewise<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 n) { return static_cast<u32>((u64{b} << 32 | a) >> (n < 32 ? n : 32)); });
  emit_same(d, handler, type, 3);
}

void select_bits_of(Decoder& d) {
  const bool count = d.opcode().starts_with("popc"), leading = d.opcode().starts_with("clz");
  const Type type = d.type();
  const Handler handler = of_bits(type, [&](auto x) -> Handler {
    using T = decltype(x);
    if (count) return lanewise<u32, T>([](T a) { return static_cast<u32>(std::popcount(a)); });
    if (leading) return lanewise<u32, T>([](T a) { return static_cast<u32>(std::countl_zero(a)); });
    return nullptr;
  });
  if (handler == nullptr) d.unknown();
  d.emit(handler, {d.destination(0, Type::u32)}, {d.source(1, type)});
}
void select_reverse(Decoder& d) {
  const Type type = d.type();
  if (type != Type::b32) d.unknown();
  emit_same(d, lanewise<u32, u32>([](u32 a) {
              a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
              a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
              a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
              return __builtin_bswap32(a);
            }),
            type, 1);
}
void select_find(Decoder& d) {
  const Type type = d.type();
  if (type != Type::u32 && type != Type::b32) d.unknown();
  d.emit(lanewise<u32, u32>([](u32 a) { return a == 0 ? ~0u : 31u - static_cast<u32>(std::countl_zero(a)); }),
         {d.destination(0, Type::u32)}, {d.source(1, type)});
}

template <class T>
T low_bits(u32 count) {
  return count >= sizeof(T) * 8 ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << count) - 1);
}

void select_extract(Decoder& d) {  // bfe
  const Type type = d.type();
  const Handler handler = of_integers(type, [](auto x) -> Handler {
    using T = decltype(x);
    using U = Unsigned<T>;
    return lanewise<T, T, u32, u32>([](T a, u32 at, u32 length) {
      constexpr u32 kBits = sizeof(T) * 8;
      at &= 255, length &= 255;
      if (length == 0) return T{0};
      const u32 last = std::min(at + length - 1, kBits - 1);
      const bool negative = std::is_signed_v<T> && (static_cast<U>(a) >> last & 1) != 0;
      const U field = at >= kBits ? U{0} : static_cast<U>(static_cast<U>(a) >> at),
              mask = low_bits<U>(std::min(length, at >= kBits ? 0 : kBits - at));
      return static_cast<T>(negative ? field | static_cast<U>(~mask) : field & mask);
    });
  });
  if (handler == nullptr || bytes_of(type) < 4) d.unknown();
  d.emit(handler, {d.destination(0, type)}, {d.source(1, type), d.source(2, Type::u32), d.source(3, Type::u32)});
}
void select_insert(Decoder& d) {  // bfi
  const Type type = d.type();
  const Handler handler = of_bits(type, [](auto x) {
    using T = decltype(x);
    return lanewise<T, T, T, u32, u32>([](T a, T b, u32 at, u32 length) {
      at &= 255, length &= 255;
      if (at >= sizeof(T) * 8) return b;
      const T mask = static_cast<T>(low_bits<T>(length) << at);
      return static_cast<T>((b & ~mask) | (static_cast<T>(a << at) & mask));
    });
  });
  if (bytes_of(type) < 4) d.unknown();
  d.emit(handler, {d.destination(0, type)},
         {d.source(1, type), d.source(2, type), d.source(3, Type::u32), d.source(4, Type::u32)});
}

void select_permute(Decoder& d) {
  const Type type = d.type();
  if (type != Type::b32) d.unknown();
  emit_same(d, lanewise<u32, u32, u32, u32>([](u32 a, u32 b, u32 selector) {
              const u64 bytes = u64{b} << 32 | a;
              u32 result = 0;
              for (int i = 0; i < 4; ++i) {
                const u32 which = selector >> 4 * i & 15;
                u32 byte = static_cast<u32>(bytes >> (which & 7) * 8) & 255;
                if ((which & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
                result |= byte << 8 * i;
              }
              return result;
            }),
            type, 3);
}

void select_logic_of_three(Decoder& d) {
  const Type type = d.type();
  if (type != Type::b32) d.unknown();
  const u32 table = static_cast<u32>(d.integer(4));
  d.emit(lanewise<u32, u32, u32, u32, u32>([](u32 a, u32 b, u32 c, u32 f) {
           u32 result = 0;
           for (u32 i = 0; i < 8; ++i)
             if ((f >> i & 1) != 0)
               result |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
           return result;
         }),
         {d.destination(0, type)}, {d.source(1, type), d.source(2, type), d.source(3, type), d.constant<u32>(table)});
}

// Comparisons.
template <class T>
Handler comparison(std::string_view name) {
  if (name == "eq") return lanewise<Predicate, T, T>([](T a, T b) { return a == b; });
  if (name == "ne") {
    if constexpr (std::is_floating_point_v<T>)
      return lanewise<Predicate, T, T>([](T a, T b) { return a < b || a > b; });
    return lanewise<Predicate, T, T>([](T a, T b) { return a != b; });
  }
  if (name == "lt" || name == "lo") return lanewise<Predicate, T, T>([](T a, T b) { return a < b; });
  if (name == "le" || name == "ls") return lanewise<Predicate, T, T>([](T a, T b) { return a <= b; });
  if (name == "gt" || name == "hi") return lanewise<Predicate, T, T>([](T a, T b) { return a > b; });
  if (name == "ge" || name == "hs") return lanewise<Predicate, T, T>([](T a, T b) { return a >= b; });
  if constexpr (std::is_floating_point_v<T>) {
    if (name == "equ") return lanewise<Predicate, T, T>([](T a, T b) { return !(a < b || a > b); });
    if (name == "neu") return lanewise<Predicate, T, T>([](T a, T b) { return a != b; });
    if (name == "ltu") return lanewise<Predicate, T, T>([](T a, T b) { return !(a >= b); });
    if (name == "leu") return lanewise<Predicate, T, T>([](T a, T b) { return !(a > b); });
    if (name == "gtu") return lanewise<Predicate, T, T>([](T a, T b) { return !(a <= b); });
    if (name == "geu") return lanewise<Predicate, T, T>([](T a, T b) { return !(a < b); });
    if (name == "num") return lanewise<Predicate, T, T>([](T a, T b) { return a == a && b == b; });
    if (name == "nan") return lanewise<Predicate, T, T>([](T a, T b) { return a != a || b != b; });
  }
  return nullptr;
}
template <class F>
void run_combine(Warp& w, const Instruction& in) {
  w.set_predicate(in, 0, F{}(*w.at<u32>(in, 1), *w.at<u32>(in, 2)));
}

void select_compare(Decoder& d) {
  const std::string_view comparison_name = d.take_any({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
                                                       "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
  const std::string_view combined = d.take_any({"and", "or", "xor"});
  d.take("ftz");
  const Type type = d.type();
  Handler handler = of_floats(type, [&](auto x) { return comparison<decltype(x)>(comparison_name); });
  if (handler == nullptr) handler = of_integers(type, [&](auto x) { return comparison<decltype(x)>(comparison_name); });
  if (handler == nullptr && !is_float(type))
    handler = of_bits(type, [&](auto x) { return comparison<decltype(x)>(comparison_name); });
  if (handler == nullptr) d.unknown();
  if (d.argument(0).kind == Argument::Kind::list) d.unknown("two results");
  const Operand result = d.destination(0, Type::pred);
  if (combined.empty()) {
    d.emit(handler, {result}, {d.source(1, type), d.source(2, type)});
    return;
  }
  Argument other = d.argument(3);
  const bool negated = std::exchange(other.negated, false);
  Operand with = d.source(other, Type::pred);
  if (negated) {
    const Operand opposite = d.temporary(Type::pred);
    d.emit(run_predicates<Not>, {opposite}, {with});
    with = opposite;
  }
  const Operand alone = d.temporary(Type::pred);
  d.emit(handler, {alone}, {d.source(1, type), d.source(2, type)});
  d.emit(combined == "and"  ? run_combine<And>
         : combined == "or" ? run_combine<Or>
                            : run_combine<ExclusiveOr>,
         {result}, {alone, with});
}

void select_select(Decoder& d) {
  const Type type = d.type();
  d.emit(of_bits(type,
                 [](auto x) {
                   using T = decltype(x);
                   return lanewise<T, T, T, Predicate>([](T a, T b, bool p) { return p ? a : b; });
                 }),
         {d.destination(0, type)}, {d.source(1, type), d.source(2, type), d.source(3, Type::pred)});
}

}  // namespace

void add_arithmetic(Selects& selects) {
  selects["add"] = select_add;
  selects["sub"] = select_modular<Subtract>;
  selects["mul"] = select_multiply;
  selects["mad"] = select_multiply_add;
  selects["fma"] = select_fma;
  selects["div"] = select_divide;
  selects["rem"] = select_remainder;
  selects["min"] = select_extreme<Least>;
  selects["max"] = select_extreme<Most>;
  selects["abs"] = select_absolute;
  selects["neg"] = select_negate;
  selects["copysign"] = select_copysign;
  selects["ex2"] = select_function<Exp2>;
  selects["lg2"] = select_function<Log2>;
  selects["tanh"] = select_function<Tanh>;
  selects["sin"] = select_function<Sine>;
  selects["cos"] = select_function<Cosine>;
  selects["sqrt"] = select_function<Root>;
  selects["rsqrt"] = select_function<InverseRoot>;
  selects["rcp"] = select_function<Inverse>;
  selects["and"] = select_logic<And>;
  selects["or"] = select_logic<Or>;
  selects["xor"] = select_logic<ExclusiveOr>;
  selects["not"] = select_not;
  selects["shl"] = select_shift;
  selects["shr"] = select_shift;
  selects["shf"] = select_funnel_shift;
  selects["popc"] = select_bits_of;
  selects["clz"] = select_bits_of;
  selects["brev"] = select_reverse;
  selects["bfind"] = select_find;
  selects["bfe"] = select_extract;
  selects["bfi"] = select_insert;
  selects["prmt"] = select_permute;
  selects["lop3"] = select_logic_of_three;
  selects["setp"] = select_compare;
  selects["selp"] = select_select;
}

}  // namespace emulator
