// engine_tuning.cpp -- chooses what to tune, has it tuned by the program, and says what came of it.
#include "runtime/engine/engine_tuning.hpp"
#include "runtime/lookup/one_gpu.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/lookup/specs.hpp"
#include "runtime/threads.hpp"
#include "runtime/tuning/program.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using TuningClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kUsualShapeSeconds = 5;  // of budget, where the caller gives none
constexpr double kLeastSeconds = 0.5;     // with less, a tuning would end before its first measurement
constexpr double kMostSeconds = 1e7;      // four months: more is a mistake in the unit
constexpr std::size_t kMostWarnings = 16;

double seconds_since(TuningClock::time_point start) {
  return std::chrono::duration<double>(TuningClock::now() - start).count();
}

/// What all shapes together may take.
double budget_for(const TuneOptions& options, std::size_t shapes) {
  const double each = options.shape_budget_s > 0 ? options.shape_budget_s : kUsualShapeSeconds;
  const double by_shape = each * static_cast<double>(shapes);
  if (options.budget_s <= 0) return by_shape;
  return options.shape_budget_s > 0 ? std::min(options.budget_s, by_shape) : options.budget_s;
}

Result<void> check_seconds(const char* name, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds) return {};
  return fail(ErrorCode::invalid_argument, fmt::format("tune_options.{} is {}", name, seconds),
              "Give seconds, or 0 for the default.");
}

std::string identity_of(const DecodeProblem& problem, const Shape& shape) {
  return to_json(problem) + to_json(without_max_batch(shape));
}

Error stopped_by_caller() {
  return {ErrorCode::interrupted, "the caller stopped the tuning", "What was measured until then is stored.", {}};
}

}  // namespace

EngineTuning::EngineTuning(Parts parts) : parts_(std::move(parts)) {}

EngineTuning::~EngineTuning() {
  background_ = TuningWish::kill;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<void> EngineTuning::check(const TuneOptions& options) const {
  if (auto ok = check_seconds("budget_s", options.budget_s); !ok) return ok;
  if (auto ok = check_seconds("shape_budget_s", options.shape_budget_s); !ok) return ok;
  if (options.memory_bytes < 0) {
    return fail(ErrorCode::invalid_argument, fmt::format("tune_options.memory_bytes is {}", options.memory_bytes),
                "Give bytes, or 0 for most of what is free.");
  }
  if (parts_.cache_directory) return {};
  return fail(ErrorCode::cache_unavailable,
              "this engine has no cache on disk that it may write, so what is tuned could not be stored",
              "Make it with a cache directory that can be written; leanattn_engine_warnings says what is wrong.");
}

Result<TuneReport> EngineTuning::tune(const DecodeProblem& problem, std::span<const Shape> shapes,
                                      const TuneOptions& options) {
  if (auto ok = check(options); !ok) return tl::unexpected(std::move(ok.error()));
  if (shapes.empty()) return fail(ErrorCode::invalid_argument, "there are no shapes to tune", "Give at least one.");
  if (auto ok = one_gpu_only(problem, "tuning"); !ok) return tl::unexpected(std::move(ok.error()));
  for (const Shape& shape : shapes) {
    if (auto ok = validate(problem, shape); !ok) return tl::unexpected(std::move(ok.error()));
  }
  return tune_in_turn(problem, shapes, options, {});
}

Result<TuneReport> EngineTuning::tune_in_turn(const DecodeProblem& problem, std::span<const Shape> shapes,
                                              const TuneOptions& options, const TuningObserver& interrupt) {
  const Result<std::filesystem::path> program = find_leanattn_program(options.program);
  if (!program) return tl::unexpected(program.error());
  Turn turn;
  const TuneStep wait{.shape = 0, .shape_count = static_cast<int>(shapes.size()), .phase = "wait"};
  const bool taken = turn.take(*this, [&] {
    return (!options.progress || options.progress(wait)) && (!interrupt || interrupt(nullptr) == TuningWish::go_on);
  });
  if (!taken) return tl::unexpected(stopped_by_caller());
  return tune_now(*program, as_launched(problem, parts_.device.arch), shapes, options, interrupt);
}

TuneReport EngineTuning::tune_now(const std::filesystem::path& program, const DecodeProblem& problem,
                                  std::span<const Shape> shapes, const TuneOptions& options,
                                  const TuningObserver& interrupt) {
  TuneReport report;
  report.shapes.resize(shapes.size());
  // Another process, or the tuning that had its turn before, may have answered what is asked.
  parts_.reload();
  std::vector<std::size_t> order;  // of the program's shapes, those of the call
  std::set<std::string> ordered;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (options.memory_bytes > 0 && kv_bytes(problem, without_max_batch(shapes[i])) > options.memory_bytes) {
      report.shapes[i].status = ErrorCode::out_of_memory;
    } else if ((options.retune || !is_settled(parts_.find(problem, shapes[i]))) &&
               ordered.insert(to_json(without_max_batch(shapes[i]))).second) {
      order.push_back(i);
    }
  }
  // The smallest come first, so that a budget reaches those that fit into memory.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return kv_bytes(problem, shapes[a]) < kv_bytes(problem, shapes[b]);
  });
  TuningOutcome outcome;
  if (!order.empty()) {
    TuningOrder asked{.problem = problem,
                      .shapes = {},
                      .budget = milliseconds(std::llround(1000 * budget_for(options, order.size()))),
                      .memory_bytes = options.memory_bytes,
                      .uuid = parts_.device.uuid,
                      .ordinal = parts_.device.ordinal,
                      .sm_count = parts_.device.sm_count,
                      .cache_directory = parts_.cache_directory->string(),
                      .parent = ::getpid()};
    for (const std::size_t i : order) asked.shapes.push_back(without_max_batch(shapes[i]));
    const auto started = TuningClock::now();
    TuneStep step{
        .shape = static_cast<int>(order.front()), .shape_count = static_cast<int>(shapes.size()), .phase = "start"};
    const auto observer = [&](const TuningProgress* news) {
      if (interrupt) {
        if (const TuningWish wish = interrupt(news); wish != TuningWish::go_on) return wish;
      }
      if (!options.progress) return TuningWish::go_on;
      if (news != nullptr) {
        step.shape = static_cast<int>(order[static_cast<std::size_t>(news->shape)]);
        step.phase = news->phase;
        step.done = news->done, step.total = news->total;
        step.best_us = news->best_us;
      }
      step.elapsed_s = seconds_since(started);
      return options.progress(step) ? TuningWish::go_on : TuningWish::stop;
    };
    outcome = run_tuning_child(program, asked, observer, parts_.patience);
    parts_.reload();
  }
  bool any_measured = false;
  for (const TuningResult& result : outcome.results) {
    ShapeTuning& shape = report.shapes[order[static_cast<std::size_t>(result.shape)]];
    shape.measured = result.candidates > 0 && result.median_us > 0;
    shape.finished = result.finished;
    shape.read_limit_us = result.read_limit_us, shape.default_us = result.default_us;
    shape.candidates = result.candidates, shape.rejected = result.rejected, shape.incorrect = result.incorrect;
    any_measured = any_measured || shape.measured;
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    ShapeTuning& shape = report.shapes[i];
    shape.choice = parts_.find(problem, shapes[i]);
    if (is_settled(shape.choice)) {
      any_measured = any_measured || std::find(order.begin(), order.end(), i) != order.end();
      shape.status = ErrorCode::ok;
    } else if (shape.status == ErrorCode::ok) {
      shape.status = outcome.error ? outcome.error->code : ErrorCode::interrupted;
    }
  }
  for (std::string& warning : outcome.warnings) warn(std::move(warning));
  if (outcome.stopped) {
    report.error = stopped_by_caller();
  } else if (outcome.error && !(outcome.error->code == ErrorCode::out_of_memory && any_measured)) {
    report.error = std::move(outcome.error);
  }
  return report;
}

Result<void> EngineTuning::set_autotune(Autotune mode, const TuneOptions& options) {
  if (mode != Autotune::off) {
    if (auto ok = check(options); !ok) return ok;
    if (options.budget_s <= 0) {
      return fail(ErrorCode::invalid_argument, "tune_options.budget_s is 0, but first uses have no natural end",
                  "Give the seconds that all of them together may take.");
    }
    // A program that is missing is better known now than at the first use.
    if (const auto program = find_leanattn_program(options.program); !program) return tl::unexpected(program.error());
  }
  std::unique_lock lock(mutex_);
  mode_ = Autotune::off;
  waiting_.clear();
  background_ = TuningWish::stop;
  wake_.wait(lock, [this] { return !running_; });
  background_ = TuningWish::go_on;
  options_ = options;
  spent_s_ = 0;
  seen_.clear();
  mode_ = mode;
  return {};
}

bool EngineTuning::first_use(const DecodeProblem& asked, const Shape& shape) {
  const DecodeProblem problem = as_launched(asked, parts_.device.arch);
  bool fresh = false;
  {
    const std::lock_guard lock(mutex_);
    const Autotune mode = mode_;
    if (mode == Autotune::off) return false;
    // In the background nothing is noted without a thread, so that the next use of the shape tries again.
    if (mode == Autotune::background && !ensure_own_thread(thread_, [this] { run(); })) return false;
    fresh = seen_.insert(identity_of(problem, shape)).second;
    if (mode == Autotune::background) {
      if (!fresh) return false;
      waiting_.push_back({problem, shape});
      wake_.notify_all();
      return false;
    }
  }
  if (fresh) {
    tune_first_uses(problem, {&shape, 1}, {});
    return true;
  }
  // Another thread tunes this shape, or has done so.
  Turn turn;
  turn.take(*this, [] { return true; });
  return is_settled(parts_.find(problem, shape));
}

void EngineTuning::tune_first_uses(const DecodeProblem& problem, std::span<const Shape> shapes,
                                   const TuningObserver& interrupt) {
  TuneOptions options;
  {
    const std::lock_guard lock(mutex_);
    options = options_;
    options.budget_s = 0;
    options.budget_s = std::min(options_.budget_s - spent_s_, budget_for(options, shapes.size()));
    if (options.budget_s < kLeastSeconds) return;
    options.shape_budget_s = 0;
  }
  const auto started = TuningClock::now();
  const Result<TuneReport> report = tune_in_turn(problem, shapes, options, interrupt);
  const std::optional<Error> error = report ? report->error : std::optional(report.error());
  const bool failed = error && error->code != ErrorCode::interrupted;
  if (failed) warn(fmt::format("tuning on first use: {}. {}", error->message, error->hint));
  const std::lock_guard lock(mutex_);
  spent_s_ += seconds_since(started);
  // What failed once fails again, and each time would cost its caller a wait.
  if (failed && error->code != ErrorCode::out_of_memory) spent_s_ = options_.budget_s;
}

void EngineTuning::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    // All shapes of one problem share a child.
    const DecodeProblem problem = waiting_.front().problem;
    std::vector<Shape> shapes;
    std::erase_if(waiting_, [&](const FirstUse& use) {
      if (!(use.problem == problem)) return false;
      shapes.push_back(use.shape);
      return true;
    });
    running_ = true;
    lock.unlock();
    tune_first_uses(problem, shapes, [this](const TuningProgress*) { return background_.load(); });
    lock.lock();
    running_ = false;
    wake_.notify_all();
  }
}

void EngineTuning::warn(std::string text) {
  const std::lock_guard lock(mutex_);
  const bool known = std::find(warnings_.begin(), warnings_.end(), text) != warnings_.end();
  if (!known && warnings_.size() < kMostWarnings) warnings_.push_back(std::move(text));
}

std::vector<std::string> EngineTuning::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

}  // namespace v1
}  // namespace leanattn
