// recurrent/token.cuh -- what a token brings: q, k, v and its gates.

// The elements of a token as they lie in memory. Their loads need no state, and travel beside it.
struct TokenWords {
  u32 q[kColumns / 2], k[kColumns / 2];
  unsigned short v[kLaneRows];
  float gate[kDecays];  // a, plus dt_bias; or the logarithm that is given
  float weight;         // b, or the weight that is given
};

LEAN_DEVICE float load_element(const void* p, i64 i) { return Element::unpack(((const unsigned short*)p)[i]).x; }

// A lane's columns of a row of q or k.
LEAN_DEVICE void load_columns(u32 (&words)[kColumns / 2], const Place& place, const void* row_of_keys) {
  const char* const row = (const char*)row_of_keys;
  LEAN_UNROLL for (int chunk = 0; chunk < kChunks; chunk++) {
    const char* const from = row + 2 * column_of(place, chunk);
    if constexpr (kChunkColumns == 8) {
      const uint4 x = *(const uint4*)from;
      LEAN_UNROLL for (int i = 0; i < 4; i++) words[chunk * 4 + i] = word(x, i);
    } else {
      const uint2 x = *(const uint2*)from;
      LEAN_UNROLL for (int i = 0; i < 2; i++) words[chunk * 2 + i] = word(x, i);
    }
  }
}

LEAN_DEVICE TokenWords load_token(const LeanRecurrentArgs& args, const Place& place, i64 token) {
  TokenWords x;
  const int key_head = place.head / kGroup;
  load_columns(x.k, place, (const char*)args.k + 2 * (token * args.k_stride + key_head * kKeyDim));
  load_columns(x.q, place, (const char*)args.q + 2 * (token * args.q_stride + key_head * kKeyDim));
  const unsigned short* const v =
      (const unsigned short*)args.v + token * args.v_stride + place.head * kValueDim + place.row;
  LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) x.v[row] = v[row];
  LEAN_UNROLL for (int i = 0; i < kDecays; i++) {
    const int column = column_of(place, i / kChunkColumns) + i % kChunkColumns;
    const i64 gate = kDecay == kDecayOfChannel ? place.head * kKeyDim + column : place.head;
    if constexpr (kDecay == kDecayNone) {
      x.gate[i] = 0.0f;
    } else if constexpr (kGates == kGatesConstant) {
      x.gate[i] = args.a_log[gate];
    } else if constexpr (kGates == kGatesGiven) {
      x.gate[i] = ((const float*)args.a)[token * args.a_stride + gate];
    } else {
      x.gate[i] = load_element(args.a, token * args.a_stride + gate);
      if (args.dt_bias != nullptr) x.gate[i] += args.dt_bias[gate];
    }
  }
  x.weight = 1.0f;
  if constexpr (kWeight == kWeightBeta || (kWeight == kWeightStep && kGates == kGatesGiven)) {
    const i64 at = token * args.b_stride + place.head;
    x.weight = kGates == kGatesGiven ? ((const float*)args.b)[at] : load_element(args.b, at);
  }
  return x;
}
