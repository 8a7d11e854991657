// recurrent_case_check.cpp -- launches a kernel on a case, and compares what it wrote with the oracle.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tuner/oracle/compare.hpp"
#include "tuner/oracle/random_data.hpp"
#include "tuner/oracle/recurrent_case.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Yardsticks of an fp32 state are at least half of so many ulps, because few roundings may happen to be small.
constexpr double kLeastUlps = 4;
constexpr double kMostErrorRatio = 2;

/// The largest error that the comparison knows of values of this size, for one request.
class ErrorYardstick {
 public:
  /// `ulp` says how far neighbours of a stored value are apart.
  template <class Ulp>
  void add(double oracle, double plain, const Ulp& ulp) {
    plain_error_ = std::max(plain_error_, std::abs(plain - oracle));
    floor_ = std::max(floor_, ulp(std::abs(oracle)) / 2);
  }
  double largest() const { return std::max(plain_error_, floor_); }

 private:
  double plain_error_ = 0, floor_ = 0;
};

/// Compares one value.
template <class Where>
void judge(double got, double right, const ErrorYardstick& yardstick, const Where& where, RecurrentOutcome& outcome) {
  const double ratio = std::isfinite(got) ? std::abs(got - right) / yardstick.largest() : INFINITY;
  outcome.error_ratio = std::max(outcome.error_ratio, ratio);
  if (!(ratio <= kMostErrorRatio))
    outcome.fail(
        fmt::format("{} is {} instead of {}, with a yardstick of {}", where(), got, right, yardstick.largest()));
}

double float_ulp(double magnitude) { return std::max(magnitude, 1e-30) * 0x1p-23; }

}  // namespace

LeanRecurrentArgs RecurrentCase::arguments(const DeviceBuffer& pool, const DeviceBuffer& o, int launch) const {
  const std::int64_t row = launch * tokens_;  // the first of its tokens
  LeanRecurrentArgs args{};
  args.slots = slots_.device.as<int>();
  args.accepted = problem_.snapshots ? accepted_.device.as<int>() : nullptr;
  args.token_offsets = offsets_.device.as<int>();
  args.q = q_.device.at(2 * row * q_stride_), args.k = k_.device.at(2 * row * q_stride_);
  args.v = v_.device.at(2 * row * v_stride_), args.z = z_.device.at(2 * row * v_stride_);
  args.a = given_a_.host.empty() ? a_.device.at(2 * row * a_stride_) : given_a_.device.at(4 * row * a_stride_);
  args.b = given_b_.host.empty() ? b_.device.at(2 * row * b_stride_) : given_b_.device.at(4 * row * b_stride_);
  args.erase = erase_.device.at(2 * row * erase_stride_), args.write = write_.device.at(2 * row * write_stride_);
  args.erase_stride = erase_stride_, args.write_stride = write_stride_;
  args.a_log = a_log_.device.as<float>(), args.dt_bias = dt_bias_.device.as<float>();
  args.skip = skip_.device.as<float>();
  args.norm_weight = norm_weight_.device.as<float>();
  args.state = pool.as<char>(), args.o = o.at(2 * row * v_stride_);
  args.out_slots = out_slots_.device.as<int>();
  args.q_stride = args.k_stride = q_stride_;
  args.v_stride = args.o_stride = args.z_stride = v_stride_;
  args.a_stride = a_stride_, args.b_stride = b_stride_, args.state_stride = state_stride_;
  args.slots_stride = args.out_slots_stride = slots_stride_;
  args.slot_count = slot_count_, args.first_slot = first_slot_;
  args.scale = scale_, args.norm_eps = norm_eps_, args.lower_bound = lower_bound_, args.output_eps = output_eps_;
  return args;
}

Result<RecurrentOutcome> RecurrentCase::check(const RecurrentKernel& kernel, const Stream& stream) const {
  const bool fp32 = problem_.state == StateType::fp32;
  const std::int64_t pool_bytes = slot_count_ * state_stride_ * bytes_of(problem_.state);
  const std::int64_t o_bytes = rows() * v_stride_ * 2;
  auto pool = DeviceBuffer::allocate(pool_bytes), o = DeviceBuffer::allocate(o_bytes);
  if (!pool) return tl::unexpected(pool.error());
  if (!o) return tl::unexpected(o.error());
  const void* const fresh = fp32 ? pool_.device.data() : pool16_.device.data();
  if (auto ok = copy_on_device_async(pool->data(), fresh, pool_bytes, stream.get()); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = fill_bytes_async(o->data(), kPoisonByte, o_bytes, stream.get()); !ok) return tl::unexpected(ok.error());
  const auto convolution = convolution_.start(stream);
  if (!convolution) return tl::unexpected(convolution.error());
  const auto rings = ring_.start(stream);
  if (!rings) return tl::unexpected(rings.error());
  for (int launch = 0; launch < options_.launches; ++launch) {
    LeanRecurrentArgs args = arguments(*pool, *o, launch);
    convolution_.bind(*convolution, args);
    ring_.bind(*rings, launch, args);
    if (auto ok = kernel.launch(args, options_.batch, stream.get()); !ok) return tl::unexpected(ok.error());
  }
  Got got{.o = std::vector<std::uint16_t>(static_cast<std::size_t>(rows() * v_stride_)),
          .pool = std::vector<std::uint32_t>(pool_.host.size()),
          .pool16 = std::vector<std::uint16_t>(pool16_.host.size()),
          .rings = {}};
  if (auto ok = copy_to_host(got.o.data(), o->data(), o_bytes, stream); !ok) return tl::unexpected(ok.error());
  void* const to = fp32 ? static_cast<void*>(got.pool.data()) : got.pool16.data();
  if (auto ok = copy_to_host(to, pool->data(), pool_bytes, stream); !ok) return tl::unexpected(ok.error());
  auto entries = ring_.read(*rings, stream);
  if (!entries) return tl::unexpected(entries.error());
  got.rings = *std::move(entries);
  RecurrentOutcome outcome;
  compare_outputs(got, outcome);
  compare_states(got, outcome);
  compare_rings(got, outcome);
  const auto wrong = convolution_.compare(*convolution, oracle_.conv_states, stream);
  if (!wrong) return tl::unexpected(wrong.error());
  if (!wrong->empty()) outcome.fail(*wrong);
  return outcome;
}

void RecurrentCase::compare_outputs(const Got& got, RecurrentOutcome& outcome) const {
  const std::int64_t row = std::int64_t{problem_.v_heads} * problem_.value_dim;
  const auto ulp = [&](double magnitude) { return unit_in_last_place(problem_.dtype, magnitude); };
  std::vector<bool> written(static_cast<std::size_t>(rows()));
  for (int launch = 0; launch < options_.launches; ++launch) {
    for (int request = 0; request < options_.batch; ++request) {
      ErrorYardstick yardstick;
      const auto begin = static_cast<std::size_t>(first_token(request, launch) * row),
                 end = begin + static_cast<std::size_t>(tokens_of(request) * row);
      for (std::size_t i = begin; i < end; ++i)
        yardstick.add(oracle_.o[i], value_of(problem_.dtype, bits_of(problem_.dtype, plain_.o[i])), ulp);
      for (int t = 0; t < tokens_of(request); ++t) {
        const std::int64_t token = first_token(request, launch) + t;
        written[static_cast<std::size_t>(token)] = true;
        for (std::int64_t i = 0; i < row; ++i) {
          const std::uint16_t bits = got.o[static_cast<std::size_t>(token * v_stride_ + i)];
          const auto where = [&] {
            return fmt::format("o of launch {}, request {}, token {}, element {}", launch, request, t, i);
          };
          if (is_null(start_slot(request)) && bits != 0) outcome.fail(where() + " of a null slot is not zero");
          judge(value_of(problem_.dtype, bits), oracle_.o[static_cast<std::size_t>(token * row + i)], yardstick, where,
                outcome);
        }
      }
    }
  }
  // What no token has stays poisoned.
  for (std::int64_t token = 0; token < rows(); ++token) {
    for (std::int64_t i = written[static_cast<std::size_t>(token)] ? row : 0; i < v_stride_; ++i) {
      if (got.o[static_cast<std::size_t>(token * v_stride_ + i)] != 0xFFFF)
        outcome.fail(fmt::format("o of row {}, element {} is no token's, but was written", token, i));
    }
  }
}

void RecurrentCase::compare_states(const Got& got, RecurrentOutcome& outcome) const {
  const bool fp32 = problem_.state == StateType::fp32;
  std::vector<bool> stored(static_cast<std::size_t>(slot_count_));
  for (int request = 0; request < options_.batch; ++request) {
    if (is_null(start_slot(request))) continue;
    for (int t = 0; t < tokens_of(request); ++t) {
      if (const int slot = slot_after(request, t); !is_null(slot)) stored[static_cast<std::size_t>(slot)] = true;
    }
    for (int launch = 0; launch < options_.launches && problem_.ring > 0; ++launch) {
      if (ring_.flushes(request, launch)) stored[static_cast<std::size_t>(start_slot(request))] = true;
    }
  }
  const auto ulp = [&](double magnitude) {
    return fp32 ? kLeastUlps * float_ulp(magnitude) : unit_in_last_place(DType::bf16, magnitude);
  };
  for (int slot = 0; slot < slot_count_; ++slot) {
    const bool changed = stored[static_cast<std::size_t>(slot)];
    ErrorYardstick yardstick;
    for (std::int64_t i = 0; changed && i < elements_of_slot(); ++i) {
      const auto at = static_cast<std::size_t>(state_index(slot, i));
      const double rounded = fp32 ? plain_.state[at] : value_of(DType::bf16, bits_of(DType::bf16, plain_.state[at]));
      yardstick.add(oracle_.state[at], rounded, ulp);
    }
    for (std::int64_t i = 0; i < state_stride_; ++i) {
      const auto at = static_cast<std::size_t>(state_index(slot, i));
      const auto where = [&] { return fmt::format("state of slot {}, element {}", slot, i); };
      if (changed && i < elements_of_slot()) {
        judge(state_value(got.pool, got.pool16, at), oracle_.state[at], yardstick, where, outcome);
      } else if (fp32 ? got.pool[at] != pool_.host[at] : got.pool16[at] != pool16_.host[at]) {
        outcome.fail(where() + " is nobody's, but was written");
      }
    }
  }
}

void RecurrentCase::compare_rings(const Got& got, RecurrentOutcome& outcome) const {
  for (std::size_t part = 0; part < got.rings.size(); ++part) {
    // Factors are few, and a small one has the error of its large logarithm. They count beside a factor of 1.
    const auto ulp = [&](double magnitude) { return kLeastUlps * float_ulp(part == 2 ? 1 : magnitude); };
    // What was written differs from what was drawn, which is no number where it is nobody's.
    const std::vector<float>& drawn = ring_.drawn(part);
    const auto written = [&](std::size_t i) {
      return std::isfinite(oracle_.rings[part][i]) && oracle_.rings[part][i] != static_cast<double>(drawn[i]);
    };
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(slot_count_) && !drawn.empty(); ++slot) {
      const std::size_t begin = slot * ring_.stride(part);
      ErrorYardstick yardstick;
      for (std::size_t i = begin; i < begin + ring_.elements(part); ++i) {
        if (written(i)) yardstick.add(oracle_.rings[part][i], plain_.rings[part][i], ulp);
      }
      for (std::size_t i = begin; i < begin + ring_.stride(part); ++i) {
        const auto where = [&] {
          return fmt::format("{} of slot {}'s ring, element {}", "ukw"[part], slot, i - begin);
        };
        if (written(i)) {
          judge(got.rings[part][i], oracle_.rings[part][i], yardstick, where, outcome);
        } else if (std::bit_cast<std::uint32_t>(got.rings[part][i]) != std::bit_cast<std::uint32_t>(drawn[i])) {
          outcome.fail(where() + " is no token's, but was written");
        }
      }
    }
  }
}

}  // namespace v1
}  // namespace leanattn
