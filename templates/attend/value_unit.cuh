// attend/value_unit.cuh -- the unit of O where every token of V has a scale of its own. The matrix unit takes a weight
// times its scale as fp16, whose normal numbers span 29 powers of two. Scales do not know of that: with 5e-4, say, what
// a row weighs as a tenth would be a subnormal number with four bits. So a row counts in a unit, a power of two that
// follows the largest product of weight and scale: that product becomes 256 to 512, may grow to 32768 before the unit
// changes, and 2^-22 of it is still a normal number. Sums are fp32 and do not care. Host and device compile this file.

// The largest magnitude of a weight in units, times kLeanUnitWeight.
constexpr float kLeanMostWeight = 32768.0f;
constexpr float kLeanUnitWeight = 256.0f;  // what 1 unit becomes
// A unit that stands for no product at all, 2^-96.
constexpr float kLeanLeastUnit = 1.26217744835361888e-29f;

// The new unit of a row whose old one is `unit`, which need not be a power of two, after products up to `top`.
LEAN_HD float lean_value_unit(float unit, float top) {
  float largest = unit > kLeanLeastUnit ? unit : kLeanLeastUnit;
  largest = top > largest ? top : largest;
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, largest) & 0x7f800000u);
}

// What products are multiplied by: kLeanUnitWeight / unit, of a power of two.
LEAN_HD float lean_unit_factor(float unit) {
  return __builtin_bit_cast(float, 0x83000000u - __builtin_bit_cast(unsigned, unit));
}

// What O of an old unit is worth in the unit of `factor`.
LEAN_HD float lean_unit_change(float old_unit, float factor) { return old_unit * factor * (1.0f / kLeanUnitWeight); }
