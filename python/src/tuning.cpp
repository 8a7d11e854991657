// tuning.cpp -- tune and set_autotune, which leanattn/tuning.py makes into leanattn.tune and leanattn.autotune.
#include "tuning.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "engine_object.hpp"
#include "errors.hpp"
#include "names.hpp"
#include "problem.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

constexpr Name kModes[] = {
    {"off", LEANATTN_AUTOTUNE_OFF}, {"background", LEANATTN_AUTOTUNE_BACKGROUND}, {"wait", LEANATTN_AUTOTUNE_WAIT}};

/// Seconds; 0 for None. 0 itself would mean the default, which nobody who writes 0 wants.
double seconds_of(nb::handle value, const char* argument) {
  if (!given(value)) return 0;
  const double seconds = float_of(value, argument);
  if (!std::isfinite(seconds) || seconds <= 0)
    bad_value(argument, fmt::format("is {}", seconds), "Give seconds above 0, or None for the default.");
  return seconds;
}

TuningOptions limits_of(nb::handle budget, nb::handle shape_budget, nb::handle memory, nb::handle program) {
  TuningOptions options;
  options.budget_s = seconds_of(budget, "budget");
  options.shape_budget_s = seconds_of(shape_budget, "shape_budget");
  options.program = path_of(program, "program");
  if (!given(memory)) return options;
  options.memory_bytes = int64_of(memory, "memory");
  if (options.memory_bytes < 1)
    bad_value("memory", fmt::format("is {}", options.memory_bytes), "Give bytes above 0, or None for the default.");
  return options;
}

/// Shows progress to a Python function, and lets signal handlers run, such as that of Ctrl-C. An exception of either
/// stops the tuning and is kept.
class Watcher {
 public:
  explicit Watcher(nb::object progress) : progress_(std::move(progress)) {}

  bool operator()(const leanattn_tune_progress& said) {
    const nb::gil_scoped_acquire with_gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (given(progress_)) {
        progress_(nb::module_::import_("leanattn.tuning")
                      .attr("TuneProgress")(said.shape, said.shape_count, said.phase, said.done, said.total,
                                            said.best_us, said.elapsed_s));
      }
      return true;
    } catch (nb::python_error& error) {
      raised_.emplace(std::move(error));
      return false;
    }
  }
  void raise_again() {
    if (!raised_) return;
    raised_->restore();
    throw nb::python_error();
  }

 private:
  nb::object progress_;
  std::optional<nb::python_error> raised_;
};

std::vector<std::int32_t> integers_of(nb::list list, const char* name) {
  std::vector<std::int32_t> integers;
  for (const nb::handle one : list) integers.push_back(int_of(one, name));
  return integers;
}

/// The fields of the leanattn.Shape of a step, in their order.
nb::tuple fields_of_shape(nb::list context_lengths, nb::handle query_tokens) {
  const auto lengths = integers_of(std::move(context_lengths), "context_lengths");
  const auto tokens = query_tokens.is_none() ? std::vector<std::int32_t>(lengths.size(), 1)
                                             : integers_of(nb::borrow<nb::list>(query_tokens), "query_tokens");
  const PlanShape made = unwrap(shape_of_requests(lengths, tokens));
  return nb::make_tuple(made.batch, made.longest_context, made.total_context, made.query_tokens, made.chunks,
                        made.chunk_context, made.chunk_pairs);
}

nb::list tune(nb::handle problem, nb::list shapes, nb::handle budget, nb::handle shape_budget, nb::handle memory,
              nb::handle retune, nb::object progress, nb::handle program, nb::handle device, nb::handle engine) {
  const DecodeProblem read = read_problem(problem);
  TuningOptions options = limits_of(budget, shape_budget, memory, program);
  options.retune = bool_of(retune, "retune");
  Watcher watcher(std::move(progress));
  options.progress = [&watcher](const leanattn_tune_progress& said) { return watcher(said); };
  std::vector<leanattn_shape> asked;
  for (const nb::handle shape : shapes) asked.push_back(detail::to_c(read_plan_shape(shape)));
  const leanattn_problem c_problem = to_c(read);
  const leanattn_tune_options c_options = detail::to_c(options);
  std::vector<leanattn_tuned_shape> tuned(asked.size());
  for (leanattn_tuned_shape& shape : tuned) leanattn_tuned_shape_init(&shape);
  EngineObject& object = find_engine(engine, int_of(device, "device"));
  unwrap(detail::check_text("program", options.program));
  const auto done = [&] {
    const nb::gil_scoped_release without_gil;
    return detail::to_result(leanattn_engine_tune(object.engine.get(), &c_problem, asked.data(),
                                                  static_cast<std::int32_t>(asked.size()), &c_options, tuned.data()));
  }();
  watcher.raise_again();
  unwrap(done);
  nb::list results;
  for (const leanattn_tuned_shape& shape : tuned) {
    results.append(nb::make_tuple(leanattn_status_name(static_cast<leanattn_status>(shape.status)),
                                  name_of(kProvenances, shape.provenance), shape.measured != 0, shape.finished != 0,
                                  shape.median_us, shape.read_limit_us, shape.default_us, shape.candidates,
                                  shape.rejected, shape.incorrect));
  }
  return results;
}

void set_autotune(nb::handle mode, nb::handle budget, nb::handle shape_budget, nb::handle memory, nb::handle program,
                  nb::handle engine) {
  const auto read = static_cast<AutotuneMode>(number_of(kModes, mode, "mode"));
  const TuningOptions options = limits_of(budget, shape_budget, memory, program);
  if (!given(engine)) return autotune_default_engines(read, options);
  EngineObject* object = nullptr;
  if (!nb::try_cast(engine, object) || object == nullptr) bad_type("engine", "is not a leanattn.Engine");
  unwrap([&] {
    const nb::gil_scoped_release without_gil;
    return object->engine.autotune(read, options);
  }());
}

}  // namespace

void bind_tuning(nb::module_& module) {
  module.def("_tune", &tune, nb::arg("problem"), nb::arg("shapes"), nb::arg("budget").none(),
             nb::arg("shape_budget").none(), nb::arg("memory").none(), nb::arg("retune").none(),
             nb::arg("progress").none(), nb::arg("program").none(), nb::arg("device").none(), nb::arg("engine").none());
  module.def("_shape_of_requests", &fields_of_shape, nb::arg("context_lengths"), nb::arg("query_tokens").none());
  module.def("_set_autotune", &set_autotune, nb::arg("mode"), nb::arg("budget").none(), nb::arg("shape_budget").none(),
             nb::arg("memory").none(), nb::arg("program").none(), nb::arg("engine").none());
}

}  // namespace leanattn::python
