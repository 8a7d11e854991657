// simulated_gpu.hpp -- SimulatedGpu: a backend without a GPU. Every configuration has a known true time, noise is
// seeded, the clock is virtual, and tests can plant faults. The tuning session's thread; any thread may call compile().
#pragma once

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/model/search_space.hpp"
#include "tuner/search/session.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {

inline DeviceFacts simulated_device() {
  DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  device.name = "Simulated GPU";
  device.memory_bytes = 64ll << 30;
  return device;
}

/// A search that has everything a longer one has: it sweeps, refines, tries twins, races and confirms.
inline SearchEffort brief_effort() {
  return {
      .specs = 20, .sweep_specs = tries<std::size_t>(3, 8), .refine_specs = 3, .twin_specs = tries<std::size_t>(4, 20)};
}

class SimulatedGpu final : public TuneBackend {
 public:
  static constexpr double kMemoryRate = 4.6e6;  // bytes a microsecond

  SimulatedGpu(const DecodeProblem& problem, std::uint64_t seed, const DeviceFacts& device = simulated_device())
      : problem_(problem), device_(device), random_(seed) {
    truth = default_parameters(device_);
    truth.memory_rate = kMemoryRate, truth.factors = {0.8, 1.1, 1.3, 1.5};
  }

  // Tests set these.
  ModelParameters truth;
  double noise = 0.01;        ///< the relative standard deviation of a sample
  double personality = 0.08;  ///< the largest relative distance of a kernel's time from the model
  double promoted = 1;        ///< times a configuration's time that has an L2 promotion of 256 bytes
  std::function<bool(const KernelSpec&)> spills = [](const KernelSpec&) { return false; };
  std::function<bool(const KernelSpec&)> no_compiler = [](const KernelSpec&) { return false; };  ///< no process for it
  std::function<double(const Config&)> factor = [](const Config&) {
    return 1.0;
  };  ///< multiplies a configuration's time
  /// Multiplies one sample of a configuration, the first of which is number 0.
  std::function<double(const Config&, int sample)> disturbance = [](const Config&, int) { return 1.0; };
  std::function<bool(const Config&)> wrong = [](const Config&) {
    return false;
  };  ///< gives wrong results and is very fast
  std::function<bool(const Config&)> fails_check = [](const Config&) { return false; };   ///< cannot be launched
  std::function<bool(const Config&)> fails_timing = [](const Config&) { return false; };  ///< cannot be captured
  /// Loses its process in this round, which condemns it.
  std::function<bool(const Config&, int round)> dies = [](const Config&, int) { return false; };
  std::function<bool(const Config&)> kills_context = [](const Config&) { return false; };
  std::function<bool(const Config&)> lost_before = [](const Config&) { return false; };  ///< the device, before a check
  std::function<bool(int round)> lost_in = [](int) { return false; };                    ///< the device, in this round
  std::function<bool(const Shape&)> fits = [](const Shape&) { return true; };            ///< into the memory
  std::function<bool(int round)> throttled = [](int) { return false; };  ///< everything takes three times as long
  std::function<void(int round)> before_round = [](int) {};
  std::function<void(const KernelSpec&)> before_compile = [](const KernelSpec&) {};  ///< on the compiling thread
  bool stays_in_l2 = false;                                                          ///< what should come from memory
  double tick_s = 0;                                     ///< how far the clock moves whenever the session looks at it
  const std::atomic<bool>* interrupts = nullptr;         ///< once it is true, rounds and checks are cut off
  std::string failure = "too many resources requested";  ///< the driver's message when a check fails
  double compile_s = 0.3, compile_cores = 8, check_s = 3e-4, launches_per_sample = 30;

  // Tests read these.
  std::map<std::string, int> checks, samples;  ///< by the configuration's JSON
  std::set<std::string> timed_without_check;
  int rounds = 0, shapes_begun = 0;
  std::atomic<int> compiles = 0;

  double true_us(const Config& config) const {
    if (wrong(config)) return 0.5 * read_us();
    const double us = predict_us(truth, {device_, problem_, shape_}, config, guess_resident(device_, config.spec));
    const auto hash = std::hash<std::string>()(kernel_name(config.spec));
    return us * (config.l2_promotion == 256 ? promoted : 1) * factor(config) *
           (1 + personality * (static_cast<double>(hash % 2001) / 1000.0 - 1));
  }
  double read_us() const { return 2.0 + static_cast<double>(kv_bytes(problem_, shape_)) / kMemoryRate; }
  void set_shape(const Shape& shape) { shape_ = shape; }
  void pass(double seconds) { clock_s_ += seconds; }

  Result<CompiledSpec> compile(const KernelSpec& spec) override {
    before_compile(spec);
    ++compiles;
    if (no_compiler(spec)) return fail(ErrorCode::internal, "no process compiles");
    if (spills(spec)) return fail(ErrorCode::kernel_rejected, kernel_name(spec) + " spills registers");
    return CompiledSpec{.registers = 128, .resident = guess_resident(device_, spec), .compile_ms = compile_s * 1e3};
  }
  Result<void> adopt(const KernelSpec&, const CompiledKernel&) override { return {}; }
  Result<double> begin_shape(const Shape& shape) override {
    if (!fits(shape)) return fail(ErrorCode::out_of_memory, "cuMemAlloc: out of memory", "Free memory.");
    shape_ = shape;
    ++shapes_begun;
    clock_s_ += 0.05;
    return read_us();
  }
  Result<CheckOutcome> check(const Config& config) override {
    if (interrupts != nullptr && *interrupts) return fail(ErrorCode::interrupted, "the session was cancelled");
    clock_s_ += check_s;
    // The clock moves when a compilation's result is first needed, as if the session had waited for one of
    // compile_cores. If the compiling threads moved it, it would depend on how the host schedules them.
    if (needed_.insert(kernel_name(config.spec)).second) clock_s_ += compile_s / compile_cores;
    ++checks[to_json(config)];
    if (lost_before(config)) return fail(ErrorCode::context_lost, "the GPU has fallen off the bus");
    if (kills_context(config)) {
      died_.insert(to_json(config));
      return fail(ErrorCode::context_lost, "an illegal address was touched");
    }
    if (fails_check(config)) return CheckOutcome{Verdict::launch_failed, failure};
    if (wrong(config)) return CheckOutcome{Verdict::incorrect, "O[0] is NaN"};
    return CheckOutcome{};
  }
  Result<RoundTimes> time(std::span<const Config> configs) override {
    before_round(rounds);
    if (interrupts != nullptr && *interrupts) return fail(ErrorCode::interrupted, "the session was cancelled");
    if (lost_in(rounds)) return fail(ErrorCode::context_lost, "the GPU has fallen off the bus");
    RoundTimes times;
    const double slow = throttled(rounds) ? 3.0 : 1.0;
    if (slow > 1) times.throttle = "hardware thermal";
    for (const Config& config : configs) {
      if (dies(config, rounds)) died_.insert(to_json(config));
      if (condemned(config)) return fail(ErrorCode::launch_failed, "its process died");
    }
    ++rounds;
    for (const Config& config : configs) {
      if (fails_timing(config)) return fail(ErrorCode::launch_failed, "cannot be captured");
      if (!checks.contains(to_json(config))) timed_without_check.insert(to_json(config));
      const double disturbed = disturbance(config, samples[to_json(config)]++);
      times.us.push_back(noisy(true_us(config)) * disturbed * slow);
      clock_s_ += times.us.back() * launches_per_sample * 1e-6;
    }
    times.sentinel_us = noisy(read_us()) * slow;
    times.stays_in_l2 = stays_in_l2;
    return times;
  }
  std::optional<CheckOutcome> condemned(const Config& config) const override {
    if (!died_.contains(to_json(config))) return std::nullopt;
    return CheckOutcome{Verdict::launch_failed, "its process died"};
  }
  double now_s() const override { return clock_s_ += tick_s; }

 private:
  double noisy(double us) {
    // Like real noise, it makes times longer and never shorter.
    std::normal_distribution<double> normal(0, noise);
    return us * (1 + std::abs(normal(random_)));
  }

  DecodeProblem problem_;
  DeviceFacts device_;
  Shape shape_;
  std::mt19937_64 random_;
  mutable double clock_s_ = 0;
  std::set<std::string> needed_, died_;
};

}  // namespace leanattn
