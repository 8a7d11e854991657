// engine_object.cpp -- leanattn.Engine, leanattn.Plan, and the engine that decode() uses for each GPU.
#include "engine_object.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/paths.hpp"
#include "errors.hpp"
#include "group_object.hpp"
#include "names.hpp"
#include "problem.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "streams.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

PlanObject plan(nb::object self, nb::handle problem, nb::handle batch, nb::handle max_batch, nb::handle longest_context,
                nb::handle total_context, nb::handle stream, nb::object group) {
  const auto& object = nb::cast<EngineObject&>(self);
  const DecodeProblem read = read_problem(problem);
  const GroupObject* const member = find_group(group);
  const std::shared_ptr<Group> kept = member != nullptr ? member->get() : nullptr;
  const leanattn_problem c_problem = to_c(read);
  // A leanattn.Shape says all but max_batch.
  PlanShape asked = nb::hasattr(batch, "longest_context")
                        ? read_plan_shape(batch)
                        : PlanShape{.batch = int_of(batch, "batch"),
                                    .max_batch = 0,
                                    .longest_context = int64_of(longest_context, "longest_context"),
                                    .total_context = int64_of(total_context, "total_context")};
  asked.max_batch = int_of(max_batch, "max_batch");
  const leanattn_shape shape = detail::to_c(asked);
  CUstream_st* const handle = stream.is_none() ? nullptr : find_stream(stream, problem).handle;
  const leanattn_plan* made = nullptr;
  unwrap([&] {
    const nb::gil_scoped_release without_gil;  // because it may compile
    leanattn_engine* const engine = object.engine.get();
    return detail::to_result(kept ? leanattn_engine_plan_group(engine, &c_problem, &shape, kept->get(), handle, &made)
                                  : leanattn_engine_plan(engine, &c_problem, &shape, handle, &made));
  }());
  return {std::move(self), std::move(group), made};
}

leanattn_plan_info info_of(const PlanObject& object) {
  leanattn_plan_info info;
  leanattn_plan_info_init(&info);
  unwrap(detail::to_result(leanattn_plan_get_info(object.plan, &info)));
  return info;
}

std::string describe_plan(const PlanObject& object) {
  const auto info = info_of(object);
  return fmt::format("<leanattn.Plan {}, {} CTAs, {}>", info.kernel_name, info.grid,
                     name_of(kProvenances, info.provenance));
}

/// NVRTC may be in any of the directories that have Python packages, and not only in that of this one.
void look_for_nvrtc() {
  std::vector<std::filesystem::path> directories;
  for (const nb::handle directory : nb::module_::import_("leanattn._nvrtc").attr("directories")())
    directories.emplace_back(text_of(directory, "directory"));
  look_for_nvrtc_in(std::move(directories));
}

/// The context in which the engine launches. The context that is current on this thread stays so.
Result<Context> retain(int device) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  CUcontext before = nullptr;
  (*api)->cuCtxGetCurrent(&before);
  auto context = Context::retain(device);
  (*api)->cuCtxSetCurrent(before);
  return context;
}

template <auto Field>
auto info(const PlanObject& object) {
  return info_of(object).*Field;
}

/// The engines of the process by CUDA ordinal, and what those that are still to be opened shall do.
struct DefaultEngines {
  std::unordered_map<int, EngineObject*> by_device;
  AutotuneMode mode = AutotuneMode::off;
  TuningOptions tuning;
};
DefaultEngines& default_engines() {
  static auto& engines = *new DefaultEngines;
  return engines;
}

nb::object default_engine(nb::handle device) {
  return nb::cast(&find_engine(nb::none(), int_of(device, "device")), nb::rv_policy::reference);
}

}  // namespace

std::string path_of(nb::handle path, const char* argument) {
  if (path.is_none()) return {};
  const nb::object text = nb::steal(PyOS_FSPath(path.ptr()));
  if (!text.is_valid()) {
    PyErr_Clear();
    bad_type(argument, "is no path");
  }
  return text_of(text, argument);
}

EngineObject EngineObject::open(int device, const std::string& cache_dir, bool disk_cache) {
  struct Opened {
    Engine engine;
    Context of_workspaces, of_page_rows;
    std::optional<std::filesystem::path> directory;
  };
  look_for_nvrtc();
  auto opened = [&]() -> Result<Opened> {
    const nb::gil_scoped_release without_gil;
    EngineOptions options;
    options.device = device;
    options.cache_dir = cache_dir;
    options.disk_cache = disk_cache;
    auto made = Engine::create(options);
    if (!made) return tl::unexpected(made.error());
    auto context = retain(device), another = retain(device);
    if (!context) return tl::unexpected(context.error());
    if (!another) return tl::unexpected(another.error());
    std::optional<std::filesystem::path> directory;
    if (disk_cache) {
      // Where it cannot be used, the engine has said so in its warnings.
      auto found = cache_directory(cache_dir.empty() ? std::nullopt : std::optional<std::filesystem::path>(cache_dir),
                                   Access::read);
      if (found) directory = *std::move(found);
    }
    return Opened{std::move(*made), std::move(*context), std::move(*another), std::move(directory)};
  }();
  auto parts = unwrap(std::move(opened));
  return {device, std::move(parts.engine), Workspaces(std::move(parts.of_workspaces)),
          PageRowsKernel(std::move(parts.of_page_rows), std::move(parts.directory))};
}

EngineObject& find_engine(nb::handle given, int device) {
  if (!given.is_none()) {
    EngineObject* object = nullptr;
    if (!nb::try_cast(given, object) || object == nullptr) bad_type("engine", "is not a leanattn.Engine");
    if (object->device != device)
      bad_value("engine", fmt::format("is of CUDA device {}, but q is on device {}", object->device, device));
    return *object;
  }
  DefaultEngines& engines = default_engines();
  if (engines.by_device[device] == nullptr) {
    // Other threads run while an engine is opened, and one of them may have been here meanwhile.
    std::unique_ptr<EngineObject> opened(new EngineObject(EngineObject::open(device, {}, true)));
    if (engines.mode != AutotuneMode::off) unwrap(opened->engine.autotune(engines.mode, engines.tuning));
    if (engines.by_device[device] == nullptr) engines.by_device[device] = opened.release();
  }
  return *engines.by_device[device];
}

void autotune_default_engines(AutotuneMode mode, const TuningOptions& options) {
  DefaultEngines& engines = default_engines();
  engines.mode = mode;
  engines.tuning = options;
  std::vector<EngineObject*> opened;
  for (const auto& [device, engine] : engines.by_device) {
    if (engine != nullptr) opened.push_back(engine);
  }
  Result<void> done;
  {
    const nb::gil_scoped_release without_gil;  // because what is tuned in the background is waited for
    for (EngineObject* engine : opened) {
      if (auto one = engine->engine.autotune(mode, options); !one && done) done = std::move(one);
    }
  }
  unwrap(std::move(done));
}

WorkspaceObject::WorkspaceObject(nb::object engine, std::int64_t bytes) : engine_(std::move(engine)) {
  if (bytes < 1)
    bad_value("bytes", fmt::format("is {}", bytes), "Give the largest Plan.workspace_bytes of its launches.");
  auto& object = nb::cast<EngineObject&>(engine_);
  auto made = [&] {
    const nb::gil_scoped_release without_gil;
    return object.workspaces.make(bytes);
  }();
  buffer_ = unwrap(std::move(made));
}

WorkspaceObject::~WorkspaceObject() { nb::cast<EngineObject&>(engine_).workspaces.free(std::move(buffer_)); }

const WorkspaceObject* find_workspace(nb::handle given, int device) {
  if (given.is_none()) return nullptr;
  WorkspaceObject* object = nullptr;
  if (!nb::try_cast(given, object) || object == nullptr) bad_type("workspace", "is not a leanattn.Workspace");
  const int own = nb::cast<const EngineObject&>(object->engine()).device;
  if (own != device) bad_value("workspace", fmt::format("is of CUDA device {}, but q is on device {}", own, device));
  return object;
}

void bind_engine(nb::module_& module) {
  constexpr const char* kPlanDocumentation =
      R"(The plan for a problem and a shape. The first one for a kernel compiles it, or takes it from the cache.

decode() makes its plans by itself. Use this to compile early, or to see what is launched and why.

batch            requests of a typical step; or a leanattn.Shape, which also says the contexts
max_batch        the most requests of any step; 0: batch
longest_context  tokens of the longest request
total_context    tokens of all requests; 0: batch * longest_context
group            for a problem with context_parallel: the rank's Group, whose engine is used; contexts then count the
                 tokens of one rank
Raises leanattn.Error.)";
  nb::class_<PlanObject>(module, "Plan",
                         "What is launched for a problem and a shape: the kernel, its grid, and how they were found.")
      .def("__repr__", &describe_plan)
      .def_prop_ro("kernel_name", &info<&leanattn_plan_info::kernel_name>, "The stable name of the kernel.")
      .def_prop_ro("grid", &info<&leanattn_plan_info::grid>, "The number of CTAs.")
      .def_prop_ro(
          "provenance", [](const PlanObject& self) { return name_of(kProvenances, info_of(self).provenance); },
          "How good the answer of the look-up is: exact, bucket, without_pdl, nearest, model or fallback.")
      .def_prop_ro(
          "layer", &info<&leanattn_plan_info::layer>,
          "The database that has the winner: user, site, shipped, or an empty text where the plan rests on none.")
      .def_prop_ro("workspace_bytes", &info<&leanattn_plan_info::workspace_bytes>,
                   "Bytes of device memory that a launch needs.")
      .def_prop_ro("max_batch", &info<&leanattn_plan_info::max_batch>, "The most requests of a launch.")
      .def_prop_ro("tuned_us", &info<&leanattn_plan_info::tuned_us>,
                   "Median of the measurement on which the plan rests, in microseconds; 0: none.")
      .def_prop_ro("compile_ms", &info<&leanattn_plan_info::compile_ms>,
                   "Milliseconds that compiling took; 0: the kernel came from the cache.")
      .def_prop_ro("threads", &info<&leanattn_plan_info::threads>, "Threads of a CTA.")
      .def_prop_ro("registers", &info<&leanattn_plan_info::registers>, "Registers of a thread.")
      .def_prop_ro("shared_bytes", &info<&leanattn_plan_info::shared_bytes>, "Bytes of dynamic shared memory of a CTA.")
      .def_prop_ro("ctas_per_sm", &info<&leanattn_plan_info::ctas_per_sm>, "CTAs that one SM holds at a time.")
      .def_prop_ro(
          "engine", [](const PlanObject& self) { return self.engine; }, "The engine to which the plan belongs.",
          nb::sig("def engine(self) -> Engine"));

  nb::class_<EngineObject>(module, "Engine", R"(The winners for one GPU, and the kernels that are loaded on it.

decode() makes an engine for each GPU by itself. Make your own for another cache directory. An engine must outlive the
CUDA graphs that were captured with it.

device     CUDA ordinal
cache_dir  the directory of tuning.db and cubin.db; None: LEANATTN_CACHE_DIR, else ~/.cache/leanattn
disk_cache False: compiled kernels stay in memory, and the user's tuning.db is not read
Raises leanattn.Error: no_driver, no_device, driver_too_old, unsupported, out_of_memory.)")
      .def(
          "__init__",
          [](EngineObject* self, nb::handle device, nb::handle cache_dir, nb::handle disk_cache) {
            new (self) EngineObject(EngineObject::open(int_of(device, "device"), path_of(cache_dir, "cache_dir"),
                                                       bool_of(disk_cache, "disk_cache")));
          },
          nb::arg("device").none() = 0, nb::kw_only(), nb::arg("cache_dir") = nb::none(),
          nb::arg("disk_cache").none() = true,
          nb::sig("def __init__(self, device: int = 0, *, cache_dir: str | os.PathLike[str] | None = None, "
                  "disk_cache: bool = True) -> None"))
      .def("__repr__",
           [](const EngineObject& self) { return fmt::format("<leanattn.Engine of CUDA device {}>", self.device); })
      .def_ro("device", &EngineObject::device, "CUDA ordinal.")
      .def_prop_ro(
          "warnings", [](const EngineObject& self) { return self.engine.warnings(); },
          "What did not work, such as a cache that cannot be written: one sentence on each line, empty when all is "
          "well.")
      .def_prop_ro(
          "workspace_bytes", [](const EngineObject& self) { return self.workspaces.bytes(); },
          "Bytes of device memory that the engine keeps for streams and captured graphs: workspaces, and what decode() "
          "makes of page tables in compressed rows.")
      .def(
          "reload", [](EngineObject& self) { unwrap(self.engine.reload()); },
          "Reads the winners again, after tuning or an import. Plans that were made before stay valid and do not "
          "change.")
      .def(
          "check", [](const EngineObject& self) { unwrap(self.engine.check()); },
          R"(Raises leanattn.Error with code workspace_corrupt, or leanattn.GroupBroken, if a launch of the engine has ended with
a fault.

A launch ends with a fault if its workspace was not all zero, was used by two launches at a time, or if context lengths
changed while it ran; or if a rank of its group did not come in time or launched something else. Its results are wrong. decode() asks, too, before it launches; replays of CUDA graphs do not. This
reads one word and does not wait: synchronise first to ask about launches that may still run.)")
      .def(
          "reset_workspaces",
          [](EngineObject& self) {
            const auto done = [&]() -> Result<void> {
              const nb::gil_scoped_release without_gil;
              if (auto ok = self.workspaces.reset(); !ok) return ok;
              return self.engine.acknowledge();
            }();
            unwrap(done);
          },
          R"(Makes the engine usable again after a fault: waits for the GPU, zeroes all workspaces of streams, of captured
graphs and of leanattn.Workspace, and acknowledges the fault. After leanattn.GroupBroken call Group.reset() instead.
Raises leanattn.Error.)")
      .def("plan", &plan, nb::arg("problem"), nb::arg("batch").none() = 1, nb::kw_only(),
           nb::arg("max_batch").none() = 0, nb::arg("longest_context").none() = 1024,
           nb::arg("total_context").none() = 0, nb::arg("stream") = nb::none(), nb::arg("group") = nb::none(),
           nb::sig("def plan(self, problem: leanattn.Problem, batch: int | leanattn.Shape = 1, *, max_batch: int = 0, "
                   "longest_context: "
                   "int = 1024, "
                   "total_context: int = 0, stream: typing.Any = None, group: Group | None = None) -> Plan"),
           kPlanDocumentation);

  nb::class_<WorkspaceObject>(
      module, "Workspace",
      R"(Device memory through which the CTAs of a launch exchange partial results, for decode(..., workspace=).

Without it, the engine keeps one for each stream and each captured graph. One of your own serves any number of streams
and graphs whose launches follow one another, never two at a time. It must outlive the graphs that were captured with it.

engine     an Engine; the memory is on its GPU
bytes      as many as the largest Plan.workspace_bytes of its launches
Raises leanattn.Error: out_of_memory.)")
      .def(
          "__init__",
          [](WorkspaceObject* self, nb::object engine, nb::handle bytes) {
            EngineObject* object = nullptr;
            if (!nb::try_cast(engine, object) || object == nullptr) bad_type("engine", "is not a leanattn.Engine");
            new (self) WorkspaceObject(std::move(engine), int64_of(bytes, "bytes"));
          },
          nb::arg("engine").none(), nb::arg("bytes").none(),
          nb::sig("def __init__(self, engine: Engine, bytes: int) -> None"))
      .def("__repr__",
           [](const WorkspaceObject& self) { return fmt::format("<leanattn.Workspace of {} bytes>", self.bytes()); })
      .def_prop_ro("bytes", &WorkspaceObject::bytes, "Bytes of device memory, rounded up.");

  module.def("engine", &default_engine, nb::arg("device").none() = 0, nb::sig("def engine(device: int = 0) -> Engine"),
             "The engine that decode() uses for a GPU. It is opened when it is first needed, and never closed.");
  module.def(
      "plan",
      [](nb::handle problem, nb::handle batch, nb::handle max_batch, nb::handle longest_context,
         nb::handle total_context, nb::handle stream, nb::handle device, nb::object group) {
        const GroupObject* const member = find_group(group);
        nb::object engine = member != nullptr ? member->engine() : default_engine(device);
        return plan(std::move(engine), problem, batch, max_batch, longest_context, total_context, stream,
                    std::move(group));
      },
      nb::arg("problem"), nb::arg("batch").none() = 1, nb::kw_only(), nb::arg("max_batch").none() = 0,
      nb::arg("longest_context").none() = 1024, nb::arg("total_context").none() = 0, nb::arg("stream") = nb::none(),
      nb::arg("device").none() = 0, nb::arg("group") = nb::none(),
      nb::sig("def plan(problem: leanattn.Problem, batch: int | leanattn.Shape = 1, *, max_batch: int = 0, "
              "longest_context: int = 1024, "
              "total_context: int = 0, stream: typing.Any = None, device: int = 0, group: Group | None = None) -> "
              "Plan"),
      kPlanDocumentation);
}

}  // namespace leanattn::python
