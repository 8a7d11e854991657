// tensor.cpp -- reads tensors through DLPack, and checks their types, shapes and strides.
#include "tensor.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <unordered_map>

#include "errors.hpp"
#include "leanattn/leanattn.h"
#include "names.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

struct TypeRow {
  ElementType type;
  std::uint8_t code, bits;
  const char* name;
};
constexpr TypeRow kTypes[] = {
    {ElementType::bf16, dlpack::kBfloat, 16, "bfloat16"},
    {ElementType::fp16, dlpack::kFloat, 16, "float16"},
    {ElementType::fp32, dlpack::kFloat, 32, "float32"},
    {ElementType::int32, dlpack::kInt, 32, "int32"},
    {ElementType::uint32, dlpack::kUInt, 32, "uint32"},
    {ElementType::int8, dlpack::kInt, 8, "int8"},
    {ElementType::uint8, dlpack::kUInt, 8, "uint8"},
    {ElementType::fp8_e4m3, dlpack::kFloat8E4M3FN, 8, "float8_e4m3fn"},
    {ElementType::fp8_e5m2, dlpack::kFloat8E5M2, 8, "float8_e5m2"},
};

ElementType element_type(const dlpack::DataType& dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) return row.type;
  }
  return ElementType::other;
}

std::string dtype_text(const dlpack::DataType& dtype) {
  const ElementType type = element_type(dtype);
  if (type != ElementType::other) return to_string(type);
  constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  if (dtype.code < std::size(kCodes)) return fmt::format("{}{}", kCodes[dtype.code], dtype.bits);
  return fmt::format("DLPack type {} of {} bits", dtype.code, dtype.bits);
}

std::string name_of_type(nb::handle object) { return nb::cast<std::string>(nb::str(nb::type_name(object.type()))); }

/// The number of a stream in DLPack, which uses 1 for the legacy default stream.
std::intptr_t dlpack_stream(CUstream_st* stream) {
  return stream == nullptr ? 1 : reinterpret_cast<std::intptr_t>(stream);
}

/// Calls object.__dlpack__(), with the newest version of the protocol that it knows.
nb::object ask_for_capsule(nb::handle object, const char* name, CUstream_st* stream) {
  const nb::object method = nb::getattr(object, "__dlpack__", nb::none());
  const nb::object where = nb::getattr(object, "__dlpack_device__", nb::none());
  if (method.is_none() || where.is_none()) {
    bad_type(name, fmt::format("is of type {}, which does not speak DLPack", name_of_type(object)),
             "Give a tensor of PyTorch, CuPy, JAX or another library with __dlpack__.");
  }
  const nb::object device = where();
  const int type = int_of(nb::int_(device[0]), fmt::format("{}.__dlpack_device__()", name).c_str());
  if (type != dlpack::kCuda && type != dlpack::kCudaManaged) {
    bad_value(name, fmt::format("is in {} memory", type == dlpack::kCpu ? "CPU" : "another device's"),
              "Move it to the GPU.");
  }
  try {
    return method(nb::arg("stream") = dlpack_stream(stream), nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(nb::arg("stream") = dlpack_stream(stream));  // versions before 1.0 have no max_version
}

}  // namespace

const char* to_string(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "another type";
}

int bytes_of(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.bits / 8;
  }
  return 0;
}

const dlpack::ExchangeApi* exchange_api(nb::handle object) {
  // Types are kept alive, so that no other type can get an address that is remembered here.
  static auto& known = *new std::unordered_map<PyObject*, const dlpack::ExchangeApi*>;
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  const auto found = known.find(type);
  if (found != known.end()) [[likely]]
    return found->second;
  const dlpack::ExchangeApi* api = nullptr;
  const nb::object capsule = nb::getattr(nb::handle(type), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (api != nullptr && api->version.major > dlpack::kMajorVersion) api = api->previous;
    if (api != nullptr && (api->version.major != dlpack::kMajorVersion || api->view_of_object == nullptr ||
                           api->current_stream == nullptr)) {
      api = nullptr;
    }
  }
  Py_INCREF(type);
  known.emplace(type, api);
  return api;
}

TensorView::TensorView(nb::handle object, const char* name, CUstream_st* stream) : name_(name) {
  if (const auto* api = exchange_api(object)) [[likely]] {
    if (api->view_of_object(object.ptr(), &view_) != 0) nb::raise_python_error();
  } else {
    const nb::object capsule = ask_for_capsule(object, name, stream);
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
      auto* made =
          static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
      if (made->version.major != dlpack::kMajorVersion)
        bad_type(
            name,
            fmt::format("speaks DLPack {}.{}, not {}", made->version.major, made->version.minor, dlpack::kMajorVersion),
            "Another version of its framework, or of leanattn, may have the same DLPack.");
      versioned_.reset(made);
      view_ = made->tensor;
      PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
      managed_.reset(static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")));
      view_ = managed_->tensor;
      PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    } else {
      bad_type(name, fmt::format("is of type {}, whose __dlpack__ returned no DLPack capsule", name_of_type(object)));
    }
  }
  type_ = element_type(view_.dtype);
  if (view_.device.type != dlpack::kCuda && view_.device.type != dlpack::kCudaManaged) [[unlikely]] {
    const bool cpu = view_.device.type == dlpack::kCpu;
    bad_value(name, fmt::format("is in {} memory", cpu ? "CPU" : "another device's"), "Move it to the GPU.");
  }
}

std::int32_t TensorView::extent32(int dimension, std::int64_t least) const {
  const std::int64_t found = extent(dimension);
  if (found < least) [[unlikely]]
    bad_value(name_, fmt::format("has shape {}, which is empty", shape_text()));
  if (found > std::numeric_limits<std::int32_t>::max()) [[unlikely]]
    bad_value(name_, fmt::format("has shape {}, with more than 2^31 in a dimension", shape_text()));
  return static_cast<std::int32_t>(found);
}

std::int64_t TensorView::stride(int dimension) const {
  if (view_.shape[dimension] <= 1) return 0;
  if (view_.strides != nullptr) return view_.strides[dimension];
  std::int64_t stride = 1;
  for (int i = dimension + 1; i < view_.ndim; ++i) stride *= view_.shape[i];
  return stride;
}

std::int64_t TensorView::launch_stride(int dimension) const {
  const std::int64_t found = stride(dimension);
  return found == 0 && view_.shape[dimension] > 1 ? LEANATTN_STRIDE_EXPANDED : found;
}

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (int i = 0; i < view_.ndim; ++i) count *= view_.shape[i];
  return count;
}

std::string TensorView::shape_text() const {
  std::string text = "[";
  for (int i = 0; i < view_.ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(view_.shape[i]);
  return text + "]";
}

void TensorView::require_type(ElementType type) const {
  if (type_ == type) [[likely]]
    return;
  bad_type(name_, fmt::format("is {}, not {}", dtype_text(view_.dtype), to_string(type)));
}

void TensorView::require_rank(int rank, const char* shape) const {
  if (view_.ndim == rank) [[likely]]
    return;
  bad_value(name_, fmt::format("has shape {}, not {}", shape_text(), shape));
}

void TensorView::require_extent(int dimension, std::int64_t extent, const char* what) const {
  if (view_.shape[dimension] == extent) [[likely]]
    return;
  bad_value(name_, fmt::format("has shape {}: dimension {} ({}) is {}, not {}", shape_text(), dimension, what,
                               view_.shape[dimension], extent));
}

void TensorView::require_device(int device) const {
  if (view_.device.id == device) [[likely]]
    return;
  bad_value(name_, fmt::format("is on CUDA device {}, but q is on device {}", view_.device.id, device),
            "All tensors of a call are on one GPU.");
}

// Of a tensor without elements no stride is used, and frameworks give it any address.

void TensorView::require_strides(bool written) const {
  if (view_.strides == nullptr) return;
  for (int i = 0; i < view_.ndim; ++i) {
    const std::int64_t found = view_.strides[i];
    if (view_.shape[i] <= 1 || found > 0 || (found == 0 && !written)) [[likely]]
      continue;
    if (is_empty()) return;
    bad_value(name_, fmt::format("has stride {} in dimension {}", found, i),
              found == 0 ? "What is written cannot be expanded: make it contiguous."
                         : "Reversed tensors are not taken: make it contiguous.");
  }
}

void TensorView::require_rows(bool written) const {
  const int last = view_.ndim - 1;
  if (view_.strides == nullptr || last < 0) return;
  if (view_.shape[last] > 1 && view_.strides[last] != 1 && !is_empty()) [[unlikely]] {
    bad_value(name_, fmt::format("has stride {} in dimension {}, its last, not 1", view_.strides[last], last),
              "The entries of its last dimension must be adjacent: make it contiguous.");
  }
  require_strides(written);
}

void TensorView::require_contiguous() const {
  if (view_.strides == nullptr) return;
  std::int64_t expected = 1;
  for (int i = view_.ndim - 1; i >= 0; --i) {
    if (view_.shape[i] > 1 && view_.strides[i] != expected && !is_empty()) [[unlikely]] {
      bad_value(name_,
                fmt::format("is not contiguous: dimension {} has stride {}, not {}", i, view_.strides[i], expected),
                "Make it contiguous.");
    }
    expected *= view_.shape[i];
  }
}

bool TensorView::has_aligned_rows(int alignment, int but) const {
  bool aligned = reinterpret_cast<std::uintptr_t>(data()) % static_cast<unsigned>(alignment) == 0;
  for (int i = 0; i + 1 < view_.ndim; ++i)
    aligned = aligned && (i == but || stride(i) * bytes_of(type_) % alignment == 0);
  return aligned || is_empty();
}

void TensorView::require_aligned_rows(bool written, int alignment, int but) const {
  require_rows(written);
  const auto address = reinterpret_cast<std::uintptr_t>(data());
  if (address == 0) [[unlikely]] {
    if (is_empty()) return;
    bad_value(name_, fmt::format("has shape {} and no memory", shape_text()));
  }
  if (has_aligned_rows(alignment, but)) [[likely]]
    return;
  if (address % static_cast<unsigned>(alignment) != 0)
    bad_value(name_, fmt::format("begins at {:#x}, which is not a multiple of {} bytes", address, alignment),
              "Whole tensors are aligned; an offset into one may not be.");
  for (int i = 0; i + 1 < view_.ndim; ++i) {
    if (i == but || stride(i) * bytes_of(type_) % alignment == 0) continue;
    bad_value(
        name_,
        fmt::format("has stride {} in dimension {}, which is not a multiple of {} bytes", stride(i), i, alignment),
        "Pad rows to that.");
  }
}

}  // namespace leanattn::python
