#include "tuner/oracle/recurrent_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "tuner/oracle/compare.hpp"
#include "tuner/oracle/random_data.hpp"
#include "tuner/oracle/recurrent_oracle.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Yardsticks of an fp32 state are at least so many ulps. A factor of a decay is right to two, as expf() is.
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

double float_ulp(double magnitude) { return std::max(magnitude, 1e-30) * 0x1p-23; }

}  // namespace

std::string describe(const RecurrentCaseOptions& options) {
  return fmt::format("batch {}{}{}{}{}, seed {}", options.batch, options.padded ? ", padded" : "",
                     options.null_slots ? ", null slots" : "", options.zero_is_null ? ", slot 0 is null" : "",
                     options.moved ? ", other slots" : "", options.seed);
}

int RecurrentCase::tokens_of(int request) const {
  return problem_.ragged
             ? offsets_.host[static_cast<std::size_t>(request) + 1] - offsets_.host[static_cast<std::size_t>(request)]
             : problem_.tokens;
}

std::int64_t RecurrentCase::first_token(int request) const {
  return problem_.ragged ? offsets_.host[static_cast<std::size_t>(request)] : std::int64_t{request} * problem_.tokens;
}

int RecurrentCase::start_slot(int request) const {
  const int entry = problem_.snapshots ? accepted_.host[static_cast<std::size_t>(request)] - 1 : 0;
  return slots_.host[static_cast<std::size_t>(request * slots_stride_ + entry)];
}

int RecurrentCase::slot_after(int request, int token) const {
  if (!problem_.snapshots && token + 1 < tokens_of(request)) return -1;
  if (!problem_.snapshots && !options_.moved) return start_slot(request);
  const std::vector<int>& slots = options_.moved ? out_slots_.host : slots_.host;
  return slots[static_cast<std::size_t>(request * slots_stride_ + (problem_.snapshots ? token : 0))];
}

void RecurrentCase::draw() {
  std::mt19937_64 random(options_.seed);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  const auto element = [&](double low, double high) {
    return bits_of(problem_.dtype, static_cast<float>(uniform(low, high)));
  };
  const int batch = options_.batch, tokens = problem_.tokens;
  const bool given = problem_.gates == Gates::given;

  // Every request has slots of its own, in any order, and some slots belong to nobody.
  slots_stride_ = problem_.snapshots ? tokens : 1;
  if (options_.padded) slots_stride_ += 3;
  const int used = batch * slots_stride_ * (options_.moved ? 2 : 1);
  first_slot_ = options_.zero_is_null ? 1 : 0;
  slot_count_ = used + 3;
  std::vector<int> order(static_cast<std::size_t>(slot_count_ - first_slot_));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i) + first_slot_;
  std::shuffle(order.begin(), order.end(), random);
  const auto entries = static_cast<std::ptrdiff_t>(batch) * slots_stride_;
  slots_.host.assign(order.begin(), order.begin() + entries);
  if (options_.moved) out_slots_.host.assign(order.begin() + entries, order.begin() + 2 * entries);
  for (int request = 0; request < batch; ++request)
    accepted_.host.push_back(1 + static_cast<int>(random() % static_cast<unsigned>(tokens)));
  if (options_.null_slots) {
    const int nulls[] = {-1, slot_count_, options_.zero_is_null ? 0 : -7};
    for (int request = 0; request < batch; request += 2) {
      const int entry = problem_.snapshots ? accepted_.host[static_cast<std::size_t>(request)] - 1 : 0;
      slots_.host[static_cast<std::size_t>(request * slots_stride_ + entry)] = nulls[request / 2 % 3];
    }
    // A state that is read, but not stored.
    if (options_.moved && batch > 1) out_slots_.host[static_cast<std::size_t>(slots_stride_)] = nulls[0];
  }
  if (problem_.ragged) {
    offsets_.host.push_back(2);  // the first rows belong to nobody
    for (int request = 0; request < batch; ++request)
      offsets_.host.push_back(offsets_.host.back() + static_cast<int>(random() % static_cast<unsigned>(tokens + 1)));
  }
  tokens_ = problem_.ragged ? offsets_.host.back() + 1 : std::int64_t{batch} * tokens;

  const int pad = options_.padded ? 16 : 0;
  q_stride_ = problem_.qk_heads * problem_.key_dim + pad;
  v_stride_ = problem_.v_heads * problem_.value_dim + pad;
  a_stride_ = gates_of_token(problem_) + pad;
  b_stride_ = problem_.v_heads + pad;
  state_stride_ = elements_of_slot() + (options_.padded ? 64 : 0);
  scale_ = 1 / std::sqrt(static_cast<float>(problem_.key_dim));

  const auto fill = [&](auto& array, std::int64_t count, const auto& each) {
    array.host.resize(static_cast<std::size_t>(count));
    for (auto& value : array.host) value = each();
  };
  fill(q_, tokens_ * q_stride_, [&] { return element(-1, 1); });
  fill(k_, tokens_ * q_stride_, [&] { return element(-1, 1); });
  fill(v_, tokens_ * v_stride_, [&] { return element(-1, 1); });
  if (given) {
    fill(given_a_, tokens_ * a_stride_, [&] { return static_cast<float>(-std::exp(uniform(-7, 2))); });
    fill(given_b_, tokens_ * b_stride_, [&] { return static_cast<float>(uniform(0, 1)); });
  } else if (problem_.gates != Gates::constant) {
    fill(a_, tokens_ * a_stride_, [&] { return element(-4, 4); });
    fill(b_, tokens_ * b_stride_, [&] { return element(-4, 4); });
    fill(dt_bias_, gates_of_token(problem_), [&] { return static_cast<float>(uniform(-4, 1)); });
  }
  const bool constant = problem_.gates == Gates::constant;
  fill(a_log_, problem_.v_heads,
       [&] { return static_cast<float>(constant ? -std::exp(uniform(-7, 0)) : uniform(-2, 2)); });
  if (problem_.output_gate != OutputGate::none) {
    fill(z_, tokens_ * v_stride_, [&] { return element(-4, 4); });
    fill(norm_weight_, problem_.value_dim, [&] { return static_cast<float>(uniform(0.5, 2)); });
  }
  fill(skip_, problem_.v_heads, [&] { return static_cast<float>(uniform(-1, 1)); });
  const auto state = [&] { return static_cast<float>(uniform(-1, 1)); };
  if (problem_.state == StateType::fp32) {
    fill(pool_, slot_count_ * state_stride_, [&] { return std::bit_cast<std::uint32_t>(state()); });
  } else {
    fill(pool16_, slot_count_ * state_stride_, [&] { return bits_of(DType::bf16, state()); });
  }
}

Result<void> RecurrentCase::upload(const Stream& stream) {
  Result<void> ok;
  const auto copy = [&](auto& array) {
    if (!ok || array.host.empty()) return;
    const auto bytes = static_cast<std::int64_t>(array.host.size() * sizeof(array.host[0]));
    auto buffer = DeviceBuffer::allocate(bytes);
    if (!buffer) return static_cast<void>(ok = tl::unexpected(buffer.error()));
    array.device = *std::move(buffer);
    ok = copy_to_device(array.device.data(), array.host.data(), bytes, stream);
  };
  for (auto* array : {&slots_, &accepted_, &offsets_, &out_slots_}) copy(*array);
  for (auto* array : {&q_, &k_, &v_, &a_, &b_, &z_, &pool16_}) copy(*array);
  for (auto* array : {&given_a_, &given_b_, &a_log_, &dt_bias_, &skip_, &norm_weight_}) copy(*array);
  copy(pool_);
  return ok;
}

template <class Real>
RecurrentCase::Expected<Real> RecurrentCase::expected() const {
  const RecurrentUpdate& update = update_of(problem_.kind);
  const std::size_t keys = static_cast<std::size_t>(problem_.key_dim),
                    values = static_cast<std::size_t>(problem_.value_dim);
  const std::size_t gates = update.decay == Decay::channel ? keys : 1, of_head = keys * values;
  const auto columns = [&](const std::vector<std::uint16_t>& from, std::int64_t at, std::size_t count) {
    std::vector<Real> out(count);
    for (std::size_t i = 0; i < count; ++i)
      out[i] = static_cast<Real>(value_of(problem_.dtype, from[static_cast<std::size_t>(at) + i]));
    return out;
  };
  Expected<Real> out;
  out.o.assign(static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(problem_.v_heads) * values, 0);
  out.state.resize(static_cast<std::size_t>(slot_count_ * state_stride_));
  for (std::size_t i = 0; i < out.state.size(); ++i)
    out.state[i] = problem_.state == StateType::fp32 ? static_cast<Real>(std::bit_cast<float>(pool_.host[i]))
                                                     : static_cast<Real>(value_of(DType::bf16, pool16_.host[i]));
  for (int request = 0; request < options_.batch; ++request) {
    if (is_null(start_slot(request))) continue;
    for (int h = 0; h < problem_.v_heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      const std::int64_t key_head = h / (problem_.v_heads / problem_.qk_heads);
      const RecurrentHead<Real> of_kind{.a_log = a_log_.host[head],
                                        .skip = skip_.host[head],
                                        .scale = scale_,
                                        .norm_eps = norm_eps_,
                                        .lower_bound = lower_bound_};
      const auto at_slot = [&](int slot) {
        return out.state.begin() +
               static_cast<std::ptrdiff_t>(state_index(slot, static_cast<std::int64_t>(head * of_head)));
      };
      const auto start = at_slot(start_slot(request));
      std::vector<Real> state(start, start + static_cast<std::ptrdiff_t>(of_head));
      for (int t = 0; t < tokens_of(request); ++t) {
        const std::int64_t token = first_token(request) + t;
        RecurrentToken<Real> taken{.q = columns(q_.host, token * q_stride_ + key_head * problem_.key_dim, keys),
                                   .k = columns(k_.host, token * q_stride_ + key_head * problem_.key_dim, keys),
                                   .v = columns(v_.host, token * v_stride_ + h * problem_.value_dim, values),
                                   .gates = std::vector<Real>(gates)};
        for (std::size_t i = 0; i < gates; ++i) {
          const std::size_t gate = head * gates + i, at = static_cast<std::size_t>(token * a_stride_) + gate;
          if (!given_a_.host.empty()) {
            taken.gates[i] = given_a_.host[at];
          } else if (!a_.host.empty()) {
            // Kernels add in fp32, which is a part of the formula.
            taken.gates[i] =
                static_cast<Real>(value_of(problem_.dtype, a_.host[at])) + static_cast<Real>(dt_bias_.host[gate]);
          } else {
            taken.gates[i] = a_log_.host[head];
          }
        }
        const std::size_t at = static_cast<std::size_t>(token * b_stride_ + h);
        if (update.weight != UpdateWeight::one && !given_b_.host.empty()) taken.weight = given_b_.host[at];
        if (update.weight == UpdateWeight::beta && !b_.host.empty())
          taken.weight = static_cast<Real>(value_of(problem_.dtype, b_.host[at]));
        const std::span<Real> o = std::span(out.o).subspan(
            (static_cast<std::size_t>(token) * static_cast<std::size_t>(problem_.v_heads) + head) * values, values);
        take_token<Real>(problem_, of_kind, std::move(taken), state, o);
        if (problem_.output_gate != OutputGate::none) {
          const std::vector<Real> z = columns(z_.host, token * v_stride_ + h * problem_.value_dim, values),
                                  weight(norm_weight_.host.begin(), norm_weight_.host.end());
          gate_output<Real>(problem_, output_eps_, weight, z, o);
        }
        if (const int to = slot_after(request, t); !is_null(to)) std::copy(state.begin(), state.end(), at_slot(to));
      }
    }
  }
  return out;
}

Result<RecurrentCase> RecurrentCase::create(const RecurrentProblem& problem, const RecurrentCaseOptions& options,
                                            const Stream& stream) {
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  RecurrentCase made(problem, options);
  made.draw();
  made.oracle_ = made.expected<double>();
  made.plain_ = made.expected<float>();
  if (auto ok = made.upload(stream); !ok) return tl::unexpected(ok.error());
  return made;
}

Result<RecurrentOutcome> RecurrentCase::check(const RecurrentKernel& kernel, const Stream& stream) const {
  const bool fp32 = problem_.state == StateType::fp32;
  const std::int64_t pool_bytes = slot_count_ * state_stride_ * bytes_of(problem_.state);
  const std::int64_t o_bytes = tokens_ * v_stride_ * 2;
  auto pool = DeviceBuffer::allocate(pool_bytes), o = DeviceBuffer::allocate(o_bytes);
  if (!pool) return tl::unexpected(pool.error());
  if (!o) return tl::unexpected(o.error());
  const void* fresh = fp32 ? pool_.device.data() : pool16_.device.data();
  if (auto ok = copy_on_device_async(pool->data(), fresh, pool_bytes, stream.get()); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = fill_bytes_async(o->data(), kPoisonByte, o_bytes, stream.get()); !ok) return tl::unexpected(ok.error());

  LeanRecurrentArgs args{};
  args.slots = slots_.device.as<int>();
  args.accepted = problem_.snapshots ? accepted_.device.as<int>() : nullptr;
  args.token_offsets = offsets_.device.as<int>();
  args.q = q_.device.data(), args.k = k_.device.data(), args.v = v_.device.data();
  args.a = given_a_.host.empty() ? a_.device.data() : given_a_.device.data();
  args.b = given_b_.host.empty() ? b_.device.data() : given_b_.device.data();
  args.a_log = a_log_.device.as<float>(), args.dt_bias = dt_bias_.device.as<float>();
  args.skip = skip_.device.as<float>();
  args.z = z_.device.data(), args.norm_weight = norm_weight_.device.as<float>();
  args.z_stride = v_stride_, args.output_eps = output_eps_;
  args.state = pool->as<char>(), args.o = o->data();
  args.out_slots = out_slots_.device.as<int>();
  args.q_stride = args.k_stride = q_stride_, args.v_stride = args.o_stride = v_stride_;
  args.a_stride = a_stride_, args.b_stride = b_stride_, args.state_stride = state_stride_;
  args.slots_stride = args.out_slots_stride = slots_stride_;
  args.slot_count = slot_count_, args.first_slot = first_slot_;
  args.scale = scale_, args.norm_eps = norm_eps_, args.lower_bound = lower_bound_;
  if (auto ok = kernel.launch(args, options_.batch, stream.get()); !ok) return tl::unexpected(ok.error());

  std::vector<std::uint16_t> got_o(static_cast<std::size_t>(tokens_ * v_stride_));
  std::vector<std::uint32_t> got32(fp32 ? pool_.host.size() : 0);
  std::vector<std::uint16_t> got16(pool16_.host.size());
  if (auto ok = copy_to_host(got_o.data(), o->data(), o_bytes, stream); !ok) return tl::unexpected(ok.error());
  void* to = fp32 ? static_cast<void*>(got32.data()) : got16.data();
  if (auto ok = copy_to_host(to, pool->data(), pool_bytes, stream); !ok) return tl::unexpected(ok.error());

  const Expected<double>& oracle = oracle_;
  const Expected<float>& plain = plain_;
  RecurrentOutcome outcome;
  const auto failed = [&](std::string text) {
    if (outcome.first_failure.empty()) outcome.first_failure = std::move(text);
  };
  const auto judge = [&](double got, double right, double yardstick, const auto& where) {
    const double ratio = std::isfinite(got) ? std::abs(got - right) / yardstick : INFINITY;
    outcome.error_ratio = std::max(outcome.error_ratio, ratio);
    if (!(ratio <= kMostErrorRatio))
      failed(fmt::format("{} is {} instead of {}, with a yardstick of {}", where(), got, right, yardstick));
  };

  // Outputs. What no token has stays poisoned, and null slots give zeros.
  const std::int64_t row_of_o = std::int64_t{problem_.v_heads} * problem_.value_dim;
  std::vector<bool> written(static_cast<std::size_t>(tokens_));
  const auto ulp_of_o = [&](double magnitude) { return unit_in_last_place(problem_.dtype, magnitude); };
  for (int request = 0; request < options_.batch; ++request) {
    ErrorYardstick yardstick;
    const std::int64_t begin = first_token(request) * row_of_o, end = begin + tokens_of(request) * row_of_o;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      yardstick.add(oracle.o[i], value_of(problem_.dtype, bits_of(problem_.dtype, plain.o[i])), ulp_of_o);
    for (int t = 0; t < tokens_of(request); ++t) {
      const std::int64_t token = first_token(request) + t;
      written[static_cast<std::size_t>(token)] = true;
      for (std::int64_t i = 0; i < row_of_o; ++i) {
        const std::uint16_t bits = got_o[static_cast<std::size_t>(token * v_stride_ + i)];
        const auto where = [&] { return fmt::format("o of request {}, token {}, element {}", request, t, i); };
        if (is_null(start_slot(request)) && bits != 0) failed(where() + " of a null slot is not zero");
        judge(value_of(problem_.dtype, bits), oracle.o[static_cast<std::size_t>(token * row_of_o + i)],
              yardstick.largest(), where);
      }
    }
  }
  for (std::int64_t token = 0; token < tokens_; ++token) {
    for (std::int64_t i = written[static_cast<std::size_t>(token)] ? row_of_o : 0; i < v_stride_; ++i) {
      if (got_o[static_cast<std::size_t>(token * v_stride_ + i)] != 0xFFFF)
        failed(fmt::format("o of row {}, element {} is no token's, but was written", token, i));
    }
  }

  // States: those that were stored are near the oracle's, and all others are as they were, to the bit.
  std::vector<bool> stored(static_cast<std::size_t>(slot_count_));
  for (int request = 0; request < options_.batch; ++request) {
    if (is_null(start_slot(request))) continue;
    for (int t = 0; t < tokens_of(request); ++t) {
      if (const int slot = slot_after(request, t); !is_null(slot)) stored[static_cast<std::size_t>(slot)] = true;
    }
  }
  const auto value_at = [&](std::size_t i) {
    return fp32 ? static_cast<double>(std::bit_cast<float>(got32[i])) : value_of(DType::bf16, got16[i]);
  };
  const auto ulp_of_state = [&](double magnitude) {
    return fp32 ? kLeastUlps * float_ulp(magnitude) : unit_in_last_place(DType::bf16, magnitude);
  };
  for (int slot = 0; slot < slot_count_; ++slot) {
    const bool changed = stored[static_cast<std::size_t>(slot)];
    ErrorYardstick yardstick;
    for (std::int64_t i = 0; changed && i < elements_of_slot(); ++i) {
      const auto at = static_cast<std::size_t>(state_index(slot, i));
      const double rounded = fp32 ? plain.state[at] : value_of(DType::bf16, bits_of(DType::bf16, plain.state[at]));
      yardstick.add(oracle.state[at], rounded, ulp_of_state);
    }
    for (std::int64_t i = 0; i < state_stride_; ++i) {
      const auto at = static_cast<std::size_t>(state_index(slot, i));
      const auto where = [&] { return fmt::format("state of slot {}, element {}", slot, i); };
      if (changed && i < elements_of_slot()) {
        judge(value_at(at), oracle.state[at], yardstick.largest(), where);
      } else if (fp32 ? got32[at] != pool_.host[at] : got16[at] != pool16_.host[at]) {
        failed(where() + " is nobody's, but was written");
      }
    }
  }
  return outcome;
}

}  // namespace v1
}  // namespace leanattn
