// recurrent_case.cpp -- draws the data of a case, and works out what a kernel must write.
#include "tuner/oracle/recurrent_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {

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

std::size_t RecurrentCase::slot_index(int request, int entry) const {
  return static_cast<std::size_t>(request) * static_cast<std::size_t>(slots_stride_) + static_cast<std::size_t>(entry);
}

int RecurrentCase::start_slot(int request) const {
  const int entry = problem_.snapshots ? accepted_.host[static_cast<std::size_t>(request)] - 1 : 0;
  return slots_.host[slot_index(request, entry)];
}

int RecurrentCase::slot_after(int request, int token) const {
  if (problem_.ring > 0 || (!problem_.snapshots && token + 1 < tokens_of(request))) return -1;
  if (!problem_.snapshots && !options_.moved) return start_slot(request);
  const std::vector<int>& slots = options_.moved ? out_slots_.host : slots_.host;
  return slots[slot_index(request, problem_.snapshots ? token : 0)];
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
      slots_.host[slot_index(request, entry)] = nulls[request / 2 % 3];
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
  erase_stride_ = erases_of_token(problem_) + pad, write_stride_ = writes_of_token(problem_) + pad;
  state_stride_ = elements_of_slot() + (options_.padded ? 64 : 0);
  scale_ = 1 / std::sqrt(static_cast<float>(problem_.key_dim));

  const auto fill = [](auto& array, std::int64_t count, const auto& each) { array.fill(count, each); };
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
    fill(norm_weight_, norm_weights(problem_), [&] { return static_cast<float>(uniform(0.5, 2)); });
  }
  fill(skip_, problem_.v_heads, [&] { return static_cast<float>(uniform(-1, 1)); });
  if (const Erasure erasure = update_of(problem_.kind).erasure; erasure >= Erasure::channels) {
    // Vectors are short, so that what is corrected again and again does not grow.
    const double most = erasure == Erasure::channels ? 1 : 1 / std::sqrt(problem_.key_dim);
    const double least = erasure == Erasure::channels && given ? 0 : -most;
    fill(erase_, rows() * erase_stride_, [&] { return element(least, most); });
    fill(write_, rows() * write_stride_, [&] { return element(least, most); });
  }
  if (problem_.conv_width > 0) convolution_.draw(problem_, batch, slot_count_, options_.padded, random);
  if (problem_.ring > 0) {
    std::vector<int> slots, tokens_of_requests;
    for (int request = 0; request < batch; ++request) {
      slots.push_back(is_null(start_slot(request)) ? -1 : start_slot(request));
      tokens_of_requests.push_back(tokens_of(request));
    }
    ring_.draw(problem_, slots, tokens_of_requests, options_.launches, slot_count_, options_.padded, random);
  }
  const auto state = [&] { return static_cast<float>(uniform(-1, 1)); };
  if (problem_.state == StateType::fp32) {
    fill(pool_, slot_count_ * state_stride_, [&] { return std::bit_cast<std::uint32_t>(state()); });
  } else {
    fill(pool16_, slot_count_ * state_stride_, [&] { return bits_of(DType::bf16, state()); });
  }
}

Result<void> RecurrentCase::upload(const Stream& stream) {
  Result<void> ok = convolution_.upload(stream);
  const auto copy = [&](auto& array) {
    if (ok) ok = array.upload(stream);
  };
  for (auto* array : {&slots_, &accepted_, &offsets_, &out_slots_}) copy(*array);
  for (auto* array : {&erase_, &write_, &q_, &k_, &v_, &a_, &b_, &z_, &pool16_}) copy(*array);
  for (auto* array : {&given_a_, &given_b_, &a_log_, &dt_bias_, &skip_, &norm_weight_}) copy(*array);
  copy(pool_);
  copy(ring_);
  return ok;
}

template <class Real>
std::vector<Real> RecurrentCase::values_of(const std::vector<std::uint16_t>& from, std::int64_t at,
                                           std::int64_t count) const {
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

RecurrentConvolution::Request RecurrentCase::conv_request(int request, int launch) const {
  const int from = slots_.host[slot_index(request, 0)],
            to = options_.moved ? out_slots_.host[slot_index(request, 0)] : from;
  return {.from = is_null(from) ? -1 : from,
          .to = is_null(to) ? -1 : to,
          .past = problem_.snapshots ? accepted_.host[static_cast<std::size_t>(request)] - 1 : 0,
          .tokens = tokens_of(request),
          .first_token = first_token(request, launch)};
}

std::pair<std::span<const std::uint16_t>, std::int64_t> RecurrentCase::rows_of(std::size_t part) const {
  if (part == 2) return {v_.host, v_stride_};
  return {part == 0 ? q_.host : k_.host, q_stride_};
}

template <class Real>
RecurrentCase::Inputs<Real> RecurrentCase::inputs_of(int request, int launch, const Expected<Real>& before) const {
  Inputs<Real> inputs;
  const RecurrentConvolution::Request taken = conv_request(request, launch);
  for (std::size_t part = 0; part < inputs.size(); ++part) {
    const auto [rows, stride] = rows_of(part);
    if (problem_.conv_width > 0) {
      inputs[part] = convolution_.values<Real>(part, before.conv_states, taken, rows, stride);
      continue;
    }
    const int columns = part == 2 ? problem_.v_heads * problem_.value_dim : problem_.qk_heads * problem_.key_dim;
    for (int t = 0; t < taken.tokens; ++t) {
      for (const std::uint16_t bits :
           rows.subspan(static_cast<std::size_t>((taken.first_token + t) * stride), static_cast<std::size_t>(columns)))
        inputs[part].push_back(static_cast<Real>(value_of(problem_.dtype, bits)));
    }
  }
  return inputs;
}

template <class Real>
RecurrentToken<Real> RecurrentCase::token_of(const Inputs<Real>& inputs, int t, std::int64_t token, int head) const {
  const RecurrentUpdate& update = update_of(problem_.kind);
  const auto part_of_head = [&](std::size_t part, int heads, int of_head, int dim) {
    const auto first = inputs[part].begin() + (static_cast<std::ptrdiff_t>(t) * heads + of_head) * dim;
    return std::vector<Real>(first, first + dim);
  };
  const int key_head = head / (problem_.v_heads / problem_.qk_heads);
  const auto gates = static_cast<std::size_t>(gates_of_token(problem_) / problem_.v_heads);
  RecurrentToken<Real> taken{.q = part_of_head(0, problem_.qk_heads, key_head, problem_.key_dim),
                             .k = part_of_head(1, problem_.qk_heads, key_head, problem_.key_dim),
                             .v = part_of_head(2, problem_.v_heads, head, problem_.value_dim),
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
  if (!erase_.host.empty()) {
    const std::int64_t erases = erases_of_token(problem_) / problem_.v_heads,
                       writes = writes_of_token(problem_) / problem_.v_heads;
    taken.erase = values_of<Real>(erase_.host, token * erase_stride_ + head * erases, erases);
    taken.write = values_of<Real>(write_.host, token * write_stride_ + head * writes, writes);
  }
  const auto at = static_cast<std::size_t>(token * b_stride_ + head);
  if (update.weight != UpdateWeight::one && !given_b_.host.empty()) taken.weight = given_b_.host[at];
  if (update.weight == UpdateWeight::beta && !b_.host.empty())
    taken.weight = static_cast<Real>(value_of(problem_.dtype, b_.host[at]));
  return taken;
}

template <class Real>
void RecurrentCase::take_tokens(const Inputs<Real>& inputs, int request, int h, int launch, Expected<Real>& out) const {
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
  // The formulas have a state [V, K].
  const auto turned = [&](std::ptrdiff_t i) {
    const int keys = problem_.key_dim;
    return problem_.keys_first ? i % keys * problem_.value_dim + i / keys : i;
  };
  const auto start = at_slot(start_slot(request));
  std::vector<Real> state(static_cast<std::size_t>(of_head));
  for (std::ptrdiff_t i = 0; i < of_head; ++i) state[static_cast<std::size_t>(i)] = start[turned(i)];
  const auto store = [&](int slot) {
    for (std::ptrdiff_t i = 0; i < of_head && !is_null(slot); ++i)
      at_slot(slot)[turned(i)] = state[static_cast<std::size_t>(i)];
  };
  const int slot = start_slot(request);
  const RecurrentRing::Span span = problem_.ring > 0 ? ring_.span(request, launch) : RecurrentRing::Span{};
  for (int i = 0; i < span.count; ++i) replay<Real>(ring_.entry(out.rings, slot, span, i, h), state);
  if (problem_.ring > 0 && ring_.flushes(request, launch)) store(slot);
  for (int t = 0; t < tokens_of(request); ++t) {
    const std::int64_t token = first_token(request, launch) + t;
    const std::span<Real> o =
        std::span(out.o).subspan((static_cast<std::size_t>(token * problem_.v_heads) + head) * values, values);
    const auto entry = take_token<Real>(problem_, of_kind, token_of<Real>(inputs, t, token, h), state, o);
    if (problem_.ring > 0) ring_.put(out.rings, slot, span, span.count + t, h, entry);
    store(slot_after(request, t));
  }
}

template <class Real>
void RecurrentCase::gate_outputs(int request, int launch, Expected<Real>& out) const {
  const std::int64_t of_norm = std::int64_t{problem_.norm_heads} * problem_.value_dim;
  const std::vector<Real> weights(norm_weight_.host.begin(), norm_weight_.host.end());
  for (int t = 0; t < tokens_of(request); ++t) {
    const std::int64_t token = first_token(request, launch) + t;
    for (int head = 0; head < problem_.v_heads; head += problem_.norm_heads) {
      const std::vector<Real> z = values_of<Real>(z_.host, value_at(token, head), of_norm);
      const auto at = static_cast<std::size_t>((token * problem_.v_heads + head) * problem_.value_dim),
                 count = static_cast<std::size_t>(of_norm);
      const std::size_t first = weights.size() > count ? static_cast<std::size_t>(head * problem_.value_dim) : 0;
      gate_output<Real>(problem_, output_eps_, std::span(weights).subspan(first, count), z,
                        std::span(out.o).subspan(at, count));
    }
  }
}

template <class Real>
RecurrentCase::Expected<Real> RecurrentCase::expected() const {
  Expected<Real> out;
  out.o.assign(static_cast<std::size_t>(rows() * problem_.v_heads * problem_.value_dim), 0);
  out.state.resize(static_cast<std::size_t>(slot_count_ * state_stride_));
  for (std::size_t i = 0; i < out.state.size(); ++i)
    out.state[i] = static_cast<Real>(state_value(pool_.host, pool16_.host, i));
  out.conv_states = convolution_.fresh();
  out.rings = ring_.fresh<Real>();
  for (int launch = 0; launch < options_.launches; ++launch) {
    for (int request = 0; request < options_.batch; ++request) {
      if (is_null(start_slot(request))) continue;
      const Inputs<Real> inputs = inputs_of<Real>(request, launch, out);
      for (int head = 0; head < problem_.v_heads; ++head) take_tokens(inputs, request, head, launch, out);
      if (problem_.output_gate != OutputGate::none) gate_outputs(request, launch, out);
      for (std::size_t part = 0; part < inputs.size() && problem_.conv_width > 0; ++part) {
        const auto [rows, stride] = rows_of(part);
        convolution_.take(part, out.conv_states, conv_request(request, launch), rows, stride);
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

}  // namespace v1
}  // namespace leanattn
