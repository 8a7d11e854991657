// engine_object.hpp -- EngineObject and PlanObject: what leanattn.Engine and leanattn.Plan hold. Called with the GIL
// held.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "leanattn/leanattn.hpp"
#include "page_rows.hpp"
#include "workspaces.hpp"

namespace leanattn::python {

/// An engine, its workspaces, and the kernel that makes page tables.
struct EngineObject {
  int device;
  Engine engine;
  Workspaces workspaces;
  PageRowsKernel page_rows;

  /// Raises leanattn.Error.
  static EngineObject open(int device, const std::string& cache_dir, bool disk_cache);
};

/// A plan and the Python engine that owns it and so is kept alive.
struct PlanObject {
  nanobind::object engine;
  nanobind::object group;  ///< that it launches on, or none
  const leanattn_plan* plan;
};

/// A workspace of the user's, and the Python engine that keeps its context alive.
class WorkspaceObject {
 public:
  /// Raises leanattn.Error.
  WorkspaceObject(nanobind::object engine, std::int64_t bytes);
  WorkspaceObject(const WorkspaceObject&) = delete;
  WorkspaceObject& operator=(const WorkspaceObject&) = delete;
  ~WorkspaceObject();

  const nanobind::object& engine() const { return engine_; }
  std::int64_t bytes() const { return buffer_.bytes(); }
  void* data() const { return buffer_.data(); }

 private:
  nanobind::object engine_;
  DeviceBuffer buffer_;
};

/// `given`, which must be a Workspace of an engine for `device`; null for None. Raises leanattn.Error.
const WorkspaceObject* find_workspace(nanobind::handle given, int device);

/// `given`, which must be an Engine, if it is not None. Else the engine of the process for `device`, which is opened
/// when it is first needed, and never closed because CUDA may be gone when the process ends.
EngineObject& find_engine(nanobind::handle given, int device);

/// Has the engines of the process, also those that are opened later, tune on first use. Raises leanattn.Error.
void autotune_default_engines(AutotuneMode mode, const TuningOptions& options);

/// A path; empty for None. Raises leanattn.Error.
std::string path_of(nanobind::handle path, const char* argument);

void bind_engine(nanobind::module_& module);

}  // namespace leanattn::python
