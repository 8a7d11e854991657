// random_data.cpp -- the host's instance of templates/check_data.cuh.
#include "tuner/random_data.hpp"

#include <algorithm>
#include <cmath>

namespace leanattn {
inline namespace v1 {
namespace {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include "templates/check_data.cuh"
#pragma GCC diagnostic pop

int format_of(DType dtype) { return dtype == DType::bf16 ? kCheckBf16 : kCheckFp16; }
}  // namespace

static_assert(static_cast<int>(DataKind::uniform) == kCheckUniform &&
              static_cast<int>(DataKind::peaked) == kCheckPeaked &&
              static_cast<int>(DataKind::extreme) == kCheckExtreme &&
              static_cast<int>(DataKind::coverage) == kCheckCoverage);
static_assert(static_cast<int>(DataTensor::q) == kCheckQ && static_cast<int>(DataTensor::k) == kCheckK &&
              static_cast<int>(DataTensor::v) == kCheckV);

std::string_view to_string(DataKind kind) {
  switch (kind) {
    case DataKind::uniform: return "uniform";
    case DataKind::peaked: return "peaked";
    case DataKind::extreme: return "extreme";
    case DataKind::coverage: return "coverage";
  }
  return "unknown";
}

std::uint16_t data_bits(DataKind kind, std::uint64_t seed, DataTensor tensor, DType dtype, int request, int head,
                        std::int64_t token, int column, int head_dim) {
  return check_element(static_cast<int>(kind), seed, static_cast<int>(tensor), format_of(dtype), request, head, token,
                       column, head_dim);
}

double extreme_scale(int head_dim) { return 1e4 / (4096.0 * head_dim); }

double value_of(DType dtype, std::uint16_t bits) { return check_to_float(format_of(dtype), bits); }

std::uint16_t bits_of(DType dtype, float value) { return check_from_float(format_of(dtype), value); }

double unit_in_last_place(DType dtype, double magnitude) {
  const int fraction_bits = dtype == DType::bf16 ? 7 : 10;
  const int smallest_exponent = dtype == DType::bf16 ? -126 : -14;
  const double size = std::abs(magnitude);
  const int exponent =
      size > 0 && std::isfinite(size) ? std::max(std::ilogb(size), smallest_exponent) : smallest_exponent;
  return std::ldexp(1.0, exponent - fraction_bits);
}

}  // namespace v1
}  // namespace leanattn
