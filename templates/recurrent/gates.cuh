// recurrent/gates.cuh -- what gates say: by what factor the state decays, and what an update is weighed with.
constexpr int kDecayNone = 0;
constexpr int kDecayOfChannel = 2;
constexpr int kWeightBeta = 1;
constexpr int kWeightStep = 2;
constexpr int kGatesGiven = 0;
constexpr int kGatesSoftplus = 1;
constexpr int kGatesBounded = 2;
constexpr int kGatesConstant = 3;
constexpr int kErasureKey = 1;
constexpr int kErasureChannels = 2;
constexpr int kErasureVectors = 3;
constexpr bool kErases = kErasure >= kErasureChannels;
constexpr int kEraseColumns = kErases ? kColumns : 2;  // of a lane's columns
constexpr int kWrites =                                // of a lane: those of its rows, or of its columns
    kErasure == kErasureChannels ? kLaneRows : kEraseColumns;
constexpr int kDecays = kDecay == kDecayOfChannel ? kColumns : 1;  // factors that a lane has

LEAN_DEVICE float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
LEAN_DEVICE float reciprocal_root(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// e^x for factors of a decay, right to about half an ulp. An error of a factor near 1 comes back in every step, divided
// by how much the state forgets, and ex2.approx is off by two. x = n ln 2 + r, and e^r is a polynomial.
LEAN_DEVICE float factor_of(float x) {
  x = fminf(x, 88.0f);
  const float n = rintf(x * 1.44269504f), r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x));
  float series = 1.0f / 5040;
  series = fmaf(series, r, 1.0f / 720);
  series = fmaf(series, r, 1.0f / 120);
  series = fmaf(series, r, 1.0f / 24);
  series = fmaf(series, r, 1.0f / 6);
  series = fmaf(series, r, 0.5f);
  const float power = 1.0f + fmaf(r * r, series, r);
  return x < -87.0f ? 0.0f : power * __int_as_float((__float2int_rn(n) + 127) << 23);
}

LEAN_DEVICE float sigmoid(float x) { return reciprocal(1.0f + expf(-x)); }

// log(1 + e^x) = max(x, 0) + log(1 + y), where y = e^-|x| is at most 1. With s = y / (2 + y), log(1 + y) is
// 2 (s + s^3 / 3 + s^5 / 5 ...). Unlike log() of the sum, this is right for small y, which a state remembers for long.
LEAN_DEVICE float softplus(float x) {
  const float y = expf(-fabsf(x)), s = y * reciprocal(2.0f + y), ss = s * s;
  float series = 2.0f / 15;
  series = fmaf(series, ss, 2.0f / 13);
  series = fmaf(series, ss, 2.0f / 11);
  series = fmaf(series, ss, 2.0f / 9);
  series = fmaf(series, ss, 2.0f / 7);
  series = fmaf(series, ss, 2.0f / 5);
  series = fmaf(series, ss, 2.0f / 3);
  return fmaxf(x, 0.0f) + fmaf(series * ss, s, 2.0f * s);
}

// What a gate becomes: the logarithm of a factor. `rate` is e^a_log.
LEAN_DEVICE float decay_log(const LeanRecurrentArgs& args, float gate, float rate) {
  if constexpr (kGates == kGatesSoftplus) return -rate * softplus(gate);
  if constexpr (kGates == kGatesBounded) return args.lower_bound * sigmoid(rate * gate);
  return gate;
}
