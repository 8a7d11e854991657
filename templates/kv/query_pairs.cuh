// kv/query_pairs.cuh -- q where elements of K have four bits.

// Eight elements of q as fp16 values, in the order of kv_pair: those of a word of K that are four apart are a pair.
LEAN_DEVICE uint4 query_pairs(const uint4& x) {
  const auto narrow = [](u32 pair) {
    const float2 y = Element::unpack(pair);
    return Operand::pack(y.x, y.y);
  };
  return make_uint4(narrow(low_halves(x.x, x.z)), narrow(high_halves(x.x, x.z)), narrow(low_halves(x.y, x.w)),
                    narrow(high_halves(x.y, x.w)));
}
