// engine_object.hpp -- what leanattn.Engine and leanattn.Plan hold. GIL held, except where said.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "leanattn/leanattn.hpp"
#include "workspaces.hpp"

namespace leanattn::python {

/// One GPU's engine and its workspaces.
struct EngineObject {
  int device;
  Engine engine;
  Workspaces workspaces;

  /// Raises leanattn.Error.
  static EngineObject open(int device, const std::string& cache_dir, bool disk_cache);
};

/// A plan and the Python engine that keeps it alive.
struct PlanObject {
  nanobind::object engine;
  Plan plan;
};

/// `given` when it is not None, which must be an Engine; else the process's own for `device`, opened when first asked
/// for and never closed: CUDA may be gone by the time the process ends.
EngineObject& find_engine(nanobind::handle given, int device);

void bind_engine(nanobind::module_& module);

}  // namespace leanattn::python
