// recurrent/token.cuh -- what a head has for all tokens, and what a token brings: q, k, v and its gates. Elements stay
// as they lie in memory until they are needed, so that no load waits for another one.

constexpr bool kGatesAreElements = kGates == kGatesSoftplus || kGates == kGatesBounded;  // of q's type
constexpr bool kBringsGates = kDecay != kDecayNone && kGates != kGatesConstant;
constexpr bool kBringsWeight = kWeight == kWeightBeta || (kWeight == kWeightStep && kGates == kGatesGiven);
constexpr int kOutputSigmoid = 2;
constexpr int kOutputSiluFirst = 3;
constexpr bool kGatesOutput = kOutputGate != 0;

// A load that the compiler leaves where it is: in front of the wait for the slot.
template <class T>
LEAN_DEVICE T load_input(const void* p) {
  T r;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
  } else {
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
  }
  return r;
}

struct Head {
  float a_log, skip;
  float bias[kDecays];  // of the gates
  float norm_weight;    // of the row whose output this lane writes
};

struct Token {
  // Not of a token that goes through a convolution.
  u32 q[kColumns / 2], k[kColumns / 2];
  unsigned short v[kLaneRows];
  u32 gate[kDecays], weight;  // bits
  u32 erase[kEraseColumns / 2], write[kErasure == kErasureChannels ? kWrites : kWrites / 2];
  u32 z;  // of the row whose output this lane writes
};

// Where a lane's gate is among those of a token.
LEAN_DEVICE int gate_index(const Place& place, int i) {
  if constexpr (kDecay != kDecayOfChannel) return place.head;
  return place.head * kKeyDim + column_of(place, i / kChunkColumns) + i % kChunkColumns;
}

LEAN_DEVICE bool is_null(const LeanRecurrentArgs& args, int slot) {
  return slot < args.first_slot || slot >= args.slot_count;
}

// The bits of a gate or weight, and its value.
LEAN_DEVICE u32 load_gate(const void* gates, i64 i) {
  if constexpr (kGatesAreElements) return load_input<unsigned short>((const unsigned short*)gates + i);
  return load_input<u32>((const u32*)gates + i);
}
LEAN_DEVICE float gate_value(u32 bits) {
  if constexpr (kGatesAreElements) return Element::unpack(bits).x;
  return __uint_as_float(bits);
}

LEAN_DEVICE float load_number(const float* p) { return __uint_as_float(load_input<u32>(p)); }

LEAN_DEVICE Head load_head(const LeanRecurrentArgs& args, const Place& place) {
  Head head;
  head.a_log = head.skip = head.norm_weight = 0.0f;
  if constexpr (kGates != kGatesGiven) head.a_log = load_number(args.a_log + place.head);
  if constexpr (kSkip) head.skip = load_number(args.skip + place.head);
  if constexpr (kGatesOutput) {
    const int first = kOutputGate == kOutputSiluFirst ? place.head * kValueDim : 0;
    if (place.lane < kLaneRows) head.norm_weight = load_number(args.norm_weight + first + place.row + place.lane);
  }
  LEAN_UNROLL for (int i = 0; i < kDecays; i++) {
    head.bias[i] = 0.0f;
    if constexpr (kGatesAreElements) {
      if (args.dt_bias != nullptr) head.bias[i] = load_number(args.dt_bias + gate_index(place, i));
    }
  }
  return head;
}

// A lane's columns of a row of q or k.
LEAN_DEVICE void load_columns(u32 (&words)[kColumns / 2], const Place& place, const void* row_of_keys) {
  const char* const row = (const char*)row_of_keys;
  LEAN_UNROLL for (int chunk = 0; chunk < kChunks; chunk++) {
    const char* const from = row + 2 * column_of(place, chunk);
    if constexpr (kChunkColumns == 8) {
      const uint4 x = load_input<uint4>(from);
      LEAN_UNROLL for (int i = 0; i < 4; i++) words[chunk * 4 + i] = word(x, i);
    } else {
      const uint2 x = load_input<uint2>(from);
      LEAN_UNROLL for (int i = 0; i < 2; i++) words[chunk * 2 + i] = word(x, i);
    }
  }
}

LEAN_DEVICE Token load_token(const LeanRecurrentArgs& args, const Place& place, i64 token) {
  Token x;
  if constexpr (kConvWidth == 0) {
    const int key_head = place.head / kGroup;
    load_columns(x.k, place, (const char*)args.k + 2 * (token * args.k_stride + key_head * kKeyDim));
    load_columns(x.q, place, (const char*)args.q + 2 * (token * args.q_stride + key_head * kKeyDim));
    const unsigned short* const v =
        (const unsigned short*)args.v + token * args.v_stride + place.head * kValueDim + place.row;
    LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) x.v[row] = load_input<unsigned short>(v + row);
  }
  LEAN_UNROLL for (int i = 0; i < kDecays; i++) {
    x.gate[i] = 0;
    if constexpr (kBringsGates) x.gate[i] = load_gate(args.a, token * args.a_stride + gate_index(place, i));
  }
  if constexpr (kErases) {
    load_columns(x.erase, place, (const char*)args.erase + 2 * (token * args.erase_stride + place.head * kKeyDim));
    if constexpr (kErasure == kErasureVectors) {
      load_columns(x.write, place, (const char*)args.write + 2 * (token * args.write_stride + place.head * kKeyDim));
    } else {
      const unsigned short* const write =
          (const unsigned short*)args.write + token * args.write_stride + place.head * kValueDim + place.row;
      LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) x.write[row] = load_input<unsigned short>(write + row);
    }
  }
  x.weight = 0;
  if constexpr (kBringsWeight) x.weight = load_gate(args.b, token * args.b_stride + place.head);
  x.z = 0;
  if constexpr (kGatesOutput) {
    const i64 row = token * args.z_stride + place.head * kValueDim + place.row + place.lane;
    if (place.lane < kLaneRows) x.z = load_input<unsigned short>((const unsigned short*)args.z + row);
  }
  return x;
}
