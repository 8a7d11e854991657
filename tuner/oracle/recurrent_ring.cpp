#include "tuner/oracle/recurrent_ring.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace leanattn {
inline namespace v1 {

std::size_t RecurrentRing::of_head(std::size_t part) const {
  if (part == 0) return static_cast<std::size_t>(problem_.value_dim);
  if (part == 1) return static_cast<std::size_t>(problem_.key_dim);
  return static_cast<std::size_t>(gates_of_token(problem_) / problem_.v_heads);
}

std::size_t RecurrentRing::at(std::size_t part, int slot, const Span& span, int i, int head) const {
  const int entry = (span.first + i) % problem_.ring, group = problem_.v_heads / problem_.qk_heads;
  return static_cast<std::size_t>(slot * strides_[part] + entry * of_entry_[part]) +
         static_cast<std::size_t>(part == 1 ? head / group : head) * of_head(part);
}

void RecurrentRing::draw(const RecurrentProblem& problem, const std::vector<int>& slots, const std::vector<int>& tokens,
                         int launches, int slot_count, bool padded, std::mt19937_64& random) {
  problem_ = problem, tokens_ = tokens, requests_ = slots.size();
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53);
  };
  of_entry_ = {std::int64_t{problem.v_heads} * problem.value_dim, std::int64_t{problem.qk_heads} * problem.key_dim,
               gates_of_token(problem)};
  for (std::size_t part = 0; part < kParts; ++part) {
    strides_[part] = of_entry_[part] * problem.ring + (padded ? 8 : 0);
    parts_[part].host.assign(static_cast<std::size_t>(slot_count * strides_[part]),
                             std::numeric_limits<float>::quiet_NaN());
  }
  for (std::size_t request = 0; request < requests_; ++request) {
    spans_.host.push_back(below(problem.ring));
    spans_.host.push_back(below(problem.ring - problem.tokens + 1));
    const Span first = span(static_cast<int>(request), 0);
    for (int i = 0; i < first.count && slots[request] >= 0; ++i) {
      for (int head = 0; head < problem.v_heads; ++head) {
        const auto fill = [&](std::size_t part, const auto& each) {
          const std::size_t from = at(part, slots[request], first, i, head);
          for (std::size_t j = 0; j < of_head(part); ++j) parts_[part].host[from + j] = each();
        };
        fill(0, [&] { return uniform(-0.2, 0.2); });
        fill(1, [&] { return uniform(-1, 1); });
        fill(2, [&] { return std::exp(-std::exp(uniform(-7, 2))); });
      }
    }
  }
  for (int launch = 0; launch + 1 < launches; ++launch) {
    for (int request = 0; request < static_cast<int>(requests_); ++request) {
      const Span before = span(request, launch);
      const int accepted = below(tokens_[static_cast<std::size_t>(request)] + 1);
      const bool flushed = flushes(request, launch);
      spans_.host.push_back(flushed ? (before.first + before.count) % problem.ring : before.first);
      spans_.host.push_back((flushed ? 0 : before.count) + accepted);
    }
  }
}

Result<void> RecurrentRing::upload(const Stream& stream) { return spans_.upload(stream); }

template <class Real>
RecurrentRing::Values<Real> RecurrentRing::fresh() const {
  Values<Real> values;
  for (std::size_t part = 0; part < kParts; ++part)
    values[part].assign(parts_[part].host.begin(), parts_[part].host.end());
  return values;
}

template <class Real>
RecurrentEntry<Real> RecurrentRing::entry(const Values<Real>& values, int slot, const Span& span, int i,
                                          int head) const {
  const auto part = [&](std::size_t which) {
    const auto first = values[which].begin() + static_cast<std::ptrdiff_t>(at(which, slot, span, i, head));
    return std::vector<Real>(first, first + static_cast<std::ptrdiff_t>(of_head(which)));
  };
  return {.u = part(0), .k = part(1), .w = part(2)};
}

template <class Real>
void RecurrentRing::put(Values<Real>& values, int slot, const Span& span, int i, int head,
                        const RecurrentEntry<Real>& entry) const {
  const std::vector<Real>* const from[] = {&entry.u, &entry.k, &entry.w};
  for (std::size_t part = 0; part < kParts; ++part)
    std::copy(from[part]->begin(), from[part]->end(),
              values[part].begin() + static_cast<std::ptrdiff_t>(at(part, slot, span, i, head)));
}

template RecurrentRing::Values<float> RecurrentRing::fresh() const;
template RecurrentRing::Values<double> RecurrentRing::fresh() const;
template RecurrentEntry<float> RecurrentRing::entry(const Values<float>&, int, const Span&, int, int) const;
template RecurrentEntry<double> RecurrentRing::entry(const Values<double>&, int, const Span&, int, int) const;
template void RecurrentRing::put(Values<float>&, int, const Span&, int, int, const RecurrentEntry<float>&) const;
template void RecurrentRing::put(Values<double>&, int, const Span&, int, int, const RecurrentEntry<double>&) const;

Result<RecurrentRing::Run> RecurrentRing::start(const Stream& stream) const {
  Run run;
  for (std::size_t part = 0; part < kParts; ++part) {
    auto copy = parts_[part].copy_of_host(stream);
    if (!copy) return tl::unexpected(copy.error());
    run.parts[part] = *std::move(copy);
  }
  return run;
}

void RecurrentRing::bind(const Run& run, int launch, LeanRecurrentArgs& args) const {
  if (problem_.ring == 0) return;
  args.ring_spans = spans_.device.as<int>() + 2 * static_cast<std::int64_t>(requests_) * launch;
  args.ring_u = run.parts[0].as<float>(), args.ring_k = run.parts[1].as<float>(),
  args.ring_w = run.parts[2].as<float>();
  args.ring_u_stride = strides_[0], args.ring_k_stride = strides_[1], args.ring_w_stride = strides_[2];
}

Result<std::array<std::vector<float>, RecurrentRing::kParts>> RecurrentRing::read(const Run& run,
                                                                                  const Stream& stream) const {
  std::array<std::vector<float>, kParts> got;
  for (std::size_t part = 0; part < kParts; ++part) {
    got[part].resize(parts_[part].host.size());
    if (got[part].empty()) continue;
    if (auto ok = copy_to_host(got[part].data(), run.parts[part].data(), parts_[part].bytes(), stream); !ok)
      return tl::unexpected(ok.error());
  }
  return got;
}

}  // namespace v1
}  // namespace leanattn
