// case_array.hpp -- CaseArray: an array of a case and its copy on the device. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cuda/gpu.hpp"

namespace leanattn {
inline namespace v1 {

template <class Element>
struct CaseArray {
  std::vector<Element> host;
  DeviceBuffer device;  ///< empty, like an array without elements, until upload()

  std::int64_t bytes() const { return static_cast<std::int64_t>(host.size() * sizeof(Element)); }

  /// Sets all elements, in order.
  template <class Each>
  void fill(std::int64_t count, const Each& each) {
    host.resize(static_cast<std::size_t>(count));
    for (auto& value : host) value = each();
  }

  /// Errors: out_of_memory, context_lost.
  Result<void> upload(const Stream& stream) {
    if (host.empty()) return {};
    auto copy = copy_of_host(stream);
    if (!copy) return tl::unexpected(copy.error());
    device = *std::move(copy);
    return {};
  }

  /// Another copy, which a kernel may change. Errors: out_of_memory, context_lost.
  Result<DeviceBuffer> copy_of_host(const Stream& stream) const {
    auto buffer = DeviceBuffer::allocate(bytes());
    if (!buffer || host.empty()) return buffer;
    if (auto ok = copy_to_device(buffer->data(), host.data(), bytes(), stream); !ok) return tl::unexpected(ok.error());
    return buffer;
  }
};

}  // namespace v1
}  // namespace leanattn
