// dlpack.hpp -- the binary interface of DLPack 1.3, by which tensors of any framework are read. Plain data; any thread.
#pragma once

#include <cstdint>

namespace leanattn::python::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;

/// DLDeviceType, as far as we use it.
inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaManaged = 13;

/// DLDataTypeCode, as far as we use it.
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

/// DLManagedTensor: the contents of a capsule named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

/// DLManagedTensorVersioned: the contents of a capsule named "dltensor_versioned".
struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
inline constexpr std::uint64_t kReadOnly = 1;

/// DLPackExchangeAPI: the contents of the capsule "dlpack_exchange_api", which is the `__dlpack_c_exchange_api__` of a
/// type. Only the functions that read tensors have their types here. All return 0, or -1 with a Python error set.
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
