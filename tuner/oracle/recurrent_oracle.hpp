// recurrent_oracle.hpp -- a step of a recurrent state as the formulas say it, in any precision: in double it is the
// oracle, in float the plain implementation by whose error kernels are judged. Pure functions; any thread; no GPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "generator/recurrent/recurrent_problem.hpp"

namespace leanattn {
inline namespace v1 {

/// What a token brings to one head.
template <class Real>
struct RecurrentToken {
  std::vector<Real> q, k, v;       ///< [K], [K], [V], as given
  std::vector<Real> gates;         ///< a + dt_bias, or logarithms of factors: [1], or [K] with a decay of channels
  Real weight = 1;                 ///< b, or the weight that is given
  std::vector<Real> erase, write;  ///< of kinds with erasures of their own, as given
};

/// What is the same for all tokens of a head.
template <class Real>
struct RecurrentHead {
  Real a_log = 0, skip = 0;
  Real scale = 1, norm_eps = 0, lower_bound = 0;
};

/// What a token does to a state, as a ring keeps it: S = w S + u k^T.
template <class Real>
struct RecurrentEntry {
  std::vector<Real> u, k, w;  ///< [V]; [K], as given; [1], or [K] with a decay of channels
};

namespace detail {

template <class Real>
Real softplus(Real x) {
  return x > 30 ? x : std::log1p(std::exp(x));
}

template <class Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

/// The logarithm of the factor that a gate stands for.
template <class Real>
Real decay_log(Gates gates, const RecurrentHead<Real>& head, Real gate) {
  switch (gates) {
    case Gates::softplus: return -std::exp(head.a_log) * softplus(gate);
    case Gates::bounded: return head.lower_bound * sigmoid(std::exp(head.a_log) * gate);
    case Gates::given:
    case Gates::constant: break;
  }
  return gate;
}

/// Returns what it divides by.
template <class Real>
Real normalise(std::vector<Real>& x, Real eps) {
  Real sum = 0;
  for (const Real each : x) sum += each * each;
  for (Real& each : x) each /= std::sqrt(sum + eps);
  return std::sqrt(sum + eps);
}

}  // namespace detail

/// What comes out of the short convolution for the newest token of `inputs`; the oldest one is the first.
template <class Real>
Real convolve(std::span<const Real> weight, Real bias, std::span<const Real> inputs) {
  Real sum = bias;
  for (std::size_t i = 0; i < weight.size(); ++i) sum += weight[i] * inputs[i];
  return sum * detail::sigmoid(sum);
}

/// What becomes of the output of a head, or of those that are normalised together, where it is gated.
template <class Real>
void gate_output(const RecurrentProblem& problem, Real eps, std::span<const Real> weight, std::span<const Real> z,
                 std::span<Real> o) {
  const bool first = problem.output_gate == OutputGate::silu_first;
  for (std::size_t i = 0; i < o.size() && first; ++i) o[i] *= z[i] * detail::sigmoid(z[i]);
  Real squares = 0;
  for (const Real each : o) squares += each * each;
  const Real root = std::sqrt(squares / static_cast<Real>(o.size()) + eps);
  for (std::size_t i = 0; i < o.size(); ++i) {
    const Real gate = detail::sigmoid(z[i]) * (problem.output_gate == OutputGate::silu ? z[i] : 1);
    o[i] = o[i] / root * weight[i] * (first ? 1 : gate);
  }
}

/// Takes one token: `state`, [V, K] of one head, changes, and o [V] is written. The order is that of the formulas:
/// decay, predict, update, and read with the new state. Returns what a ring keeps of kinds that may have one.
template <class Real>
RecurrentEntry<Real> take_token(const RecurrentProblem& problem, const RecurrentHead<Real>& head,
                                RecurrentToken<Real> token, std::span<Real> state, std::span<Real> o) {
  const RecurrentUpdate& update = update_of(problem.kind);
  RecurrentEntry<Real> entry{.u = {}, .k = token.k, .w = {}};
  Real key_root = 1;
  if (problem.normalises) {
    detail::normalise(token.q, head.norm_eps);
    key_root = detail::normalise(token.k, head.norm_eps);
  }
  Real weight = token.weight;
  if (update.weight == UpdateWeight::beta && problem.gates != Gates::given) weight = detail::sigmoid(weight);
  if (update.weight == UpdateWeight::step && problem.gates != Gates::given) weight = detail::softplus(token.gates[0]);
  for (Real& gate : token.gates) gate = std::exp(detail::decay_log(problem.gates, head, gate));
  // What the state is read at to take something out: k, a multiple of it in each channel, or a vector of its own.
  std::vector<Real> erase = token.k;
  const auto factor = [&](Real x) { return problem.gates == Gates::given ? x : detail::sigmoid(x); };
  for (std::size_t i = 0; i < erase.size() && !token.erase.empty(); ++i)
    erase[i] = update.erasure == Erasure::vectors ? token.erase[i] : factor(token.erase[i]) * token.k[i];
  const std::size_t columns = token.k.size();
  for (std::size_t row = 0; row < token.v.size(); ++row) {
    const std::span<Real> s = state.subspan(row * columns, columns);
    Real undecayed = 0, predicted = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      undecayed += s[i] * erase[i];
      if (update.decay != Decay::none) s[i] *= token.gates[update.decay == Decay::head ? 0 : i];
      predicted += s[i] * erase[i];
    }
    Real change = weight * token.v[row];
    if (update.erasure == Erasure::key) change = weight * (token.v[row] - predicted);
    if (update.erasure == Erasure::channels) change = factor(token.write[row]) * token.v[row] - predicted;
    Real read = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      s[i] += change * token.k[i];
      if (update.erasure == Erasure::vectors) s[i] += undecayed * token.write[i];
      read += s[i] * token.q[i];
    }
    o[row] = head.scale * read + (update.skip ? head.skip * token.v[row] : 0);
    entry.u.push_back(change / key_root);
  }
  entry.w = std::move(token.gates);
  return entry;
}

/// Does to a state, [V, K] of one head, what a token has done to it.
template <class Real>
void replay(const RecurrentEntry<Real>& entry, std::span<Real> state) {
  const std::size_t columns = entry.k.size();
  for (std::size_t i = 0; i < state.size(); ++i)
    state[i] = state[i] * entry.w[entry.w.size() == 1 ? 0 : i % columns] + entry.u[i / columns] * entry.k[i % columns];
}

}  // namespace v1
}  // namespace leanattn
