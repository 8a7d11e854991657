// dlpack.hpp -- the binary interface of DLPack 1.3 that tensors of any framework are read through. Plain data; any
// thread.
#pragma once

#include <cstdint>

namespace leanattn::python::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;

/// DLDeviceType; the others are not ours to read.
inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaManaged = 13;

/// DLDataTypeCode.
enum Code : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12,
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;    // [ndim]
  std::int64_t* strides;  // [ndim], elements; null: row-major
  std::uint64_t byte_offset;
};

/// What a capsule named "dltensor" holds.
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

/// What a capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1;

/// What a type's `__dlpack_c_exchange_api__` capsule, "dlpack_exchange_api", points to. Of the functions only those
/// that take part in reading a tensor have their types here. All return 0, or -1 with a Python error set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of_object)(void* object, Tensor* out);  // may be null; the view lives as long as the object
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80 &&
              sizeof(ExchangeApi) == 56);

}  // namespace leanattn::python::dlpack
