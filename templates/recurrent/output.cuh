// recurrent/output.cuh -- how the output of a token is written: as it is, or normalised over the rows of V and gated,
// for which the CTAs that share a head, a cluster then, tell each other their sums of squares.
constexpr int kOutputSilu = 1;
constexpr bool kGatesOutput = kOutputGate != 0;
constexpr int kHeadWarps = kValueDim / kWarpRows;  // of all CTAs that share a head

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

// What to divide by, squared: the mean over the rows of a head, of which each lane gives one. `t` counts tokens.
LEAN_DEVICE float mean_square(int t, float square) {
  __shared__ float squares[2][kHeadWarps];  // of all warps of the head, for two tokens in turn
  const float mine = sum_of_warp(square);
  const int lane = threadIdx.x % 32, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  if constexpr (kHeadCtas == 1) {
    if (lane == 0) squares[t % 2][warp] = mine;
    __syncthreads();
  } else {
    if (t == 0) wait_for_cluster();  // until all of its CTAs run
    if (lane < kHeadCtas) store_at_cta(shared_address(&squares[t % 2][warp]), lane, mine);
    sync_cluster();
  }
  float sum = 0.0f;
  LEAN_UNROLL for (int i = 0; i < kHeadWarps; i++) sum += squares[t % 2][i];
  return sum * (1.0f / kValueDim);
}

// Each row is written by one of its lanes, neighbouring rows by neighbouring lanes. So much of o is a lane's.
LEAN_DEVICE float own_output(const Place& place, const float (&o)[kLaneRows]) {
  float mine = 0.0f;
  LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) mine = place.lane == row ? o[row] : mine;
  return mine;
}

LEAN_DEVICE float gated(const LeanRecurrentArgs& args, float o, float weight, float z, float mean_square) {
  const float gate = kOutputGate == kOutputSilu ? z * sigmoid(z) : sigmoid(z);
  return o * reciprocal_root(mean_square + args.output_eps) * weight * gate;
}

LEAN_DEVICE void store_output(const LeanRecurrentArgs& args, const Place& place, i64 token, float mine) {
  unsigned short* const to =
      (unsigned short*)args.o + token * args.o_stride + place.head * kValueDim + place.row + place.lane;
  if (place.lane < kLaneRows) *to = (unsigned short)Element::pack(mine, 0.0f);
}
