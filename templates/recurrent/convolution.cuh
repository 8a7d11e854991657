// recurrent/convolution.cuh -- the short convolution in front of a step: q, k and v of a token are sums over the last
// kConvWidth tokens of their channel, each with a weight, and SiLU follows. A CTA works them out in fp32 for the
// channels that it reads, for all tokens at once, while its part of the state is on its way.
//
// The convolution's state has the tokens before those of the step. A channel of v is read by one thread, which also
// writes its state. Those of q and k are read by all CTAs of the heads of v that share them. Each counts itself once it
// has read them, and the last one writes. So nobody writes what another has yet to read, and nobody waits: the count is
// a release of the reads of a CTA, and the acquire of the one that writes (PTX ISA, "Memory Consistency Model").
constexpr int kPastTokens = kConvWidth - 1;  // before those of the step
constexpr int kSeenTokens = kPastTokens + kTokens;
constexpr int kReaders = kGroup * kHeadCtas;                  // CTAs that read the state of a head of q and k
constexpr int kPitch = 2 * kKeyDim + (kCtaRows + 3) / 4 * 4;  // channels of a CTA: of q, of k, and the rows of v
// Channels of a thread: so many of q, as many of k, and of v.
constexpr int kThreads = kWarps * 32, kKeyTurns = (kKeyDim + kThreads - 1) / kThreads;
constexpr int kTurns = 2 * kKeyTurns + (kCtaRows + kThreads - 1) / kThreads;

struct Convolved {
  float values[kTokens][kPitch];             // q, k and v of each token
  unsigned short seen[kSeenTokens][kPitch];  // what they were made of, the oldest token first
  bool is_last;                              // this CTA has read the state of q and k last
};
LEAN_DEVICE Convolved& convolved() {
  __shared__ __align__(16) Convolved shared;
  return shared;
}

// A thread's channel in turn i: whether there is one, whether of q, k or v (0, 1, 2), which of these, and which of the
// CTA's channels.
struct Channel {
  bool there;
  int part, index, column;
};
LEAN_DEVICE Channel channel_of(const Place& place, int i) {
  const int part = min(i / kKeyTurns, 2), own = threadIdx.x + (i - part * kKeyTurns) * kThreads;
  const int first = part < 2 ? place.head / kGroup * kKeyDim : place.head * kValueDim + (int)blockIdx.x * kCtaRows;
  return {own < (part < 2 ? kKeyDim : kCtaRows), part, first + own, part * kKeyDim + own};
}

LEAN_DEVICE unsigned short* conv_state_at(const LeanShortConv& conv, const Channel& channel, int slot, int token) {
  return (unsigned short*)conv.state + slot * conv.slot_stride + channel.index * conv.channel_stride +
         token * conv.token_stride;
}

// What the sums of a thread's channels are made of.
struct Taps {
  unsigned short weight[kTurns][kConvWidth], bias[kTurns], seen[kTurns][kSeenTokens];
};

// `past` is the first token of the state that counts. In a null slot all of them are zero.
LEAN_DEVICE Taps load_taps(const LeanRecurrentArgs& args, const Place& place, i64 first_token, int tokens, int slot,
                           int past) {
  Taps taps;
  LEAN_UNROLL for (int i = 0; i < kTurns; i++) {
    const Channel channel = channel_of(place, i);
    const LeanShortConv& conv = args.conv[channel.part];
    const unsigned short* const weight = (const unsigned short*)conv.weight + (i64)channel.index * kConvWidth;
    LEAN_UNROLL for (int j = 0; j < kConvWidth; j++) taps.weight[i][j] =
        channel.there ? load_input<unsigned short>(weight + j) : 0;
    taps.bias[i] = channel.there && conv.bias != nullptr
                       ? load_input<unsigned short>((const unsigned short*)conv.bias + channel.index)
                       : 0;
    LEAN_UNROLL for (int j = 0; j < kPastTokens; j++) {
      taps.seen[i][j] = 0;
      if (channel.there && !is_null(args, slot)) taps.seen[i][j] = *conv_state_at(conv, channel, slot, past + j);
    }
    const void* const rows = channel.part == 0 ? args.q : channel.part == 1 ? args.k : args.v;
    const i64 stride = channel.part == 0 ? args.q_stride : channel.part == 1 ? args.k_stride : args.v_stride;
    LEAN_UNROLL for (int t = 0; t < kTokens; t++) {
      const unsigned short* const x = (const unsigned short*)rows + (first_token + t) * stride + channel.index;
      taps.seen[i][kPastTokens + t] = channel.there && t < tokens ? load_input<unsigned short>(x) : 0;
    }
  }
  return taps;
}

// The state of the thread's channels of q and k, or of v, becomes that of the next step. With snapshots it also has the
// tokens that the next step may find not to be accepted: its first one is the newest that this step has begun with.
LEAN_DEVICE void store_seen(const LeanRecurrentArgs& args, const Place& place, int tokens, int slot, bool of_keys) {
  const int first = kSnapshots ? 1 : tokens, count = kSnapshots ? kPastTokens - 1 + tokens : kPastTokens;
  LEAN_UNROLL for (int i = 0; i < kTurns; i++) {
    const Channel channel = channel_of(place, i);
    if (!channel.there || (channel.part < 2) != of_keys) continue;
    for (int j = 0; j < count; j++)
      *conv_state_at(args.conv[channel.part], channel, slot, j) = convolved().seen[first + j][channel.column];
  }
}

// Works out q, k and v of all tokens, which all threads see afterwards.
LEAN_DEVICE void convolve(const Place& place, const Taps& taps) {
  LEAN_UNROLL for (int i = 0; i < kTurns; i++) {
    const Channel channel = channel_of(place, i);
    if (!channel.there) continue;
    LEAN_UNROLL for (int j = 0; j < kSeenTokens; j++) convolved().seen[j][channel.column] = taps.seen[i][j];
    LEAN_UNROLL for (int t = 0; t < kTokens; t++) {
      float sum = Element::unpack(taps.bias[i]).x;
      LEAN_UNROLL for (int j = 0; j < kConvWidth; j++) sum =
          fmaf(Element::unpack(taps.weight[i][j]).x, Element::unpack(taps.seen[i][t + j]).x, sum);
      // An error of v goes straight into the state, so this division is exact.
      convolved().values[t][channel.column] = sum / (1.0f + expf(-sum));
    }
  }
  __syncthreads();
}

// Of the CTAs that have counted themselves before. Behind the last one the counter is zero again.
LEAN_DEVICE u32 count_reader(const LeanRecurrentArgs& args, const Place& place) {
  if constexpr (kReaders == 1) return 0;
  unsigned* const counter = args.readers + place.request * (gridDim.y / kGroup) + place.head / kGroup;
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(kReaders - 1)
               : "memory");
  return before;
}

// `before` is that of thread 0.
LEAN_DEVICE bool is_last_reader(u32 before) {
  if (threadIdx.x == 0) convolved().is_last = before == kReaders - 1;
  __syncthreads();
  return convolved().is_last;
}

LEAN_DEVICE void read_convolved(const Place& place, int t, float (&q)[kColumns], float (&k)[kColumns],
                                float (&v)[kLaneRows]) {
  const float* const values = convolved().values[t];
  LEAN_UNROLL for (int i = 0; i < kColumns; i += 4) {
    const int column = column_of(place, i / kChunkColumns) + i % kChunkColumns;
    const float4 of_q = *(const float4*)&values[column], of_k = *(const float4*)&values[kKeyDim + column];
    q[i] = of_q.x, q[i + 1] = of_q.y, q[i + 2] = of_q.z, q[i + 3] = of_q.w;
    k[i] = of_k.x, k[i + 1] = of_k.y, k[i + 2] = of_k.z, k[i + 3] = of_k.w;
  }
  LEAN_UNROLL for (int row = 0; row < kLaneRows; row++) v[row] =
      values[2 * kKeyDim + place.row - (int)blockIdx.x * kCtaRows + row];
}
