// recurrent/gates.cuh -- what gates say: by what factor the state decays, and what an update is weighed with.
constexpr int kDecayNone = 0;
constexpr int kDecayOfChannel = 2;
constexpr int kWeightBeta = 1;
constexpr int kWeightStep = 2;
constexpr int kGatesGiven = 0;
constexpr int kGatesSoftplus = 1;
constexpr int kGatesBounded = 2;
constexpr int kGatesConstant = 3;
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
