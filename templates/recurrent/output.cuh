// recurrent/output.cuh -- how the output of a token is written: as it is, or normalised over the rows of V and gated,
// for which the CTAs that share a head, or heads that are normalised together, are a cluster and tell each other their
// sums of squares.
constexpr int kNormWarps = kNormHeads * kValueDim / kWarpRows;  // of a norm
constexpr int kNormCtas = kNormHeads * kHeadCtas;

// The sum over the lanes of a warp.
LEAN_DEVICE float sum_of_warp(float x) {
  LEAN_UNROLL for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kFullMask, x, lanes);
  return x;
}

// A word of another CTA's shared memory (PTX ISA, "mapa").
LEAN_DEVICE void store_at_cta(u32 address, u32 cta, float x) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(__float_as_uint(x)) : "memory");
}

// What the threads of a cluster have stored, all of them see.
LEAN_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  wait_for_cluster();
}

// What to divide by, squared: the mean over the rows of the norm's heads, of which each lane gives one. `t` counts
// tokens.
LEAN_DEVICE float mean_square(int t, float square) {
  __shared__ float squares[2][kNormWarps];  // of all warps of the norm, for two tokens in turn
  const float mine = sum_of_warp(square);
  const int cta = kNormHeads == 1 ? blockIdx.x : blockIdx.y % kNormHeads * kHeadCtas + blockIdx.x;
  const int lane = threadIdx.x % 32, warp = cta * kWarps + threadIdx.x / 32;
  if constexpr (kNormCtas == 1) {
    if (lane == 0) squares[t % 2][warp] = mine;
    __syncthreads();
  } else {
    if (t == 0) wait_for_cluster();  // until all of its CTAs run
    if (lane < kNormCtas) store_at_cta(shared_address(&squares[t % 2][warp]), lane, mine);
    sync_cluster();
  }
  float sum = 0.0f;
  if constexpr (kNormWarps <= 32) {
    LEAN_UNROLL for (int i = 0; i < kNormWarps; i++) sum += squares[t % 2][i];
  } else {
    for (int i = lane; i < kNormWarps; i += 32) sum += squares[t % 2][i];
    sum = sum_of_warp(sum);
  }
  return sum * (1.0f / (kNormHeads * kValueDim));
}

// Each row is written by one of its lanes, neighbouring rows by neighbouring lanes. So much of o is a lane's.
LEAN_DEVICE float own_output(const Place& place, const float (&o)[kLaneRows]) {
  float mine = 0.0f;
  LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) mine = place.lane == row ? o[row] : mine;
  return mine;
}

LEAN_DEVICE float gated(const LeanRecurrentArgs& args, int t, float o, float weight, float z) {
  const float gate = kOutputGate == kOutputSigmoid ? sigmoid(z) : z * sigmoid(z);
  if constexpr (kOutputGate == kOutputSiluFirst) {
    o *= gate;
    return o * reciprocal_root(mean_square(t, o * o) + args.output_eps) * weight;
  }
  return o * reciprocal_root(mean_square(t, o * o) + args.output_eps) * weight * gate;
}

LEAN_DEVICE void store_output(const LeanRecurrentArgs& args, const Place& place, i64 token, float mine) {
  unsigned short* const to =
      (unsigned short*)args.o + token * args.o_stride + place.head * kValueDim + place.row + place.lane;
  if (place.lane < kLaneRows) *to = (unsigned short)Element::pack(mine, 0.0f);
}
