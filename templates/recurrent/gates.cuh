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

// log(1 + e^x), and x where they are the same in fp32.
LEAN_DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
LEAN_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// What a gate becomes: the logarithm of a factor. `rate` is e^a_log.
LEAN_DEVICE float decay_log(const LeanRecurrentArgs& args, float gate, float rate) {
  if constexpr (kGates == kGatesSoftplus) return -rate * softplus(gate);
  if constexpr (kGates == kGatesBounded) return args.lower_bound * sigmoid(rate * gate);
  return gate;
}
