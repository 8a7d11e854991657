// runner.cpp -- makes cases, checks kernels on them and records the results.
#include "tuner/verify/runner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "runtime/cuda/driver.hpp"
#include "tuner/oracle/oracle.hpp"
#include "tuner/verify/feature_plan.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kKeptFailures = 8;
constexpr std::size_t kCachedCases = 12;
constexpr std::int64_t kCpuOracleTokens = 1500;  // of one request, which take a few milliseconds on one core
constexpr double kOracleAgreement = 1e-9;        // The two oracles sum doubles in different orders.
constexpr double kExpressionAgreement = 1e-5;    // Score expressions are written for fp32.

std::string case_key(const KernelSpec& spec, const CaseShape& shape) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", to_string(spec.dtype), spec.head_dim, spec.group,
                     to_string(spec.layout), shape.kv_heads, fmt::join(shape.context_lengths, ","),
                     shape.context_capacity, shape.padded, to_string(shape.data), fmt::join(shape.query_tokens, ","),
                     shape.shared_prefix, shape.hole_every, to_json(spec.features));
}

bool same(double a, double b, double agreement) { return a == b || std::abs(a - b) <= agreement * (1 + std::abs(b)); }

/// Everything of a case that a failure must name, so that it can be repeated.
std::string describe_case(const DecodeCase& decode_case, const std::vector<int>& context_lengths) {
  const DecodeCaseOptions& options = decode_case.options();
  const Features& features = decode_case.problem().features;
  std::string text =
      fmt::format("{} KV heads, lengths {}, capacity {}, {} data{}, seed {}", decode_case.problem().kv_heads,
                  describe_lengths(context_lengths), options.context_capacity, to_string(options.data),
                  options.padded ? ", padded strides" : "", options.seed);
  if (features.ragged_q) text += fmt::format(", query tokens {}", describe_lengths(decode_case.query_tokens()));
  if (options.shared_prefix > 0) text += fmt::format(", shared prefix {}", options.shared_prefix);
  if (options.hole_every > 0) text += fmt::format(", a hole in {} pages", options.hole_every);
  if (!is_plain(features)) text += fmt::format(", features {}", to_json(features));
  return text;
}

}  // namespace

std::string describe_lengths(const std::vector<int>& context_lengths) {
  constexpr std::size_t kShown = 12;
  if (context_lengths.size() <= kShown) return fmt::format("{{{}}}", fmt::join(context_lengths, ", "));
  return fmt::format("{{{}, ... {} in all}}",
                     fmt::join(context_lengths.begin(), context_lengths.begin() + kShown, ", "),
                     context_lengths.size());
}

Result<VerifyRunner> VerifyRunner::create(const VerifyOptions& options, const DeviceFacts& device, CubinCache* cubins,
                                          const VerifySink& done, const std::atomic<bool>* cancel) {
  VerifyRunner runner;
  runner.options_ = options;
  runner.device_ = device;
  runner.cubins_ = cubins;
  runner.done_ = done;
  runner.cancel_ = cancel;
  auto kernels = OracleKernels::load(device.arch, cubins);
  if (!kernels) return tl::unexpected(kernels.error());
  runner.kernels_ = std::move(*kernels);
  auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  runner.stream_ = std::move(*stream);
  return runner;
}

Result<DecodeCase> VerifyRunner::make_case(const KernelSpec& spec, const CaseShape& shape) const {
  const DecodeProblem problem{.q_heads = spec.group * shape.kv_heads,
                              .kv_heads = shape.kv_heads,
                              .head_dim = spec.head_dim,
                              .dtype = spec.dtype,
                              .layout = spec.layout,
                              .lse = true,
                              .pdl = false,
                              .features = spec.features};
  return DecodeCase::create(kernels_, problem, shape.context_lengths,
                            {.seed = options_.seed,
                             .data = shape.data,
                             .context_capacity = shape.context_capacity,
                             .padded = shape.padded,
                             .kv_copies = 1,
                             .query_tokens = shape.query_tokens,
                             .shared_prefix = shape.shared_prefix,
                             .selection_spread = 2,
                             .selection_holes = true,
                             .hole_every = shape.hole_every},
                            stream_.get());
}

Result<DecodeCase*> VerifyRunner::cached_case(const KernelSpec& spec, const CaseShape& shape) {
  const std::string key = case_key(spec, shape);
  const auto found =
      std::find_if(cases_.begin(), cases_.end(), [&](const Cached& cached) { return cached.key == key; });
  if (found != cases_.end()) {
    cases_.splice(cases_.begin(), cases_, found);
    return &cases_.front().decode_case;
  }
  auto made = make_case(spec, shape);
  if (!made) return tl::unexpected(made.error());
  cases_.push_front({key, std::move(*made)});
  if (cases_.size() > kCachedCases) cases_.pop_back();
  return &cases_.front().decode_case;
}

Result<DependentChain*> VerifyRunner::chain() {
  if (!chain_) {
    auto loaded = DependentChain::load(device_.arch, cubins_);
    if (!loaded) return tl::unexpected(loaded.error());
    chain_.emplace(std::move(*loaded));
  }
  return &*chain_;
}

LaunchGrid VerifyRunner::usable_grid(const LoadedKernel& kernel, std::int64_t ctas) const {
  // The line of a batch-invariant kernel has no empty tile positions, because all of its segments are equally long.
  const int segment_cost = kernel.spec().features.batch_invariant ? 0 : static_cast<int>(ctas % 4);
  if (kernel.spec().fixup != FixUp::wait) return {ctas, segment_cost};
  return {std::min(ctas, std::int64_t{kernel.resident_ctas_per_sm()} * device_.sm_count), segment_cost};
}

Result<void> VerifyRunner::check(VerifyGroup& group, DecodeCase& decode_case, const LoadedKernel& kernel,
                                 LaunchGrid grid, int launches, const std::function<Result<void>()>& before) {
  const auto report = decode_case.check(kernel, grid, workspace_, stream_.get(), launches, before);
  if (report) {
    record(group, *report, decode_case, decode_case.context_lengths(), kernel, grid);
    return {};
  }
  Error error = report.error();
  error.message =
      fmt::format("{} (while checking {} with grid {}, segment cost {}, {})", error.message, kernel_name(kernel.spec()),
                  grid.ctas, grid.segment_cost, describe_case(decode_case, decode_case.context_lengths()));
  if (error.code == ErrorCode::context_lost || error.code == ErrorCode::out_of_memory)
    return tl::unexpected(std::move(error));
  ++group.cases;
  record_failure(group, std::move(error.message));
  return workspace_.reset(stream_.get());
}

void VerifyRunner::record(VerifyGroup& group, const ComparisonReport& report, const DecodeCase& decode_case,
                          const std::vector<int>& context_lengths, const LoadedKernel& kernel, LaunchGrid grid) const {
  ++group.cases;
  group.worst_error_ratio = std::max(group.worst_error_ratio, report.error_ratio);
  if (report.passed()) return;
  record_failure(group,
                 fmt::format("{} grid {}, segment cost {}, {}: {}", kernel_name(kernel.spec()), grid.ctas,
                             grid.segment_cost, describe_case(decode_case, context_lengths), report.first_failure));
}

void VerifyRunner::record_failure(VerifyGroup& group, std::string text) {
  ++group.failed;
  if (group.failures.size() < kKeptFailures) group.failures.push_back(std::move(text));
}

Result<void> VerifyRunner::cross_check(VerifyGroup& group, DecodeCase& decode_case) {
  const DecodeProblem& problem = decode_case.problem();
  const ScoreFunction score = score_function(problem.features.score);
  if (!problem.features.score.empty() && !score) return {};  // The CPU's oracle does not know this expression.
  const auto reference = decode_case.reference(stream_.get());
  if (!reference) return tl::unexpected(reference.error());
  const double agreement = problem.features.score.empty() ? kOracleAgreement : kExpressionAgreement;
  for (int request = 0; request < decode_case.batch(); ++request) {
    const int length = decode_case.clamped_length(request);
    const int query_tokens = query_tokens_of(**reference, request);
    if (std::int64_t{length} * query_tokens > kCpuOracleTokens || query_tokens == 0) continue;
    const int kv_head = request % problem.kv_heads;
    const std::int64_t heads = problem.q_heads / problem.kv_heads;
    const OracleOutput expected = oracle_of_data(problem, decode_case.options().data, decode_case.options().seed,
                                                 decode_case.scale(), request, kv_head, length,
                                                 {.query_tokens = query_tokens,
                                                  .shared_tokens = request > 0 ? decode_case.shared_tokens() : 0,
                                                  .score = score,
                                                  .selection = decode_case.selection(),
                                                  .hole_every = decode_case.options().hole_every,
                                                  .second_capacity = decode_case.args().second_capacity});
    const auto columns = static_cast<std::size_t>(decode_case.v_head_dim());
    std::size_t wrong = 0;
    for (std::size_t row = 0; row < expected.lse.size(); ++row) {
      const std::int64_t token = query_tokens_before(**reference, request) + static_cast<std::int64_t>(row) / heads;
      const auto at =
          static_cast<std::size_t>(token * problem.q_heads + kv_head * heads + static_cast<std::int64_t>(row) % heads);
      wrong += !same((*reference)->lse[at], expected.lse[row], agreement);
      for (std::size_t column = 0; column < columns; ++column)
        wrong += !same((*reference)->o[at * columns + column], expected.o[row * columns + column], agreement);
    }
    ++group.cases;
    if (wrong > 0) {
      record_failure(group, fmt::format("{} d{} group {}, {}: {} of {} values of request {}, KV head {} differ from "
                                        "the CPU's oracle",
                                        to_string(problem.dtype), problem.head_dim, heads,
                                        describe_case(decode_case, decode_case.context_lengths()), wrong,
                                        expected.o.size() + expected.lse.size(), request, kv_head));
    }
    break;
  }
  return {};
}

void VerifyRunner::finish(VerifyGroup group) {
  const auto now = std::chrono::steady_clock::now();
  group.seconds = std::chrono::duration<double>(now - std::exchange(last_end_, now)).count();
  if (done_) done_(group);
  groups_.push_back(std::move(group));
}

Result<std::unique_ptr<LoadedKernel>> VerifyRunner::load(VerifyGroup& group, const CompiledChoice& choice) const {
  if (!choice.compiled) {
    const Error& error = choice.compiled.error();
    if (error.code == ErrorCode::nvrtc_missing) return tl::unexpected(error);
    if (error.code == ErrorCode::kernel_rejected && !choice.kernel->required) {
      ++group.refused;
    } else {
      ++group.cases;
      record_failure(group, fmt::format("{}: {}", kernel_name(choice.kernel->specs.front()), error.message));
    }
    return nullptr;
  }
  auto loaded = LoadedKernel::load(choice.emitted, *choice.compiled);
  if (!loaded) {
    if (loaded.error().code == ErrorCode::context_lost) return tl::unexpected(loaded.error());
    ++group.cases;
    record_failure(group, fmt::format("{}: {}", choice.emitted.entry, loaded.error().message));
    return nullptr;
  }
  ++group.kernels;
  return std::make_unique<LoadedKernel>(std::move(*loaded));
}

}  // namespace v1
}  // namespace leanattn
