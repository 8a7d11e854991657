// attend/value_unit.cuh -- the unit of O where every token of V has a scale of its own. The matrix unit takes a weight
// times its scale as fp16. Weights are at most 1 and the largest of them is exact, but scales may be anything: with
// 5e-4, say, what a row weighs as a tenth would be a subnormal number of four bits. So a row counts in a unit that is
// the largest product of weight and scale so far. That one becomes kLeanUnitWeight, which is exact, and what is 2^28
// times smaller is still a normal number. Sums are fp32 and do not care. Host and device compile this file.

constexpr float kLeanUnitWeight = 16384.0f;
constexpr float kLeanLeastUnit = 1.0e-30f;  // of a row without any product yet

LEAN_HD float lean_ratio(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// The new unit of a row whose old one is `unit` after a step whose largest product is `top`.
LEAN_HD float lean_value_unit(float unit, float top) {
  const float larger = top > unit ? top : unit;
  return larger > kLeanLeastUnit ? larger : kLeanLeastUnit;
}
