// streams.cpp -- asks frameworks for their streams and for new tensors.
#include "streams.hpp"

#include <cstdint>
#include <string>

#include "errors.hpp"
#include "names.hpp"
#include "tensor.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

nb::object frameworks() { return nb::module_::import_("leanattn._frameworks"); }

CUstream_st* as_stream(nb::handle value) {
  const std::uintptr_t number = address_of(value, "stream");
  // The CUDA runtime and DLPack use 1 for the legacy default stream, which is null here.
  return number == 1 ? nullptr : reinterpret_cast<CUstream_st*>(number);
}

}  // namespace

Stream find_stream(nb::handle given, nb::handle tensor) {
  if (!given.is_none()) {
    if (PyLong_Check(given.ptr())) return {as_stream(given), false};
    const nb::object handle = frameworks().attr("stream_handle")(given);
    if (handle.is_none()) {
      bad_type("stream", "is neither an integer nor a CUDA stream",
               "Give a stream of PyTorch or CuPy, an object with __cuda_stream__, or its handle as an integer.");
    }
    return {as_stream(handle), false};
  }
  if (const auto* api = exchange_api(tensor)) [[likely]] {
    dlpack::Tensor view{};
    if (api->view_of_object(tensor.ptr(), &view) != 0) nb::raise_python_error();
    if (view.device.type != dlpack::kCuda) return {};  // reading the tensor then fails with its name
    void* stream = nullptr;
    if (api->current_stream(view.device.type, view.device.id, &stream) != 0) nb::raise_python_error();
    return {static_cast<CUstream_st*>(stream), false};
  }
  const nb::tuple found = nb::cast<nb::tuple>(frameworks().attr("current_stream")(tensor));
  return {as_stream(found[0]), nb::cast<bool>(found[1])};
}

nb::object empty(nb::handle like, nb::handle shape, bool fp32) {
  // The shortest way with PyTorch.
  if (!fp32 && exchange_api(like) != nullptr) {
    if (PyObject* made = PyObject_CallMethod(like.ptr(), "new_empty", "O", shape.ptr())) return nb::steal(made);
    PyErr_Clear();
  }
  return frameworks().attr("empty")(like, shape, fp32);
}

}  // namespace leanattn::python
