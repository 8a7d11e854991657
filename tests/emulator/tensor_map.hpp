// tensor_map.hpp -- what a CUtensorMap of the emulated driver holds (PTX ISA, "Tensors", "Tiled mode").
#pragma once

#include <cstdint>

namespace emulator {

struct TensorMap {
  std::uint64_t address = 0;
  std::uint64_t strides[4] = {};  ///< bytes; of the first dimension it is an element
  std::uint32_t sizes[5] = {1, 1, 1, 1, 1};
  std::uint32_t box[5] = {1, 1, 1, 1, 1};
  std::uint32_t mark = 0;
  std::uint8_t rank = 0, element_bytes = 0;
  std::uint8_t swizzle_bytes = 0;  ///< 0, 32, 64 or 128
};
constexpr std::uint32_t kTensorMapMark = 0x7e4504a9;
static_assert(sizeof(TensorMap) <= 128);

/// Where the 16 bytes at a shared address lie under a swizzle.
inline std::uint64_t swizzled(std::uint64_t address, int swizzle_bytes) {
  return address ^ ((address >> 7) % static_cast<unsigned>(swizzle_bytes == 0 ? 1 : swizzle_bytes / 16)) << 4;
}

}  // namespace emulator
