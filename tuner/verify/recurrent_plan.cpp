#include "tuner/verify/recurrent_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/threads.hpp"
#include "tuner/oracle/recurrent_case.hpp"
#include "tuner/verify/runner.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kLaunchesInARow = 100;

/// The sizes and options of a kernel of the plan. They repeat after different numbers of kernels, so that they meet.
RecurrentSpec varied_spec(Arch arch, RecurrentKind kind, Gates gates, StateType state, std::size_t number, bool ring) {
  constexpr std::pair<int, int> kDims[] = {{64, 64}, {128, 128}, {128, 64}, {64, 128}, {96, 64}},
                                kHeads[] = {{1, 1}, {2, 4}, {1, 3}};
  constexpr int kTokens[] = {1, 4, 2, 8};
  const auto [key_dim, value_dim] = kDims[number % std::size(kDims)];
  const auto [qk_heads, v_heads] = kHeads[number % std::size(kHeads)];
  const int tokens = kTokens[number % std::size(kTokens)];
  RecurrentProblem problem = usual_problem(kind);
  problem.qk_heads = qk_heads, problem.v_heads = v_heads;
  problem.key_dim = key_dim, problem.value_dim = value_dim;
  problem.dtype = number % 5 == 4 ? DType::fp16 : DType::bf16;
  problem.state = state, problem.gates = gates;
  if (number % 7 == 6) problem.normalises = !problem.normalises;
  problem.output_gate = kOutputGates[number % 4 == 3 ? 1 + number / 4 % 3 : 0];
  // Before sm_90 a CTA normalises alone.
  if (problem.output_gate == OutputGate::silu_first && arch.major >= 9) problem.norm_heads = v_heads;
  problem.tokens = tokens;
  problem.ragged = number % 3 == 1;
  problem.snapshots = tokens > 1 && number % 8 < 4;
  problem.keys_first = number % 13 % 4 == 1;
  problem.conv_width = number % 11 % 3 == 2 ? 2 + static_cast<int>(number / 11 % 3) : 0;
  if (ring) {
    problem.snapshots = false;
    if (tokens > 1) problem.conv_width = 0;
    problem.ring = 2 * tokens + static_cast<int>(number) % (kMostRingEntries - 2 * tokens + 1);
  }
  // An update that replaces what the state had at a long key makes states grow without bound.
  const Erasure erasure = update_of(kind).erasure;
  if (erasure == Erasure::key || erasure == Erasure::channels) problem.normalises = true;
  if (erasure >= Erasure::channels && key_dim == 96) problem.key_dim = 32;
  const std::vector<RecurrentTunables> space = recurrent_search_space(arch, problem);
  return {.arch = arch, .problem = problem, .tunables = space[number * 7 % space.size()]};
}

std::string describe_case(const RecurrentSpec& spec, const RecurrentCaseOptions& options) {
  return fmt::format("{}: {}", kernel_name(spec), describe(options));
}

}  // namespace

std::vector<RecurrentSpec> recurrent_plan(Arch arch, const VerifyOptions& options) {
  std::vector<RecurrentSpec> specs;
  std::size_t number = 0;
  for (const RecurrentUpdate& update : recurrent_updates()) {
    for (const Gates gates : update.gates) {
      for (const StateType state : kStateTypes) {
        for (int variant = 0; variant < (options.quick ? 1 : 5); ++variant) {
          specs.push_back(varied_spec(arch, update.kind, gates, state, number, false));
          number += options.quick ? 3 : 1;
        }
        if (update.erasure != Erasure::vectors)
          specs.push_back(varied_spec(arch, update.kind, gates, state, number, true));
      }
    }
  }
  std::erase_if(specs,
                [&](const RecurrentSpec& spec) { return kernel_name(spec).find(options.filter) == std::string::npos; });
  return specs;
}

Result<std::vector<VerifyGroup>> verify_recurrent(std::span<const RecurrentSpec> specs, const VerifyOptions& options,
                                                  const VerifySink& group_done, const std::atomic<bool>* cancel) {
  using Clock = std::chrono::steady_clock;
  const RecurrentCaseOptions kCases[] = {
      {.batch = 2, .seed = options.seed},
      {.batch = 5, .seed = options.seed + 1, .padded = true, .null_slots = true},
      {.batch = 3, .seed = options.seed + 2, .padded = true, .null_slots = true, .zero_is_null = true, .moved = true},
      {.batch = 1, .seed = options.seed + 3, .launches = kLaunchesInARow}};
  const auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  // The cubins are kept for this run alone, because they would fill the user's cache.
  const std::unique_ptr<CubinCache> cubins = open_cubin_db(std::nullopt, nullptr);
  std::vector<VerifyGroup> groups;
  const auto is_cancelled = [&] { return cancel != nullptr && cancel->load(std::memory_order_relaxed); };
  std::atomic<std::size_t> compiling = 0;
  ThreadGroup compilers;
  compilers.start(std::min<std::size_t>(specs.size(), std::max(1u, std::thread::hardware_concurrency())), [&] {
    for (std::size_t i = compiling++; i < specs.size() && !is_cancelled(); i = compiling++) {
      const auto emitted = emit(specs[i]);
      // What fails fails again where it is checked.
      if (emitted) static_cast<void>(compile_kernel(emitted->source, emitted->entry, specs[i].arch, cubins.get()));
    }
  });
  for (std::size_t next = 0; next < specs.size() && !is_cancelled();) {
    const RecurrentKind kind = specs[next].problem.kind;
    VerifyGroup group{.name = fmt::format("recurrent: {}", to_string(kind))};
    const auto started = Clock::now();
    for (; next < specs.size() && specs[next].problem.kind == kind && !is_cancelled(); ++next) {
      const RecurrentSpec& spec = specs[next];
      const auto kernel = RecurrentKernel::prepare(spec, cubins.get());
      if (!kernel) {
        if (kernel.error().code == ErrorCode::nvrtc_missing || kernel.error().code == ErrorCode::context_lost)
          return tl::unexpected(kernel.error());
        ++group.cases;
        VerifyRunner::record_failure(group, fmt::format("{}: {}", kernel_name(spec), kernel.error().message));
        continue;
      }
      ++group.kernels;
      for (const RecurrentCaseOptions& of_case : kCases) {
        // Where a state is rounded after each launch, other errors are lost in that one's.
        if (of_case.launches > 1 && spec.problem.state != StateType::fp32) continue;
        const auto made = RecurrentCase::create(spec.problem, of_case, *stream);
        if (!made) return tl::unexpected(made.error());
        const auto outcome = made->check(*kernel, *stream);
        ++group.cases;
        if (!outcome) {
          if (outcome.error().code == ErrorCode::context_lost || outcome.error().code == ErrorCode::out_of_memory)
            return tl::unexpected(outcome.error());
          VerifyRunner::record_failure(group, describe_case(spec, of_case) + ": " + outcome.error().message);
          continue;
        }
        group.worst_error_ratio = std::max(group.worst_error_ratio, outcome->error_ratio);
        if (!outcome->first_failure.empty())
          VerifyRunner::record_failure(group, describe_case(spec, of_case) + ": " + outcome->first_failure);
      }
    }
    group.seconds = std::chrono::duration<double>(Clock::now() - started).count();
    if (group_done) group_done(group);
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace v1
}  // namespace leanattn
