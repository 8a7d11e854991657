// tensor.hpp -- TensorView: the memory of a Python object that speaks DLPack. Nothing is copied. Called with the GIL
// held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dlpack.hpp"

struct CUstream_st;

namespace leanattn::python {

/// The element types that a launch reads and writes.
enum class ElementType : std::uint8_t { bf16, fp16, fp32, int32, uint32, int8, uint8, fp8_e4m3, fp8_e5m2, other };
const char* to_string(ElementType type);
int bytes_of(ElementType type);

/// The size of one load, and of a scale: what rows are aligned to.
inline constexpr int kVectorBytes = 16, kScaleBytes = 4;

/// The memory, shape and strides of a tensor, which it keeps alive where the framework hands it over.
class TensorView {
 public:
  /// Reads `object`, which errors call `name`. A type with the C exchange interface of DLPack (PyTorch 2.10 and newer)
  /// gives its memory directly. Of other types `__dlpack__(stream)` is called, which makes `stream` wait for the
  /// contents. Raises ArgumentTypeError where the object does not speak DLPack, ArgumentError where it is not in CUDA
  /// memory.
  TensorView(nanobind::handle object, const char* name, CUstream_st* stream);

  const char* name() const { return name_; }
  template <class T = void>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(view_.data) + view_.byte_offset);
  }
  ElementType type() const { return type_; }
  int device() const { return view_.device.id; }
  int rank() const { return view_.ndim; }
  std::int64_t extent(int dimension) const { return view_.shape[dimension]; }
  /// The same for an extent that must be at least `least` and fit in 32 bits. Raises an error that names the tensor.
  std::int32_t extent32(int dimension, std::int64_t least = 1) const;
  /// Elements from one entry of a dimension to the next; 0 where it has at most one entry, because the stride is not
  /// used then.
  std::int64_t stride(int dimension) const;
  /// The same as launches take it, to which a stride of 0 that is used is LEANATTN_STRIDE_EXPANDED.
  std::int64_t launch_stride(int dimension) const;
  std::int64_t elements() const;
  bool is_empty() const { return elements() == 0; }
  std::string shape_text() const;

  /// Each raises an error that names the tensor where it is otherwise.
  void require_type(ElementType type) const;
  void require_rank(int rank, const char* shape) const;
  void require_extent(int dimension, std::int64_t extent, const char* what) const;
  void require_device(int device) const;
  /// No dimension is reversed, and none is expanded (as every entry of it is the same memory) of what is `written`.
  void require_strides(bool written = false) const;
  /// As require_strides(), and the elements of the last dimension are adjacent.
  void require_rows(bool written = false) const;
  /// All elements are adjacent, row after row.
  void require_contiguous() const;
  /// As require_rows(), and every row begins at a multiple of so many bytes, usually of one load. Steps of the
  /// dimension `but` are not looked at.
  void require_aligned_rows(bool written = false, int alignment = kVectorBytes, int but = -1) const;
  /// Whether every row does.
  bool has_aligned_rows(int alignment, int but = -1) const;

 private:
  dlpack::Tensor view_{};
  const char* name_;
  ElementType type_ = ElementType::other;
  struct Release {
    template <class Managed>
    void operator()(Managed* managed) const {
      if (managed->deleter != nullptr) managed->deleter(managed);
    }
  };
  std::unique_ptr<dlpack::ManagedTensor, Release> managed_;
  std::unique_ptr<dlpack::ManagedTensorVersioned, Release> versioned_;
};

/// The C exchange interface of an object's type, which is remembered for each type; or null.
const dlpack::ExchangeApi* exchange_api(nanobind::handle object);

}  // namespace leanattn::python
