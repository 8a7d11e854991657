#include "tuner/oracle/recurrent_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "tuner/oracle/compare.hpp"
#include "tuner/oracle/random_data.hpp"

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

std::string describe(const RecurrentCaseOptions& options) {
  return fmt::format("batch {}{}{}{}{}{}, seed {}", options.batch, options.padded ? ", padded" : "",
                     options.null_slots ? ", null slots" : "", options.zero_is_null ? ", slot 0 is null" : "",
                     options.moved ? ", other slots" : "",
                     options.launches > 1 ? fmt::format(", {} launches", options.launches) : "", options.seed);
}

int RecurrentCase::tokens_of(int request) const {
  return problem_.ragged
             ? offsets_.host[static_cast<std::size_t>(request) + 1] - offsets_.host[static_cast<std::size_t>(request)]
             : problem_.tokens;
}

std::int64_t RecurrentCase::first_token(int request, int launch) const {
  const std::int64_t of_launch =
      problem_.ragged ? offsets_.host[static_cast<std::size_t>(request)] : std::int64_t{request} * problem_.tokens;
  return launch * tokens_ + of_launch;
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
  fill(q_, rows() * q_stride_, [&] { return element(-1, 1); });
  fill(k_, rows() * q_stride_, [&] { return element(-1, 1); });
  fill(v_, rows() * v_stride_, [&] { return element(-1, 1); });
  if (given) {
    fill(given_a_, rows() * a_stride_, [&] { return static_cast<float>(-std::exp(uniform(-7, 2))); });
    fill(given_b_, rows() * b_stride_, [&] { return static_cast<float>(uniform(0, 1)); });
  } else if (problem_.gates != Gates::constant) {
    fill(a_, rows() * a_stride_, [&] { return element(-4, 4); });
    fill(b_, rows() * b_stride_, [&] { return element(-4, 4); });
    fill(dt_bias_, gates_of_token(problem_), [&] { return static_cast<float>(uniform(-4, 1)); });
  }
  const bool constant = problem_.gates == Gates::constant;
  fill(a_log_, problem_.v_heads,
       [&] { return static_cast<float>(constant ? -std::exp(uniform(-7, 0)) : uniform(-2, 2)); });
  if (problem_.output_gate != OutputGate::none) {
    fill(z_, rows() * v_stride_, [&] { return element(-4, 4); });
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
std::vector<Real> RecurrentCase::values_of(const std::vector<std::uint16_t>& from, std::int64_t at, int count) const {
  std::vector<Real> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<Real>(value_of(problem_.dtype, from[static_cast<std::size_t>(at) + i]));
  return values;
}

double RecurrentCase::state_value(const std::vector<std::uint32_t>& pool, const std::vector<std::uint16_t>& pool16,
                                  std::size_t i) const {
  return problem_.state == StateType::fp32 ? static_cast<double>(std::bit_cast<float>(pool[i]))
                                           : value_of(DType::bf16, pool16[i]);
}

template <class Real>
RecurrentToken<Real> RecurrentCase::token_of(std::int64_t token, int head) const {
  const RecurrentUpdate& update = update_of(problem_.kind);
  const std::int64_t key_head = head / (problem_.v_heads / problem_.qk_heads),
                     key_at = token * q_stride_ + key_head * problem_.key_dim;
  const auto gates = static_cast<std::size_t>(gates_of_token(problem_) / problem_.v_heads);
  RecurrentToken<Real> taken{.q = values_of<Real>(q_.host, key_at, problem_.key_dim),
                             .k = values_of<Real>(k_.host, key_at, problem_.key_dim),
                             .v = values_of<Real>(v_.host, value_at(token, head), problem_.value_dim),
                             .gates = std::vector<Real>(gates)};
  for (std::size_t i = 0; i < gates; ++i) {
    const std::size_t gate = static_cast<std::size_t>(head) * gates + i,
                      at = static_cast<std::size_t>(token * a_stride_) + gate;
    if (!given_a_.host.empty()) {
      taken.gates[i] = given_a_.host[at];
    } else if (!a_.host.empty()) {
      taken.gates[i] =
          static_cast<Real>(value_of(problem_.dtype, a_.host[at])) + static_cast<Real>(dt_bias_.host[gate]);
    } else {
      taken.gates[i] = a_log_.host[static_cast<std::size_t>(head)];
    }
  }
  const auto at = static_cast<std::size_t>(token * b_stride_ + head);
  if (update.weight != UpdateWeight::one && !given_b_.host.empty()) taken.weight = given_b_.host[at];
  if (update.weight == UpdateWeight::beta && !b_.host.empty())
    taken.weight = static_cast<Real>(value_of(problem_.dtype, b_.host[at]));
  return taken;
}

template <class Real>
void RecurrentCase::take_tokens(int request, int h, int launch, Expected<Real>& out) const {
  const auto head = static_cast<std::size_t>(h), values = static_cast<std::size_t>(problem_.value_dim);
  const std::int64_t of_head = std::int64_t{problem_.value_dim} * problem_.key_dim;
  const auto at_slot = [&](int slot) {
    return out.state.begin() + static_cast<std::ptrdiff_t>(state_index(slot, h * of_head));
  };
  const RecurrentHead<Real> of_kind{.a_log = a_log_.host[head],
                                    .skip = skip_.host[head],
                                    .scale = scale_,
                                    .norm_eps = norm_eps_,
                                    .lower_bound = lower_bound_};
  const auto start = at_slot(start_slot(request));
  std::vector<Real> state(start, start + static_cast<std::ptrdiff_t>(of_head));
  for (int t = 0; t < tokens_of(request); ++t) {
    const std::int64_t token = first_token(request, launch) + t;
    const std::span<Real> o =
        std::span(out.o).subspan((static_cast<std::size_t>(token * problem_.v_heads) + head) * values, values);
    take_token<Real>(problem_, of_kind, token_of<Real>(token, h), state, o);
    if (problem_.output_gate != OutputGate::none) {
      const std::vector<Real> z = values_of<Real>(z_.host, value_at(token, h), problem_.value_dim),
                              weight(norm_weight_.host.begin(), norm_weight_.host.end());
      gate_output<Real>(problem_, output_eps_, weight, z, o);
    }
    if (const int to = slot_after(request, t); !is_null(to)) std::copy(state.begin(), state.end(), at_slot(to));
  }
}

template <class Real>
RecurrentCase::Expected<Real> RecurrentCase::expected() const {
  Expected<Real> out;
  out.o.assign(static_cast<std::size_t>(rows() * problem_.v_heads * problem_.value_dim), 0);
  out.state.resize(static_cast<std::size_t>(slot_count_ * state_stride_));
  for (std::size_t i = 0; i < out.state.size(); ++i)
    out.state[i] = static_cast<Real>(state_value(pool_.host, pool16_.host, i));
  for (int launch = 0; launch < options_.launches; ++launch) {
    for (int request = 0; request < options_.batch; ++request) {
      for (int head = 0; head < problem_.v_heads && !is_null(start_slot(request)); ++head)
        take_tokens(request, head, launch, out);
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
  for (int launch = 0; launch < options_.launches; ++launch) {
    if (auto ok = kernel.launch(arguments(*pool, *o, launch), options_.batch, stream.get()); !ok)
      return tl::unexpected(ok.error());
  }
  Got got{.o = std::vector<std::uint16_t>(static_cast<std::size_t>(rows() * v_stride_)),
          .pool = std::vector<std::uint32_t>(pool_.host.size()),
          .pool16 = std::vector<std::uint16_t>(pool16_.host.size())};
  if (auto ok = copy_to_host(got.o.data(), o->data(), o_bytes, stream); !ok) return tl::unexpected(ok.error());
  void* const to = fp32 ? static_cast<void*>(got.pool.data()) : got.pool16.data();
  if (auto ok = copy_to_host(to, pool->data(), pool_bytes, stream); !ok) return tl::unexpected(ok.error());
  RecurrentOutcome outcome;
  compare_outputs(got, outcome);
  compare_states(got, outcome);
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

}  // namespace v1
}  // namespace leanattn
